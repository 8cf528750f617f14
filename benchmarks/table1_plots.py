"""Plots of table1: validation WER by round for all rows, and what good and bad clients counted."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from antiphon.report.drawing import FAINT, STYLE, Look, look, new_figure, percent_axis, rounds_axis
from antiphon.report.run_folder import Array, RunFolder
from antiphon.report.tables import weights_by_kind

Rows = Mapping[str, Sequence[RunFolder]]  # run -> one folder a seed
WINDOW = 5  # rounds over which weights are averaged: cohorts differ


def draw_plots(condition: str, rows: Rows, folder: Path) -> None:
    """Writes table1-CONDITION-wer.svg, and -weights.svg where clients were corrupted."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = "table1-" + re.sub(r"[^a-z0-9]+", "-", condition.lower()).strip("-")
    federated = {name: runs for name, runs in rows.items() if "central" not in _algorithm(runs[0])}
    looks = {name: look(index) for index, name in enumerate(federated)}
    with matplotlib.rc_context(STYLE):
        _wer(federated, looks).savefig(folder / f"{stem}-wer.svg")
        weighed = {name: runs for name, runs in federated.items() if weights_by_kind(runs[0])}
        if weighed:
            _weights(weighed, looks).savefig(folder / f"{stem}-weights.svg")


def _algorithm(run: RunFolder) -> Mapping[str, object]:
    algorithm: Mapping[str, object] = run.about["config"]["algorithm"]
    return algorithm


def _wer(rows: Rows, looks: Mapping[str, Look]) -> Figure:
    figure, axes = new_figure(7.5, 4.4)
    axes.set_title("WER on the held-out speakers, mean of the seeds")
    starts = []
    for name, runs in rows.items():
        rounds, means = mean_curve([run.validation["wer"] for run in runs])
        style = looks[name]
        axes.plot(rounds, means, color=style.colour, linestyle=style.dash, label=name)
        starts.append(means[0])
    # A row that diverges must not flatten the others.
    axes.set_ylim(top=1.1 * max(starts))
    rounds_axis(axes, max(run.num_finished for runs in rows.values() for run in runs))
    percent_axis(axes.yaxis)
    axes.legend(ncols=2)
    return figure


def _weights(rows: Rows, looks: Mapping[str, Look]) -> Figure:
    figure = Figure(figsize=(9.5, 3.8), layout="constrained")
    last = max(run.num_finished for runs in rows.values() for run in runs)
    for axes, kind in zip(figure.subplots(1, 2), ("clean", "corrupted"), strict=True):
        axes.set_title(f"Weight of {kind} clients over an equal share")
        for name, runs in rows.items():
            style, found = looks[name], [weights_by_kind(run) for run in runs]
            means = mean_curve([kinds[kind] for kinds in found if kinds])
            axes.plot(*smooth(*means), color=style.colour, linestyle=style.dash, label=name)
        axes.axhline(1, color=FAINT, linewidth=1, zorder=0)
        axes.set_ylim(bottom=0)
        rounds_axis(axes, last)
    axes.legend(ncols=2)
    return figure


def mean_curve(curves: Sequence[tuple[Array, Array]]) -> tuple[Array, Array]:
    """The mean over seeds of (rounds, values), at the rounds that all of them have."""
    tables = [dict(zip(rounds.tolist(), values.tolist(), strict=True)) for rounds, values in curves]
    shared = sorted(set.intersection(*(set(table) for table in tables)))
    return np.array(shared), np.array([np.mean([table[r] for table in tables]) for r in shared])


def smooth(rounds: Array, values: Array) -> tuple[Array, Array]:
    """Means of `WINDOW` neighbours, at their middle."""
    if len(values) < WINDOW:
        return rounds, values
    kernel = np.full(WINDOW, 1 / WINDOW)
    return np.convolve(rounds, kernel, "valid"), np.convolve(values, kernel, "valid")
