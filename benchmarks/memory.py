"""Peak memory and seconds a round against the cohort (10, 100, 1,000) and against the number of clients.

Cohorts: the same 1,000 clients, model and number of rounds. Clients: 100, 10,000 and 100,000 of the same
kind, ten of them a round, a small model, so that whatever grows with their number would show. Every run is in
a process of its own; runs against the number of clients are repeated in turn, and seconds are medians.
`peak` is what the kernel says (VmHWM), pages of the memory-mapped features included; `anonymous` is what the
process itself holds at the end, without them; `gpu` is the peak of a GPU if there is one, where clients are
trained as in a run: as many at once as its memory allows.
Store: the largest of them; what opening it adds, what the list of clients adds, and then reading one client.
Linux only: it reads /proc/self/status.
"""

from __future__ import annotations

import gc
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import (
    TOKENS,
    in_fresh_process,
    make_store,
    memory_mib,
    parse_arguments,
    print_table,
    write_result,
)

from antiphon.algorithms.fedavg import fedavg
from antiphon.clients.client import Client, ClientRuntime
from antiphon.clients.stacked.stacked_worker import StackedWorker
from antiphon.clients.worker import SpeechWorker
from antiphon.data.batches import Batch, collate
from antiphon.data.partition import BySpeaker
from antiphon.data.store import FeatureStore
from antiphon.engine import Engine, Listener, Rounds
from antiphon.models.conformer import ConformerConfig
from antiphon.models.ctc import CtcConfig
from antiphon.pools.local import LocalPool
from antiphon.tasks.local_training import LocalTraining

SEED = 7
TINY = (0.3, 0.5)  # seconds an utterance
TINIEST = (0.1, 0.2)  # where there are 100,000 of them


