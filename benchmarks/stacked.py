"""Many clients at once on one GPU, over one after another, and how far that is from the limit.

A round of training (planning, feeding, local SGD, folding) of the same cohort, four ways:

  alone     `SpeechWorker`: one client after another, as FLUTE, pfl-research and Flower do; timed on an
            eighth of the cohort and multiplied, since each takes its own time
  stacked   `StackedWorker` without CUDA graphs
  graphs    `StackedWorker` as it is used
  limit     all the cohort's utterances of a step as one batch through one model: no longer federated,
            and nothing can be faster with these kernels

Noise of 3 s an utterance; and, with `--corpus`, sessions of a real corpus, whose sizes differ: in batches of
as many seconds as the noise (`real`), and of 60 s (`real-60`). On a GPU, each case is also measured in other
precisions (`…-tf32`, `…-bfloat16`).
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import TOKENS, argument_parser, make_store, print_table, write_result
from torch.profiler import ProfilerActivity, profile

from antiphon.clients.client import Client, ClientRuntime
from antiphon.clients.precision import PRECISIONS
from antiphon.clients.stacked.footprint import Footprint
from antiphon.clients.stacked.grouping import Launch, Plan, launches
from antiphon.clients.stacked.stacked_worker import StackedWorker
from antiphon.clients.train import clip
from antiphon.clients.worker import SpeechWorker
from antiphon.core import Task, Tensors, Update, Worker
from antiphon.data.corpus import Corpus
from antiphon.data.frontends import OnnxEncoder
from antiphon.data.partition import BySession, BySpeaker
from antiphon.data.store import FeatureStore, compute_features
from antiphon.experiment.preparation import choose_device, device_name
from antiphon.models.blstm import BlstmConfig
from antiphon.models.conformer import ConformerConfig
from antiphon.models.ctc import CtcConfig
from antiphon.models.las import LasConfig
from antiphon.models.model import ModelConfig
from antiphon.models.noise import noise_from
from antiphon.pools.local import LocalPool
from antiphon.server.weighting import Uniform
from antiphon.tasks.local_training import LocalSteps, LocalTraining, seed_of

BATCH_SECONDS = 12.1  # four utterances of 3 s, and rounding


@dataclass(frozen=True)
class Case:
    """A model, clients, and how they train."""

    config: ModelConfig
    num_tokens: int
    store: FeatureStore
    clients: dict[str, np.ndarray]
    local: LocalTraining
    precision: str = "float32"

    def runtime(self, device: torch.device) -> ClientRuntime:
        torch.manual_seed(0)
        model = self.config.build(self.store.dim, self.num_tokens)
        base = {name: p.detach().clone().to(device) for name, p in model.named_parameters()}
        return ClientRuntime(self.store, TOKENS, model, base, None, device, self.precision)


def in_all_precisions(
    cases: dict[str, Callable[[], Case]], device: torch.device
) -> dict[str, Callable[[], Case]]:
    """Return the cases in each precision of the device; names of those in float32 stay as they are."""

    def changed(case: Callable[[], Case], precision: str) -> Case:
        return replace(case(), precision=precision)

    others = [p for p in PRECISIONS if p != "float32"] if device.type == "cuda" else []
    return cases | {f"{n}-{p}": partial(changed, case, p) for n, case in cases.items() for p in others}


def noise_case(config: ModelConfig, num_tokens: int, folder: Path, num_clients: int, steps: int) -> Case:
    """Clients of `steps` batches of four utterances of 3 s: log-mel frames every 10 ms."""
    store = make_store(folder, num_clients, 4 * steps, (3.0, 3.0), dim=80, hop=160)
    clients = BySpeaker()(store, np.arange(len(store)), 0)
    return Case(config, num_tokens, store, clients, LocalTraining(lr=0.05, batch_seconds=BATCH_SECONDS))


def real_cases(corpus: Path, encoder: Path) -> dict[str, Callable[[], Case]]:
    """Sessions of the pool's speakers on a frozen encoder: the recipe's model, clients of unequal size."""
    store = compute_features(Corpus.open(corpus), OnnxEncoder(str(encoder)))
    clients = BySession()(store, store.where("pool"), 0)

    def case(batch_seconds: float) -> Case:
        local = LocalTraining(lr=0.05, batch_seconds=batch_seconds)
        return Case(CtcConfig(), TOKENS.size, store, clients, local)

    return {"real": lambda: case(BATCH_SECONDS), "real-60": lambda: case(60.0)}


def limit(runtime: ClientRuntime, case: Case, task: Task) -> Update:
    """One model, one batch of everybody's utterances a step, the same SGD."""
    plans = [
        list(Client(name, own, runtime).steps(case.local, seed_of(task)))
        for name, own in case.clients.items()
    ]
    parameters = runtime.load(task.tensors)
    runtime.model.train()
    for number in range(max(map(len, plans))):
        steps = [plan[number] for plan in plans if number < len(plan)]
        places = np.concatenate([step.indices for step in steps])
        keys = runtime.keys([steps[0].noise], places[None]).flatten()
        batch = runtime.feed(places)
        with runtime.products(batch):
            with noise_from(keys), runtime.autocast():
                losses = runtime.model.losses(batch) / batch.token_lengths
            grads = list(torch.autograd.grad(losses.mean(), parameters))
        with torch.no_grad():
            clip(grads, case.local.clip_norm)
            torch._foreach_add_(parameters, grads, alpha=-case.local.lr)
    return Update({})


