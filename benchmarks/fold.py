"""Adding up 100 updates of 10 M parameters: `RunningMean`, against new dictionaries and `stack().mean()`.

Each way runs in a process of its own. Updates are made as they are asked for, with the clock stopped; the
streamed ways let them go again, `stack` has to hold them all. Extra memory is the peak, less one update.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from common import in_fresh_process, memory_mib, parse_arguments, print_table, write_result

from antiphon.core import RunningMean, Tensors, Update

WIDTH = 256  # tensors of a Conformer's shapes: matrices [4·WIDTH, WIDTH] and vectors [WIDTH]


class Updates:
    """`number` updates of `num_parameters`, made as they are asked for; it knows what making them took."""

    def __init__(self, number: int, num_parameters: int) -> None:
        self.number, self.wall, self.cpu = number, 0.0, 0.0
        pairs = max(1, num_parameters // (4 * WIDTH * WIDTH + WIDTH))
        self.shapes: dict[str, tuple[int, ...]] = {f"{i}.weight": (4 * WIDTH, WIDTH) for i in range(pairs)}
        self.shapes |= {f"{i}.bias": (WIDTH,) for i in range(pairs)}

    @property
    def mib(self) -> float:
        return 4 * sum(math.prod(shape) for shape in self.shapes.values()) / 2**20

    def __iter__(self) -> Iterator[Tensors]:
        for k in range(1, self.number + 1):
            wall, cpu = time.perf_counter(), time.process_time()
            tensors = {
                name: torch.full(shape, k / place)
                for place, (name, shape) in enumerate(self.shapes.items(), 1)
            }
            self.wall += time.perf_counter() - wall
            self.cpu += time.process_time() - cpu
            yield tensors


def in_place(updates: Updates) -> Tensors:
    total = RunningMean()
    for tensors in updates:
        total.add(Update(tensors))
    return total.total().mean


def rebuilt(updates: Updates) -> Tensors:
    mean: Tensors = {}
    for count, tensors in enumerate(updates, 1):
        share = 1 / count
        mean = {n: mean[n] * (1 - share) + t * share for n, t in tensors.items()} if mean else tensors
    return mean


def stacked(updates: Updates) -> Tensors:
    held = list(updates)
    return {name: torch.stack([tensors[name] for tensors in held]).mean(0) for name in updates.shapes}


WAYS: dict[str, Callable[[Updates], Tensors]] = {"in_place": in_place, "rebuilt": rebuilt, "stacked": stacked}


def measure(way: str, number: int, num_parameters: int) -> dict[str, Any]:
    """Seconds, extra memory, and the mean's sum (to see that all ways agree)."""
    updates = Updates(number, num_parameters)
    before = memory_mib()["peak"]
    wall, cpu = time.perf_counter(), time.process_time()
    mean = WAYS[way](updates)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {
        "seconds": wall - updates.wall,
        "cpu_seconds": cpu - updates.cpu,
        "extra_mib": memory_mib()["peak"] - before - updates.mib,
        "update_mib": updates.mib,
        "checksum": float(sum(tensor.double().sum() for tensor in mean.values())),
    }


def main() -> None:
    arguments = parse_arguments(__doc__, "fold")
    torch.set_num_threads(1)
    if arguments.case:
        way, number, num_parameters = arguments.case
        print(json.dumps(measure(way, int(number), int(num_parameters))))
        return
    number, num_parameters = (10, 300_000) if arguments.quick else (100, 10_000_000)
    ways = {way: in_fresh_process(__file__, [way, str(number), str(num_parameters)]) for way in WAYS}
    ours = ways["in_place"]
    for way, found in ways.items():
        found["ratio"] = found["seconds"] / ours["seconds"]
        assert abs(found["checksum"] / ours["checksum"] - 1) < 1e-4, f"{way} adds up to something else"
    rows = [
        [way, f"{found['ratio']:.1f}", f"{found['seconds']:.2f}", f"{found['extra_mib']:.0f}"]
        for way, found in ways.items()
    ]
    print_table(["way", "seconds over RunningMean.add", "seconds", "extra MiB"], rows)
    write_result(arguments, {"num_updates": number, "num_parameters": num_parameters, "ways": ways})


if __name__ == "__main__":
    main()
