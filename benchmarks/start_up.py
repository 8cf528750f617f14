"""The time to start: `antiphon run` to the end of its first training step, and `antiphon --help`.

    python benchmarks/start_up.py --before CHECKOUT

Each command is a process of its own, in turn with one that imports torch and exits: who trains with torch
cannot avoid that. The run has its features computed already, and its first step is a step of one client with
two short utterances and a tiny model: imports and preparation are measured. The process ends after that step.
With `--before`, the commands of another checkout are measured as well, in the same turns.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import argument_parser, make_store, print_table, write_result

HERE = Path(__file__).parent
SETTINGS = """
recipe: fedavg
frontend: {common:Noise: {dim: 8}}
model: {ctc: {encoder: {blstm: {dim: 16, num_layers: 1}}}}
speakers: {seed_fraction: 0.25, valid: pool, test: pool}
runs:
  fedavg:
    start_run: ""
    rounds: {total: 1, cohort: 1, valid_every: 0}
    algorithm: {frameworks.one_step:OneStep: {local: {steps: 1, batch_seconds: 4.0}}}
"""
TORCH, RUN, HELP = "import torch", "antiphon run, to the end of its first step", "antiphon --help"
TIMES = 9


@dataclass(frozen=True)
class Taken:
    """Seconds of a process: by the clock on the wall, and of the processor."""

    wall: float
    cpu: float


@dataclass(frozen=True)
class Command:
    """A command line, and the checkout whose antiphon it runs."""

    words: list[str]
    checkout: Path = HERE.parent

    def take(self) -> Taken:
        """Run the command, from its start to its end."""
        path = os.pathsep.join([str(self.checkout), str(HERE)])
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
        before, began = os.times(), time.perf_counter()
        subprocess.run(self.words, check=True, stdout=subprocess.DEVNULL, env=environment, cwd=HERE)
        wall, after = time.perf_counter() - began, os.times()
        cpu = after.children_user + after.children_system - before.children_user - before.children_system
        return Taken(wall, cpu)


def commands(folder: Path, before: Path | None) -> dict[str, Command]:
    """Return the commands, by name, after making a corpus with its features."""
    make_store(folder / "corpus", 4, 2, (1.0, 2.0), 8)
    (folder / "settings.yaml").write_text(SETTINGS)
    antiphon = [sys.executable, "-m", "antiphon"]
    options = ["--data", str(folder / "corpus"), "--out", str(folder / "out"), "--only", "fedavg"]
    words = {RUN: [*antiphon, "run", str(folder / "settings.yaml"), *options], HELP: [*antiphon, "--help"]}
    found = {TORCH: Command([sys.executable, "-c", "import os, torch; os._exit(0)"])}
    found |= {name: Command(line) for name, line in words.items()}
    if before:
        found |= {f"{name}, before": Command(line, before.absolute()) for name, line in words.items()}
    return found


def measure(times: int, before: Path | None) -> dict[str, list[Taken]]:
    """Return what each command took, each time in another order; the first time warms up."""
    found: dict[str, list[Taken]] = {}
    with tempfile.TemporaryDirectory() as folder:
        known = commands(Path(folder), before)
        names = list(known)
        for number in range(-1, times):
            for place in range(len(names)):
                name = names[(number + place) % len(names)]
                taken = known[name].take()
                shutil.rmtree(Path(folder) / "out", ignore_errors=True)
                if number >= 0:
                    found.setdefault(name, []).append(taken)
    return found


def main() -> None:
    parser = argument_parser(__doc__, "start_up")
    parser.add_argument("--before", type=Path, metavar="CHECKOUT", help="another checkout, to compare with")
    arguments = parser.parse_args()
    taken = measure(1 if arguments.quick else TIMES, arguments.before)
    result: dict[str, Any] = {}
    rows = []
    for name, spells in taken.items():
        result[name] = {}
        for clock in ("cpu", "wall"):
            seconds = [getattr(spell, clock) for spell in spells]
            over = [s / getattr(torch, clock) for s, torch in zip(seconds, taken[TORCH], strict=True)]
            quartiles = statistics.quantiles(over)[::2] if len(over) > 1 else over * 2
            result[name][clock] = {
                "seconds": statistics.median(seconds),
                "ratio": statistics.median(over),
                "quartiles": quartiles,
            }
        cells = [
            f"{result[name][clock][what]:.2f}" for clock in ("cpu", "wall") for what in ("seconds", "ratio")
        ]
        rows.append([name, *cells])
    print_table(["command", "processor s", "over torch", "wall s", "over torch"], rows)
    options = ["--before", "CHECKOUT"] if arguments.before else []
    write_result(arguments, {"times": len(taken[TORCH]), "commands": result}, *options)


if __name__ == "__main__":
    main()
