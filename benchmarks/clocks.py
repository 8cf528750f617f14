"""Simulated time of finished runs until they reach the best held-out WER of the first one.

    antiphon run docs/examples/time.yaml --data demo/corpus --out timed
    python benchmarks/clocks.py timed/hierarchical timed/over-selected timed/fedbuff

Prints a line for each run: the best WER of the held-out speakers and the WER of the test speakers; simulated
hours, traffic and energy of the whole run; the hours until its held-out WER was that of the first run
or lower, or at most `--within` points higher; and how many times shorter that is than for the first run.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from common import print_table

from antiphon.report.formatting import NONE, energy, percent, size
from antiphon.report.run_folder import RunFolder
from antiphon.report.simulated_time import has_energy, time_curve, total_joules


def hours_to(run: RunFolder, target: float) -> float | None:
    """Simulated hours until the first validation at or below a WER."""
    hours, wers = time_curve(run)
    return next((float(hour) for hour, wer in zip(hours, wers, strict=True) if wer <= target), None)


def row(run: RunFolder, targets: list[float], reference: list[float | None]) -> list[str]:
    _, wers = time_curve(run)
    scores = run.evaluations.get("test", {}).get("best")
    cells = [percent(float(wers.min())), percent(scores.overall.words.rate if scores else None)]
    cells += [str(run.num_finished), f"{run.trained[-1]['simulated_time'] / 3600:.2f}", size(run.total_bytes)]
    cells.append(energy(float(total_joules(run)[-1]) if has_energy(run) else None))
    for target, slowest in zip(targets, reference, strict=True):
        needed = hours_to(run, target)
        cells.append(NONE if needed is None else f"{needed:.2f}")
        cells.append(f"{slowest / needed:.1f}" if needed and slowest else NONE)
    return [run.label, *cells]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "runs", nargs="+", type=Path, help="folders of runs with a clock; the first is compared"
    )
    parser.add_argument("--within", type=float, default=0.3, help="points of WER (default 0.3)")
    options = parser.parse_args()
    runs = [RunFolder.load(path) for path in options.runs]
    best = float(time_curve(runs[0])[1].min())
    targets = [best, best + options.within / 100]
    reference = [hours_to(runs[0], best)] * 2
    head = ["run", "held-out WER %", "test WER %", "rounds", "hours", "traffic", "energy"]
    for target in targets:
        head += [f"hours to {percent(target)} %", "times faster"]
    print_table(head, [row(run, targets, reference) for run in runs])


if __name__ == "__main__":
    main()
