"""Two processes, one of them slow: shares that are fixed before a round, or groups for who is free.

    python benchmarks/dispatch.py --slowdown 3

Both processes train clients of noise with a Conformer; one sleeps after each client, so long that it takes
`--slowdown` times as long. Rounds of both pools take turns, and the medians of the rounds are compared. The
clients are of unequal length: with --slowdown 1, the table shows the gain from that alone.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import TOKENS, argument_parser, make_store, print_table, write_result

from antiphon.algorithms.fedavg import hierarchical
from antiphon.clients.client import ClientRuntime
from antiphon.clients.worker import SpeechWorker
from antiphon.core import Pool, Task, Update
from antiphon.models.conformer import ConformerConfig
from antiphon.models.ctc import CtcConfig
from antiphon.pools.distributed import DistributedPool
from antiphon.pools.rendezvous import find_rank, join
from antiphon.pools.spawning import run_processes
from antiphon.pools.torch_group import TorchGroup
from antiphon.tasks.local_training import LocalTraining

DIM = 288  # values of a frame, as a frozen encoder gives them


@dataclass
class Slowed:
    """A worker that sleeps after each client."""

    worker: SpeechWorker
    slowdown: float

    def run(self, task: Task, clients: Sequence[str]) -> Iterator[Update]:
        for name in clients:
            began = time.perf_counter()
            yield from self.worker.run(task, [name])
            time.sleep((self.slowdown - 1) * (time.perf_counter() - began))


def make_worker(folder: Path, num_clients: int, dim: int) -> SpeechWorker:
    store = make_store(folder / "corpus", num_clients, 4, (1.0, 8.0), DIM)
    torch.manual_seed(0)
    model: Any = CtcConfig(ConformerConfig(dim=dim, num_layers=2)).build(DIM, TOKENS.size)
    base = {name: p.detach().clone() for name, p in model.named_parameters()}
    names = store.speakers("pool")
    # Speakers of one, two, three or four utterances.
    clients = {f"speaker/{n}": store.where("pool", [n])[: 1 + k % 4] for k, n in enumerate(sorted(names))}
    return SpeechWorker(ClientRuntime(store, TOKENS, model, base), clients)


def timed(pool: Pool, task: Task, cohort: Sequence[str], group: TorchGroup) -> tuple[float, Update]:
    """Return the seconds of a round, from when both processes are ready until both have its result."""
    group.all_gather(lambda: None)
    began = time.perf_counter()
    update = pool.reduce(task, cohort, lambda report: 0.0)
    group.all_gather(lambda: None)
    return time.perf_counter() - began, update


def compare(group: TorchGroup, arguments: Any) -> dict[str, Any]:
    num_clients, dim, rounds = (8, 32, 2) if arguments.quick else (24, 144, arguments.rounds)
    with tempfile.TemporaryDirectory() as folder:
        plain = make_worker(Path(folder), num_clients, dim)
        worker = Slowed(plain, arguments.slowdown if group.rank else 1.0)
        store, clients = plain.runtime.store, plain.clients

        def seconds(client: str) -> float:
            return float(store.seconds[clients[client]].sum())

        pools: dict[str, Pool] = {
            "fixed": DistributedPool(worker, group, seconds),
            "free": group.pool(worker, seconds),
        }
        algorithm = hierarchical(LocalTraining(steps=2, batch_seconds=16.0))
        task = algorithm.task(algorithm.init(plain.runtime.base))
        cohort = sorted(clients)
        times: dict[str, list[float]] = {name: [] for name in pools}
        found: dict[str, Update] = {}
        for number in range(rounds + 1):
            for name, pool in pools.items():
                spent, found[name] = timed(pool, task, cohort, group)
                if number:  # the first round makes caches
                    times[name].append(spent)
        gaps = [(found["fixed"].mean[n] - t).abs().max().item() for n, t in found["free"].mean.items()]
    parameters = sum(p.numel() for p in plain.runtime.base.values())
    medians = {name: statistics.median(spent) for name, spent in times.items()}
    return {
        "slowdown": arguments.slowdown,
        "clients": num_clients,
        "parameters": parameters,
        "seconds": times,
        "medians": medians,
        "ratio": medians["fixed"] / medians["free"],
        "largest_difference": float(np.max(gaps)),
    }


def main() -> None:
    parser = argument_parser(__doc__, "dispatch")
    parser.add_argument("--slowdown", type=float, default=3.0, help="of the second process (default 3)")
    parser.add_argument("--rounds", type=int, default=7, help="rounds of each pool (default 7)")
    arguments = parser.parse_args()
    process = find_rank(os.environ)
    if process is None:
        sys.exit(run_processes(2))
    with join(process, "cpu", dispatch=True) as group:
        result = compare(group, arguments)
        if group.is_rank_zero:
            rows = [
                [name, f"{middle:.2f}", " ".join(f"{t:.2f}" for t in sorted(result["seconds"][name]))]
                for name, middle in result["medians"].items()
            ]
            print_table(["groups", "seconds of a round", "all rounds"], rows)
            print(f"\none process {result['slowdown']:g} times slower: {result['ratio']:.2f} times faster")
            write_result(arguments, result, "--slowdown", f"{arguments.slowdown:g}")


if __name__ == "__main__":
    main()
