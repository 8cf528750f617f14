"""Stacked clients with the kernels of `models.kernels` and without them: are both the same, and how fast?

  check      updates of a few unequal clients, one part of the kernels at a time and all of them: how far from
             PyTorch's own operations, and how far both are from float32
  speed      a round of 64 Conformers × 4 steps × 4 utterances of 3 s (`stacked.py`), in each precision, with
             CUDA graphs, `plain` and `fused` in turn
  unequal    utterances of 1 to 12 s in batches of 12 s, where shapes hardly repeat; one client after another
             is timed on an eighth of the clients
  profile    which kernels a round consists of

`--without` turns parts off; a part that fails in `check` is left out of what follows.
"""

from __future__ import annotations

import cProfile
import io
import logging
import pstats
import subprocess
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import TOKENS, argument_parser, make_store, print_table, write_result
from stacked import Case, difference, folded, noise_case
from torch import Tensor
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from antiphon.clients.client import Client
from antiphon.clients.precision import PRECISIONS
from antiphon.clients.stacked import grouping, stacked_worker
from antiphon.clients.stacked.client_stack import Stack
from antiphon.clients.stacked.grouping import Launch, Plan
from antiphon.clients.stacked.stacked_worker import StackedTrainer, StackedWorker, Window, stacked_batches
from antiphon.clients.worker import SpeechWorker
from antiphon.core import RunningMean, Task, Update
from antiphon.data.partition import BySpeaker
from antiphon.experiment.preparation import choose_device, device_name
from antiphon.models import stacked_products
from antiphon.models.conformer import ConformerConfig
from antiphon.models.ctc import CtcConfig
from antiphon.models.model import ModelConfig
from antiphon.models.transducer import TransducerConfig
from antiphon.tasks.local_training import LocalSteps, LocalTraining

PARTS = tuple(sorted(stacked_products.FUSED))
STARTED = time.perf_counter()
BATCH_SECONDS = 12.1


def say(text: str) -> None:
    print(f"[{time.perf_counter() - STARTED:5.1f} s] {text}", flush=True)


@contextmanager
def fused(parts: set[str]) -> Iterator[None]:
    """Compute these parts by kernels, and no others."""
    before = set(stacked_products.FUSED)
    stacked_products.FUSED.clear()
    stacked_products.FUSED.update(parts)
    try:
        yield
    finally:
        stacked_products.FUSED.clear()
        stacked_products.FUSED.update(before)


# --- Do they agree? --------------------------------------------------------------------------------


def check_cases(folder: Path, quick: bool) -> dict[str, Case]:
    dim = 32 if quick else 256
    small = ConformerConfig(dim, num_layers=1 if quick else 2, num_heads=2 if quick else 4, stack=4)
    store = make_store(
        folder / "check", 3, 2 if quick else 4, (0.3, 1.0) if quick else (1.0, 3.0), dim=80, hop=160
    )
    clients = BySpeaker()(store, np.arange(len(store)), 0)
    configs: dict[str, ModelConfig] = {
        "ctc": CtcConfig(small),
        "ctc, long": CtcConfig(replace(small, stack=1, num_layers=1)),
        "transducer": TransducerConfig(small, prediction_dim=64, joint_dim=64),
    }
    local = LocalTraining(lr=0.05, batch_seconds=0.0)
    return {name: Case(config, TOKENS.size, store, clients, local) for name, config in configs.items()}


def delta(case: Case, device: torch.device, parts: set[str]) -> Tensor:
    """The change of all clients' parameters in two steps, all clients in one launch."""
    runtime = case.runtime(device)
    runtime.model.train()
    wanted = LocalSteps(runtime.base, case.local, seed=1)
    clients = [Client(name, own, runtime) for name, own in case.clients.items()]
    plans = [Plan(client, list(client.steps(case.local, 1)), wanted) for client in clients]
    everyone = [Launch(0, np.arange(len(plans)))] * 2
    stack = Stack(runtime, runtime.base, len(plans), graphs=False)
    with fused(parts):
        for batch in stacked_batches(runtime, plans, everyone):
            stack.step(batch, case.local)
    return stack.deltas().double()


