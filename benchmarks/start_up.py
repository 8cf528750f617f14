"""The time to start: `antiphon run` to the end of its first training step, and `antiphon --help`.

    python benchmarks/start_up.py

Each command is a process of its own, in turn with one that imports torch and exits: who trains with torch
cannot avoid that. The run has its features computed already, and its first step is a step of one client with
two short utterances and a tiny model: imports and preparation are measured. The process ends after that step.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
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
TIMES = 15


@dataclass(frozen=True)
class Taken:
    """Seconds of a process: by the clock on the wall, and of the processor."""

    wall: float
    cpu: float


def take(command: Sequence[str]) -> Taken:
    """Run a command, from its start to its end."""
    before, began = os.times(), time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment())
    wall, after = time.perf_counter() - began, os.times()
    used = [getattr(after, name) - getattr(before, name) for name in ("children_user", "children_system")]
    return Taken(wall, sum(used))


def environment() -> dict[str, str]:
    """Return the environment of the commands: one thread, and the packages of this folder."""
    paths = [str(HERE), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def commands(folder: Path) -> dict[str, list[str]]:
    """Return the commands, by name; they need a corpus with its features."""
    make_store(folder / "corpus", 4, 2, (1.0, 2.0), 8)
    (folder / "settings.yaml").write_text(SETTINGS)
    antiphon = [sys.executable, "-m", "antiphon"]
    run = [
        "run",
        str(folder / "settings.yaml"),
        "--data",
        str(folder / "corpus"),
        "--out",
        str(folder / "out"),
    ]
    return {
        TORCH: [sys.executable, "-c", "import os, torch; os._exit(0)"],
        RUN: [*antiphon, *run, "--only", "fedavg"],
        HELP: [*antiphon, "--help"],
    }


def measure(times: int) -> dict[str, list[Taken]]:
    """Return what each command took, each time in another order."""
    found: dict[str, list[Taken]] = {}
    with tempfile.TemporaryDirectory() as folder:
        known = commands(Path(folder))
        for command in known.values():  # files are read from memory from now on, and modules are compiled
            take(command)
            shutil.rmtree(Path(folder) / "out", ignore_errors=True)
        for number in range(times):
            for place in range(len(known)):
                name = list(known)[(number + place) % len(known)]
                found.setdefault(name, []).append(take(known[name]))
                shutil.rmtree(Path(folder) / "out", ignore_errors=True)
    return found


def main() -> None:
    arguments = argument_parser(__doc__, "start_up").parse_args()
    taken = measure(1 if arguments.quick else TIMES)
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
    write_result(arguments, {"times": len(taken[TORCH]), "commands": result})


if __name__ == "__main__":
    main()
