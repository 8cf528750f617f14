"""Peak memory of a run with a cohort of 1,000 over one with 10, and what 10,000 clients cost to open.

Runs: the same 1,000 clients, model and number of rounds; each run in a process of its own. `peak` is what
the kernel says (VmHWM), pages of the memory-mapped features included; `anonymous` is what the process
itself holds at the end, without them.
Store: 10,000 clients; what opening it adds, what their list adds, and what reading one client then adds.
Linux only: it reads /proc/self/status.
"""

from __future__ import annotations

import gc
import json
import tempfile
import time
from collections.abc import Callable, Mapping
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
from antiphon.clients.client import Bench, Client
from antiphon.clients.worker import SpeechWorker
from antiphon.data.batches import Batch
from antiphon.data.partition import BySpeaker
from antiphon.data.store import FeatureStore
from antiphon.engine import Engine, Rounds
from antiphon.local import LocalTraining
from antiphon.models.conformer import ConformerConfig
from antiphon.models.ctc import CtcConfig
from antiphon.pools.local import LocalPool

SEED, ROUNDS = 7, 3
TINY = (0.3, 0.5)  # seconds an utterance


def run(folder: str, dim: str, cohort: str) -> dict[str, float]:
    """A few rounds with this cohort; memory at the end of them."""
    torch.manual_seed(SEED)
    store = FeatureStore.open(folder)
    model = CtcConfig(ConformerConfig(dim=int(dim))).build(store.dim, TOKENS.size)
    params = {name: p.detach().clone() for name, p in model.named_parameters()}
    everyone = BySpeaker()(store, np.arange(len(store)), SEED)
    pool = LocalPool(SpeechWorker(Bench(store, TOKENS, model, params), everyone))
    rounds = Rounds(total=ROUNDS, cohort=int(cohort), min_clients=int(cohort), valid_every=0)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as out:
        outcome = Engine(fedavg(LocalTraining()), pool, list(everyone), rounds, Path(out), SEED).run(params)
    assert outcome.state.round == ROUNDS
    num_parameters = sum(tensor.numel() for tensor in params.values())
    return {**memory_mib(), "seconds": time.perf_counter() - began, "num_parameters": num_parameters}


def open_store(folder: str) -> dict[str, float]:
    """What each step adds to this process's memory, in MiB, and the size of the store."""
    marks = [_settled()]
    store = FeatureStore.open(folder)
    marks.append(_settled())
    everyone = BySpeaker()(store, np.arange(len(store)), SEED)
    marks.append(_settled())
    first, middle = (sorted(everyone)[place] for place in (0, len(everyone) // 2))
    model = CtcConfig(ConformerConfig(dim=8, num_layers=1)).build(store.dim, TOKENS.size)
    bench = Bench(store, TOKENS, model, dict(model.named_parameters()))
    read_client(Client(first, everyone[first], bench))  # the code that reads is in memory from here on
    marks.append(_settled())
    batch = read_client(Client(middle, everyone[middle], bench))
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
    return client.batch(client.usable)


def _settled() -> Mapping[str, float]:
    gc.collect()
    return memory_mib()


CASES: dict[str, Callable[..., dict[str, float]]] = {"run": run, "open": open_store}


def measure(quick: bool, folder: Path) -> dict[str, Any]:
    clients, many, dim, width = (20, 100, 16, "16") if quick else (1000, 10_000, 288, "256")
    store = make_store(folder / "runs", clients, 1, TINY, dim)
    small, large = (
        in_fresh_process(__file__, ["run", str(store.folder), width, str(cohort)]) for cohort in (10, clients)
    )
    big_store = make_store(folder / "many", many, 2, TINY, dim)
    return {
        "num_clients": clients,
        "rounds": ROUNDS,
        "cohorts": {"10": small, str(clients): large},
        "peak_ratio": large["peak"] / small["peak"],
        "anonymous_ratio": large["anonymous"] / small["anonymous"],
        "store": in_fresh_process(__file__, ["open", str(big_store.folder)]),
    }


def main() -> None:
    arguments = parse_arguments(__doc__, "memory")
    torch.set_num_threads(1)
    if arguments.case:
        kind, *values = arguments.case
        print(json.dumps(CASES[kind](*values)))
        return
    with tempfile.TemporaryDirectory() as folder:
        result = measure(arguments.quick, Path(folder))
    rows = [
        [cohort, *(f"{run[key]:.1f}" for key in ("peak", "anonymous", "file", "seconds"))]
        for cohort, run in result["cohorts"].items()
    ]
    ratios = [f"{result['peak_ratio']:.3f}", f"{result['anonymous_ratio']:.3f}"]
    print_table(
        ["cohort", "peak MiB", "anonymous at the end", "mapped at the end", "seconds"],
        [["ratio", *ratios, "", ""], *rows],
    )
    print_table(["store", "figure"], [[key, f"{value:.6g}"] for key, value in result["store"].items()])
    write_result(arguments, result)


if __name__ == "__main__":
    main()