def count_padding(name: str, case: Case) -> None:
    """Frames that are computed for one of speech, as they are launched and with one launch for each step."""
    runtime = replace(case, precision="float32").runtime(torch.device("cpu"))
    clients = [Client(client, own, runtime) for client, own in case.clients.items()]
    wanted = LocalSteps(runtime.base, case.local, seed=1)
    plans = [Plan(client, list(client.steps(case.local, 1)), wanted) for client in clients]
    speech = sum(int(case.store.num_frames[step.indices].sum()) for plan in plans for step in plan.steps)
    number_of_steps = range(max(len(plan.steps) for plan in plans))
    at_work = [np.array([p for p, plan in enumerate(plans) if n < len(plan.steps)]) for n in number_of_steps]
    ways = {
        "one a step": [Launch(number, members) for number, members in enumerate(at_work)],
        "as they are": list(launches(plans, Footprint(), max_clients=256)),
    }
    rows = []
    for way, found in ways.items():
        padded = 0
        for launch in found:
            shapes = np.array([plans[place].shapes[launch.number] for place in launch.members])
            padded += len(shapes) * int(shapes.max(axis=0).prod())
        rows.append([name, way, str(len(found)), f"{padded / speech:.2f}"])
    print_table(["case", "launches", "number", "frames for one of speech"], rows)


def folded(worker: Worker, task: Task, names: list[str]) -> Update:
    return LocalPool(worker).reduce(task, names, Uniform())


def timed(work: Callable[[], Update], repeats: int, device: torch.device) -> tuple[list[float], float]:
    """Seconds of each repeat after two to warm up, and peak memory in GiB."""
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    work(), work()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    seconds = []
    for _ in range(repeats):
        wait()
        start = time.perf_counter()
        work()
        wait()
        seconds.append(time.perf_counter() - start)
    return seconds, torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else 0.0


def kernel_seconds(work: Callable[[], Update], device: torch.device) -> float:
    """How long the GPU's kernels run in one repeat: what is left when nothing waits for launches."""
    if device.type != "cuda":
        return 0.0
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        work()
        torch.cuda.synchronize()
    return sum(event.self_device_time_total for event in profiler.key_averages()) / 1e6


def difference(one: Tensors, other: Tensors) -> float:
    """Of two updates, relative to their size."""
    apart = sum(float((one[name] - other[name]).double().square().sum()) for name in one)
    return float((apart / sum(float(t.double().square().sum()) for t in one.values())) ** 0.5)


