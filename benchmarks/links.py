"""Messages and sums of two processes of one machine: through their links, and through gloo.

    python benchmarks/links.py

A message is the report on ten clients, as JSON; a sum is one of all parameters of a model. Both ways take
turns in the same two processes. Seconds are those of the first process: by the clock on the wall, and of the
processor.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from common import argument_parser, print_table, write_result

from antiphon.pools.rendezvous import find_rank, join
from antiphon.pools.spawning import run_processes
from antiphon.pools.torch_group import TorchGroup

SIZES = {"26 thousand": 26_000, "1 million": 1_000_000, "10 million": 10_000_000}
TURNS = 9
REPETITIONS = {"message": 100, "26 thousand": 100, "1 million": 5, "10 million": 2}  # in a turn
STATS = {"loss": 1.23456789, "num_utterances": 50.0, "norm": 0.123456789, "magnitude_mean": 1.23456789e-4}
MESSAGE = [[f"speaker-{number:04d}", STATS, 106_024, 0] for number in range(10)]


def measure(group: TorchGroup, num_turns: int) -> dict[str, Any]:
    """Return medians over turns: seconds of each way, and gloo's over those of the links."""
    links, found = group.links, {}
    for name, repetitions in REPETITIONS.items():
        action = _exchange(group) if name == "message" else _sum(group, SIZES[name])
        turns = []
        for _ in range(num_turns):
            taken = {}
            for way, own in (("links", links), ("gloo", None)):
                group.links = own
                action()  # warms up, and both processes begin together
                wall, cpu = time.perf_counter(), time.process_time()
                for _ in range(repetitions):
                    action()
                taken[way] = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
            turns.append(taken)
        found[name] = {
            way: {
                clock: statistics.median(turn[way][clock] for turn in turns) / repetitions
                for clock in ("wall", "cpu")
            }
            for way in ("links", "gloo")
        } | {
            f"ratio_{clock}": statistics.median(turn["gloo"][clock] / turn["links"][clock] for turn in turns)
            for clock in ("wall", "cpu")
        }
    group.links = links
    return found


def _exchange(group: TorchGroup) -> Callable[[], Any]:
    return lambda: group.all_gather(lambda: MESSAGE)


def _sum(group: TorchGroup, size: int) -> Callable[[], Any]:
    flat = torch.zeros(size)
    return lambda: group.all_reduce(flat)


def main() -> int:
    process = find_rank(os.environ)
    if process is not None:
        with join(process, "cpu") as group:
            found = measure(group, int(os.environ["TURNS"]))
            if group.is_rank_zero:
                print(json.dumps(found))
        return 0
    if "TURNS" in os.environ:
        return run_processes(2)
    arguments = argument_parser(__doc__, "links").parse_args()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TURNS": "1" if arguments.quick else str(TURNS)}
    command = [sys.executable, __file__]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    rows = []
    for name, row in found.items():
        cells = [f"{1e6 * row[way][clock]:,.0f}" for clock in ("wall", "cpu") for way in ("gloo", "links")]
        rows.append([name, *cells, f"{row['ratio_wall']:.1f}", f"{row['ratio_cpu']:.1f}"])
    names = ["wall μs: gloo", "links", "processor μs: gloo", "links", "gloo / links: wall", "processor"]
    print_table(["message or parameters", *names], rows)
    write_result(arguments, {"turns": 1 if arguments.quick else TURNS, "sizes": found})
    return 0


if __name__ == "__main__":
    sys.exit(main())