class Laps(Listener):
    """Remembers when each round ended."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def finished(self, entry: Mapping[str, Any], clock: Mapping[str, Any]) -> None:
        self.times.append(time.perf_counter())


def run(folder: str, dim: str, cohort: str, total: str) -> dict[str, float]:
    """Rounds with this cohort: memory at the end of them, and seconds a round (the first is not counted)."""
    torch.manual_seed(SEED)
    store, device = FeatureStore.open(folder), "cuda" if torch.cuda.is_available() else "cpu"
    model = CtcConfig(ConformerConfig(dim=int(dim))).build(store.dim, TOKENS.size)
    params = {name: p.detach().to(device, copy=True) for name, p in model.named_parameters()}
    everyone = BySpeaker()(store, np.arange(len(store)), SEED)
    runtime = ClientRuntime(store, TOKENS, model, params, device=device)
    worker = StackedWorker(runtime, everyone) if device == "cuda" else SpeechWorker(runtime, everyone)
    pool = LocalPool(worker)
    rounds = Rounds(total=int(total), cohort=int(cohort), min_clients=int(cohort), valid_every=0)
    laps = Laps()
    with tempfile.TemporaryDirectory() as out:
        engine = Engine(fedavg(LocalTraining()), pool, list(everyone), rounds, Path(out), SEED, listener=laps)
        assert engine.run(params).state.round == rounds.total
    return {
        **memory_mib(),
        "gpu": torch.cuda.max_memory_allocated() / 2**20 if device == "cuda" else 0.0,
        "seconds_a_round": statistics.median(after - before for before, after in pairwise(laps.times)),
        "num_parameters": sum(tensor.numel() for tensor in params.values()),
    }


def open_store(folder: str) -> dict[str, float]:
    """What each step adds to this process's memory, in MiB, and the size of the store."""
    marks = [_settled()]
    store = FeatureStore.open(folder)
    marks.append(_settled())
    everyone = BySpeaker()(store, np.arange(len(store)), SEED)
    marks.append(_settled())
    first, middle = (sorted(everyone)[place] for place in (0, len(everyone) // 2))
    model = CtcConfig(ConformerConfig(dim=8, num_layers=1)).build(store.dim, TOKENS.size)
    runtime = ClientRuntime(store, TOKENS, model, dict(model.named_parameters()))
    read_client(Client(first, everyone[first], runtime))  # the code that reads is in memory from here on
    marks.append(_settled())
    batch = read_client(Client(middle, everyone[middle], runtime))
    marks.append(_settled())
    opened, listed, _, read = (
        {key: after[key] - before[key] for key in ("anonymous", "file")} for before, after in pairwise(marks)
    )
    return {
        "num_clients": len(everyone),
        "num_utterances": len(store),
        "store_mib": sum(path.stat().st_size for path in store.folder.iterdir()) / 2**20,
        "open_mib": opened["anonymous"] + opened["file"],
        "list_of_clients_mib": listed["anonymous"] + listed["file"],
        "one_client_mib": batch.features.numel() * 2 / 2**20,  # on disk, as float16
        "read_one_client_mib": read["anonymous"] + read["file"],
    }


def read_client(client: Client) -> Batch:
    return collate(client.runtime.store, client.usable, client.runtime.tokens.encode)


def _settled() -> Mapping[str, float]:
    gc.collect()
    return memory_mib()


CASES: dict[str, Callable[..., dict[str, float]]] = {"run": run, "open": open_store}


@dataclass(frozen=True)
class Size:
    """How much is done."""

    dim: int  # of a feature
    num_clients: int  # that cohorts are drawn from
    cohorts: tuple[int, ...]
    width: int  # of the model
    rounds: int
    populations: tuple[int, ...]
    population_cohort: int
    population_width: int
    population_rounds: int
    repeats: int


FULL = Size(288, 1000, (10, 100, 1000), 256, 3, (100, 10_000, 100_000), 10, 32, 21, 5)
QUICK = Size(16, 20, (10, 20), 16, 2, (20, 100), 10, 16, 3, 1)


def measure(size: Size, folder: Path) -> dict[str, Any]:
    store = make_store(folder / "cohorts", size.num_clients, 1, TINY, size.dim)
    cohorts = {
        str(cohort): in_fresh_process(
            __file__, ["run", str(store.folder), str(size.width), str(cohort), str(size.rounds)]
        )
        for cohort in size.cohorts
    }
    populations, largest = measure_populations(size, folder)
    return {
        "num_clients": size.num_clients,
        "rounds": size.rounds,
        "cohorts": cohorts,
        "peak_ratio": ratio(cohorts, "peak"),
        "anonymous_ratio": ratio(cohorts, "anonymous"),
        "population_cohort": size.population_cohort,
        "populations": populations,
        "population_peak_ratio": ratio(populations, "peak"),
        "population_seconds_ratio": ratio(populations, "seconds_a_round"),
        "store": in_fresh_process(__file__, ["open", str(largest.folder)]),
    }


def measure_populations(size: Size, folder: Path) -> tuple[dict[str, dict[str, float]], FeatureStore]:
    """By number of clients, medians of all that was found; and the largest store."""
    stores = {num: make_store(folder / str(num), num, 1, TINIEST, size.dim) for num in size.populations}
    found: dict[int, list[dict[str, float]]] = {num: [] for num in stores}
    for _ in range(size.repeats):
        for num, store in stores.items():
            options = [size.population_width, size.population_cohort, size.population_rounds]
            found[num].append(in_fresh_process(__file__, ["run", str(store.folder), *map(str, options)]))
    medians = {
        str(num): {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        for num, runs in found.items()
    }
    return medians, stores[max(stores)]


def ratio(runs: Mapping[str, Mapping[str, float]], key: str) -> float:
    """Of the last run over the first."""
    first, *_, last = runs.values()
    return last[key] / first[key]


COLUMNS = {
    "peak": "peak MiB",
    "anonymous": "anonymous at the end",
    "file": "mapped at the end",
    "gpu": "GPU MiB",
    "seconds_a_round": "seconds a round",
}


def print_runs(name: str, runs: Mapping[str, Mapping[str, float]]) -> None:
    rows = [[number, *(f"{run[key]:.4g}" for key in COLUMNS)] for number, run in runs.items()]
    ratios = [f"{ratio(runs, key):.3f}" if next(iter(runs.values()))[key] else "" for key in COLUMNS]
    print_table([name, *COLUMNS.values()], [*rows, ["last / first", *ratios]])


def main() -> None:
    arguments = parse_arguments(__doc__, "memory")
    torch.set_num_threads(1)
    if arguments.case:
        kind, *values = arguments.case
        print(json.dumps(CASES[kind](*values)))
        return
    with tempfile.TemporaryDirectory() as folder:
        result = measure(QUICK if arguments.quick else FULL, Path(folder))
    print_runs("cohort", result["cohorts"])
    print_runs("clients", result["populations"])
    print_table(["store", "figure"], [[key, f"{value:.6g}"] for key, value in result["store"].items()])
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    write_result(arguments, {"device": device, **result})


if __name__ == "__main__":
    main()