def measure(name: str, case: Case, device: torch.device, repeats: int) -> dict[str, Any]:
    runtime, names = case.runtime(device), list(case.clients)
    task = Task("train", dict(runtime.base), {**case.local.to_task(), "round": 0, "seed": 1})
    some = names[:: max(1, len(names) // 8)]  # for a factor, of clients of all sizes
    factor = sum(len(case.clients[name]) for name in names) / sum(len(case.clients[name]) for name in some)
    workers = [StackedWorker(runtime, case.clients, graphs=graphs) for graphs in (False, True)]
    ways: dict[str, Callable[[], Update]] = {
        "alone": lambda: folded(SpeechWorker(runtime, case.clients), task, some),
        "stacked": lambda: folded(workers[0], task, names),
        "graphs": lambda: folded(workers[1], task, names),
        "limit": lambda: limit(runtime, case, task),
    }
    result: dict[str, Any] = {"parameters": sum(t.numel() for t in runtime.base.values())}
    result["clients"] = len(names)
    for way, work in ways.items():
        seconds, peak = timed(work, max(1, repeats // 3) if way == "alone" else repeats, device)
        scale = factor if way == "alone" else 1.0
        result[way] = {"seconds": scale * float(np.median(seconds)), "all": seconds, "peak_gib": peak}
        result[way]["kernel_seconds"] = scale * kernel_seconds(work, device)
    rows = []
    for way in ways:
        own = result[way]
        own["over_alone"] = result["alone"]["seconds"] / own["seconds"]
        own["of_limit"] = result["limit"]["seconds"] / own["seconds"]
        rows.append(
            [name, way, f"{1000 * own['seconds']:.0f}", f"{own['over_alone']:.1f}", f"{own['of_limit']:.2f}"]
        )
        rows[-1] += [f"{1000 * own['kernel_seconds']:.0f}", f"{own['peak_gib']:.1f}"]
    print_table(["case", "way", "ms", "times alone", "of the limit", "kernels ms", "GiB"], rows)
    result["difference"] = difference(ways["alone"]().mean, folded(workers[1], task, some).mean)
    print(f"stacked and alone differ by {result['difference']:.1e} of the update\n", flush=True)
    return result


def noise_cases(folder: Path, quick: bool) -> dict[str, Callable[[], Case]]:
    num_clients, steps = (3, 2) if quick else (64, 4)
    conformer: ModelConfig = CtcConfig(ConformerConfig(num_layers=6, stack=4))
    las: ModelConfig = LasConfig(BlstmConfig(num_layers=4))
    if quick:
        conformer, las = CtcConfig(ConformerConfig(16, 1, 2, stack=4)), LasConfig(BlstmConfig(8, 1), 8, 1)
    return {
        "conformer": lambda: noise_case(conformer, 1000, folder / "conformer", num_clients, steps),
        "las": lambda: noise_case(las, 1000, folder / "las", num_clients, steps),
    }


def main() -> None:
    parser = argument_parser(__doc__, "stacked")
    parser.add_argument("--corpus", type=Path, help="an imported corpus: cases with real clients")
    parser.add_argument("--encoder", type=Path, help="the ONNX encoder of its features")
    parser.add_argument("--only", nargs="*", default=[], help="these cases alone")
    parser.add_argument("--padding", action="store_true", help="count what padding costs, train nothing")
    arguments = parser.parse_args()
    device = choose_device("auto")
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        cases = noise_cases(Path(folder), arguments.quick)
        if arguments.corpus:
            cases |= real_cases(arguments.corpus, arguments.encoder)
        for name, case in in_all_precisions(cases, device).items():
            if arguments.only and name not in arguments.only:
                continue
            if arguments.padding:
                count_padding(name, case())
            else:
                results[name] = measure(name, case(), device, 1 if arguments.quick else 6)
                write_result(arguments, {"device": device_name(device), "cases": results})


if __name__ == "__main__":
    main()
