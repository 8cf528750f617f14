"""What an error rate costs in simulated time, energy and bytes: curves and a table, for runs with a clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from antiphon.report.run_folder import Array, RunFolder
from antiphon.report.tables import best_round, common_target
from antiphon.scoring.statistics import round_to_target


@dataclass(frozen=True)
class TimeRow:
    """A run with a simulated clock: its time, and its time, bytes and energy until an error rate."""

    label: str
    num_rounds: int
    seconds: float  # of the whole run
    median_round: float
    num_late: int  # answers that were too late
    seconds_to_best: float | None
    seconds_to_target: float | None
    bytes_to_target: float | None
    joules_to_target: float | None = None  # None, too, if a journal has no energy


def has_clock(run: RunFolder) -> bool:
    return any(entry.get("simulated_time") is not None for entry in run.trained)


def has_energy(run: RunFolder) -> bool:
    """Return whether the journal has the energy of devices; those of earlier versions do not."""
    return any(entry.get("simulated_joules") is not None for entry in run.trained)


def time_rows(runs: Sequence[RunFolder]) -> list[TimeRow]:
    """Return a row for each run that has a clock."""
    target = common_target(runs)
    return [_row(run, target) for run in runs if has_clock(run)]


def _row(run: RunFolder, target: float | None) -> TimeRow:
    rounds, values = run.validation.get("wer", (np.empty(0), np.empty(0)))
    reached = None if target is None else round_to_target([int(r) for r in rounds], values.tolist(), target)
    times, best = _simulated(run), best_round(run)

    def until(round: int | None, totals: Array) -> float | None:
        return None if round is None else float(at_rounds(run, np.array([round]), totals)[0])

    failures = (reason for entry in run.trained for reason in entry.get("failures", {}).values())
    return TimeRow(
        run.label,
        run.num_finished,
        float(times[-1]),
        float(np.median([entry.get("simulated_seconds") or 0.0 for entry in run.trained])),
        sum(str(reason).startswith("late:") for reason in failures),
        until(best, times),
        until(reached, times),
        until(reached, total_bytes(run)),
        until(reached, total_joules(run)) if has_energy(run) else None,
    )


def _simulated(run: RunFolder) -> Array:
    """Return the simulated time at the end of each round."""
    return np.array([entry.get("simulated_time") or 0.0 for entry in run.trained], dtype=float)


def total_bytes(run: RunFolder) -> Array:
    """Return the bytes sent until the end of each round."""
    return np.cumsum([float(entry.get("bytes_down", 0) + entry.get("bytes_up", 0)) for entry in run.trained])


def total_joules(run: RunFolder) -> Array:
    """Return the energy of all devices until the end of each round."""
    return np.cumsum([float(entry.get("simulated_joules") or 0.0) for entry in run.trained])


def at_rounds(run: RunFolder, rounds: Array, totals: Array) -> Array:
    """Return totals, given at the end of each round, at some rounds; 0 before the first."""
    finished = np.array([entry["round"] for entry in run.trained])
    return np.array([0.0, *totals])[np.searchsorted(finished, rounds, side="right")]


def time_curve(run: RunFolder) -> tuple[Array, Array]:
    """Return (hours, WER) of every validation."""
    rounds, values = run.validation.get("wer", (np.empty(0), np.empty(0)))
    return at_rounds(run, rounds, _simulated(run)) / 3600, values


def energy_curve(run: RunFolder) -> tuple[Array, Array]:
    """Return (kilojoules, WER) of every validation."""
    rounds, values = run.validation.get("wer", (np.empty(0), np.empty(0)))
    return at_rounds(run, rounds, total_joules(run)) / 1000, values