def try_wide_products(device: torch.device) -> None:
    """Find out whether products of bfloat16 can be written as float32, into rows; else copy them."""
    if device.type != "cuda":
        return
    rows = torch.zeros(3, 5000, device=device)
    out = rows[:, 32 : 32 + 64 * 32].view(3, 64, 32)
    left, right = (
        torch.randn(3, 64, 48, device=device).bfloat16(),
        torch.randn(3, 48, 32, device=device).bfloat16(),
    )
    try:
        stacked_products.multiply_into(left, right, out)
        say(f"products of bfloat16 in float32: off by {apart(out, left.float() @ right.float()):.1e}")
    except Exception as error:
        say(f"no products of bfloat16 in float32: {type(error).__name__}: {error}")

        def copied(left: Tensor, right: Tensor, out: Tensor) -> None:
            out.copy_(torch.bmm(left, right))

        setattr(stacked_products, "multiply_into", copied)  # noqa: B010


def apart(one: Tensor, other: Tensor) -> float:
    return float(torch.linalg.vector_norm(one - other) / torch.linalg.vector_norm(other))


def check(case: Case, name: str, device: torch.device, parts: set[str]) -> tuple[list[list[str]], set[str]]:
    """Rows of the table, and the parts that failed."""
    rows, failed = [], set()
    exact = delta(case, device, set())
    for precision in PRECISIONS if device.type == "cuda" else PRECISIONS[:1]:
        own = replace(case, precision=precision)
        plain = delta(own, device, set())
        alone = [{part} for part in sorted(parts)] if precision != "tf32" and name == "ctc" else []
        for some in [*alone, parts - failed]:
            label = "all" if some == parts - failed else "".join(some)
            try:
                found = delta(own, device, some)
            except Exception:
                say(f"FAILED: {name}, {precision}, {label}")
                traceback.print_exc()
                failed |= some if len(some) == 1 else set()
                continue
            distances = (apart(found, plain), apart(found, exact), apart(plain, exact))
            rows.append([name, precision, label, *(f"{distance:.1e}" for distance in distances)])
        say(f"checked {name} in {precision}")
    return rows, failed


# --- How fast are they? ----------------------------------------------------------------------------


def products_per_frame(config: ConformerConfig, input_dim: int, num_tokens: int, num_frames: int) -> int:
    """Multiplications and additions of matrix products for an encoded frame, forward."""
    dim, inner = config.dim, config.feed_forward_multiplier * config.dim
    layer = 2 * 2 * dim * inner + 4 * dim * dim + 3 * dim * dim + 2 * num_frames * dim
    return 2 * (config.num_layers * layer + config.stack * input_dim * dim + dim * num_tokens)


def teraflop(case: Case) -> float:
    """Of a round: all products forward, and twice as much backward; padding is not counted."""
    assert isinstance(case.config, CtcConfig)
    config = case.config.encoder
    assert isinstance(config, ConformerConfig)
    total = 0
    for own in case.clients.values():
        for frames in case.store.num_frames[own].tolist():
            encoded = -(-int(frames) // config.stack)
            total += encoded * products_per_frame(config, case.store.dim, case.num_tokens, encoded)
    return 3 * total / 1e12


def unequal_case(folder: Path, num_clients: int, num_utterances: int) -> Case:
    """A frozen encoder's features, the default model, utterances of 1 to 12 s."""
    store = make_store(folder / "unequal", num_clients, num_utterances, (1.0, 12.0), dim=288)
    clients = BySpeaker()(store, np.arange(len(store)), 0)
    return Case(CtcConfig(), TOKENS.size, store, clients, LocalTraining(lr=0.05, batch_seconds=BATCH_SECONDS))


def task_of(case: Case, base: dict[str, Tensor]) -> Task:
    return Task("train", dict(base), {**case.local.to_task(), "round": 0, "seed": 1})


def seconds_of(work: Callable[[], Update], device: torch.device) -> float:
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    wait()
    start = time.perf_counter()
    work()
    wait()
    return time.perf_counter() - start


def profiled(work: Callable[[], Update], device: torch.device, show: int) -> dict[str, Any]:
    """Seconds and number of kernels of one round; prints those that take most."""
    if device.type != "cuda":
        return {}
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        work()
        torch.cuda.synchronize()
    events = sorted(profiler.key_averages(), key=lambda event: -event.self_device_time_total)
    kernels = [event.time_range for event in profiler.events() if event.device_type == DeviceType.CUDA]
    spans = sorted((kernel.start, kernel.end) for kernel in kernels)
    busy, until = 0.0, spans[0][0]
    for begin, end in spans:
        busy, until = busy + max(0.0, end - max(begin, until)), max(until, end)
    rows = [
        [f"{event.self_device_time_total / 1000:.2f}", str(event.count), event.key[:110]]
        for event in events[:show]
    ]
    if rows:
        print_table(["ms", "launches", "kernel"], rows)
    total = sum(event.self_device_time_total for event in events) / 1e6
    span = {"busy_seconds": busy / 1e6, "span_seconds": (until - spans[0][0]) / 1e6}
    return {"kernel_seconds": total, "launches": sum(event.count for event in events), **span}


def phases(work: Callable[[], Update], device: torch.device) -> dict[str, float]:
    """Seconds of a round in which Python plans, queues steps, and folds; the rest waits for the GPU."""
    parts: list[tuple[Any, str]] = [(Window, "add"), (stacked_worker, "launches"), (Stack, "restart")]
    parts += [(Stack, "step"), (Stack, "deltas"), (StackedTrainer, "_launch"), (RunningMean, "add")]
    seconds = {f"{owner.__name__.rpartition('.')[2]}.{name}": 0.0 for owner, name in parts}
    originals = [getattr(owner, name) for owner, name in parts]

    def timed(label: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **named: Any) -> Any:
            start = time.perf_counter()
            try:
                found = function(*arguments, **named)
                return list(found) if label.endswith("launches") else found
            finally:
                seconds[label] += time.perf_counter() - start

        return run

    for (owner, name), label, function in zip(parts, seconds, originals, strict=True):
        setattr(owner, name, timed(label, function))
    try:
        seconds["round"] = seconds_of(work, device)
    finally:
        for (owner, name), function in zip(parts, originals, strict=True):
            setattr(owner, name, function)
    return seconds


def with_other_costs(work: Callable[[], Update], device: torch.device) -> dict[str, float]:
    """Seconds of a round, if a launch is taken to cost other numbers of frames."""
    before, found = grouping.LAUNCH, {}
    for frames in (before // 2, before, 2 * before, 4 * before, 8 * before):
        grouping.LAUNCH = frames
        work()
        found[str(frames)] = min(seconds_of(work, device) for _ in range(2))
    grouping.LAUNCH = before
    say("ms by the cost of a launch: " + ", ".join(f"{cost} {1000 * s:.0f}" for cost, s in found.items()))
    return found


def on_the_host(work: Callable[[], Update], device: torch.device) -> None:
    """Where Python spends a round. It waits for the GPU in `tolist`."""
    profiler = cProfile.Profile()
    profiler.enable()
    seconds_of(work, device)
    profiler.disable()
    for order, count in (("tottime", 16), ("cumulative", 40)):
        told = io.StringIO()
        pstats.Stats(profiler, stream=told).sort_stats(order).print_stats(count)
        lines = told.getvalue().splitlines()
        begin = next(place for place, line in enumerate(lines) if "ncalls" in line)
        print("\n".join(line[:130] for line in lines[begin:] if line), flush=True)


def measure(
    name: str,
    case: Case,
    device: torch.device,
    parts: set[str],
    repeats: int,
    show: int,
    with_alone: bool,
    with_costs: bool,
) -> dict[str, Any]:
    """Rounds of each way in turn, after three to warm up."""
    runtime, names = case.runtime(device), list(case.clients)
    task = task_of(case, dict(runtime.base))
    ways: dict[str, set[str]] = {"plain": set(), "fused": parts, "fused, no graphs": parts}
    workers = {way: StackedWorker(runtime, case.clients, graphs=way != "fused, no graphs") for way in ways}

    def work(way: str) -> Update:
        with fused(ways[way]):
            return folded(workers[way], task, names)

    updates = {way: [work(way) for _ in range(3)][-1] for way in ways}
    say(f"{name}: warm")
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(repeats):
        for way in ways:
            seconds[way].append(seconds_of(lambda way=way: work(way), device))
    result: dict[str, Any] = {"teraflop": teraflop(case), "clients": len(names), "precision": case.precision}
    rows = []
    for way in ways:
        own = result[way] = {"all": seconds[way], "median": float(np.median(seconds[way]))}
        own["best"] = min(seconds[way])
        own |= profiled(lambda way=way: work(way), device, show if way == "fused" else 0)
        speed = result["teraflop"] / own["median"]
        rows.append([name, way, f"{1000 * own['median']:.1f}", f"{1000 * own['best']:.1f}", f"{speed:.1f}"])
        rows[-1] += [f"{1000 * own.get(f'{kind}_seconds', 0):.1f}" for kind in ("kernel", "busy", "span")]
        rows[-1].append(str(own.get("launches", 0)))
    own = result["fused"]["phases"] = phases(lambda: work("fused"), device)
    say(f"{name}, fused, ms: " + ", ".join(f"{label} {1000 * spent:.1f}" for label, spent in own.items()))
    if with_costs:
        result["launch_costs"] = with_other_costs(lambda: work("fused, no graphs"), device)
    if show > 0 and case.precision == "tf32":
        on_the_host(lambda: work("fused"), device)
    result["difference"] = difference(updates["plain"].mean, updates["fused"].mean)
    if with_alone:
        some = names[:: max(1, len(names) // 8)]
        share = sum(len(case.clients[n]) for n in names) / sum(len(case.clients[n]) for n in some)
        alone = SpeechWorker(runtime, case.clients)
        folded(alone, task, some[:2])
        own = result["alone"] = {"median": share * seconds_of(lambda: folded(alone, task, some), device)}
        rows.append([name, "alone", f"{1000 * own['median']:.0f}", *[""] * 6])
    print_table(
        ["case", "way", "median ms", "best ms", "TFLOP/s", "kernels ms", "busy ms", "span ms", "launches"],
        rows,
    )
    say(f"{name}: fused and plain differ by {result.get('difference', 0):.1e} of the update")
    return result


def gpu_state(device: torch.device) -> dict[str, str]:
    """Clocks and power now."""
    if device.type != "cuda":
        return {}
    asked = "clocks.sm,clocks.mem,clocks.max.sm,power.draw,power.limit,temperature.gpu,pstate"
    command = ["nvidia-smi", f"--query-gpu={asked}", "--format=csv,noheader"]
    told = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return dict(zip(asked.split(","), told.split(", "), strict=False))


def main() -> None:
    parser = argument_parser(__doc__, "stacked_fused")
    parser.add_argument("--only", nargs="*", default=["check", "speed", "profile", "unequal"])
    parser.add_argument("--without", nargs="*", default=[], choices=PARTS, help="parts that are PyTorch's")
    parser.add_argument("--precisions", nargs="*", default=list(PRECISIONS))
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    device, quick = choose_device("auto"), arguments.quick
    parts = set(PARTS) - set(arguments.without)
    try_wide_products(device)
    result: dict[str, Any] = {"device": device_name(device), "parts": sorted(parts), "gpu": gpu_state(device)}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if "check" in arguments.only:
            rows: list[list[str]] = []
            for model, case in check_cases(folder, quick).items():
                more, failed = check(case, model, device, parts)
                rows, parts = rows + more, parts - failed
                result.setdefault("failed", []).extend(sorted(failed))
            print_table(
                ["model", "precision", "parts", "from plain", "from float32", "plain from float32"], rows
            )
            result["check"] = rows
        precisions = arguments.precisions if device.type == "cuda" else ["float32"]
        cases: dict[str, Case] = {}
        if "speed" in arguments.only:
            config = ConformerConfig(32, 1, 2, stack=4) if quick else ConformerConfig(num_layers=6, stack=4)
            case = noise_case(CtcConfig(config), 1000, folder / "conformer", *((3, 2) if quick else (64, 4)))
            cases |= {
                f"conformer-{precision}": replace(case, precision=precision) for precision in precisions
            }
        if "unequal" in arguments.only:
            case = unequal_case(folder, *((2, 1) if quick else (64, 12)))
            cases |= {f"unequal-{precision}": replace(case, precision=precision) for precision in precisions}
        for label, case in cases.items():
            show = 20 if "profile" in arguments.only and case.precision != "float32" else 0
            alone = label == "unequal-float32"
            repeats = arguments.repeats if "unequal" not in label else 3
            repeats, costs = 1 if quick else repeats, label.startswith("unequal")
            result[label] = measure(label, case, device, parts, repeats, show, alone, costs)
            result[label]["gpu"] = gpu_state(device)
            say(f"GPU: {result[label]['gpu']}")
            torch.cuda.empty_cache()
            write_result(arguments, result)


if __name__ == "__main__":
    main()
