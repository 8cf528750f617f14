"""Plots of the recipe pruning-librispeech: WER by sparsity, and by speed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from antiphon.report.drawing import STYLE, look, new_figure, percent_axis

DENSE = "dense"


def way_of(name: str) -> str:
    """What is pruned how: the run's name without its sparsity.

    >>> way_of("half-column-0.5"), way_of("dense")
    ('half-column', 'dense')
    """
    way, _, sparsity = name.rpartition("-")
    return way if sparsity.startswith("0.") else name


def draw_plots(rows: Mapping[str, Any], factors: Mapping[str, float], folder: Path) -> None:
    """Writes pruning-sparsity.svg, and pruning-speed.svg where speed was measured."""
    folder.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(STYLE):
        draw_sparsities(rows).savefig(folder / "pruning-sparsity.svg")
        if factors:
            draw_speed(rows, factors).savefig(folder / "pruning-speed.svg")


def draw_sparsities(rows: Mapping[str, Any]) -> Figure:
    figure, axes = new_figure(7.0, 4.2)
    axes.set_title("WER of test speakers by sparsity, mean of the seeds")
    dense = rows[DENSE]["wer"]["mean"]
    ways = dict.fromkeys(way_of(name) for name, found in rows.items() if found["sparsity"] is not None)
    for index, way in enumerate(ways):
        points = sorted(
            (f["sparsity"], f["wer"]["mean"]) for n, f in rows.items() if way_of(n) == way and f["sparsity"]
        )
        x, y = zip((0.0, dense), *points, strict=True)
        style = look(index)
        axes.plot(x, y, color=style.colour, linestyle=style.dash, marker="o", markersize=3, label=way)
    axes.set_xlabel("sparsity")
    percent_axis(axes.yaxis)
    axes.legend(ncols=2)
    return figure


def draw_speed(rows: Mapping[str, Any], factors: Mapping[str, float]) -> Figure:
    figure, axes = new_figure(7.0, 4.2)
    axes.set_title("WER of test speakers by speed on one thread")
    for index, way in enumerate(dict.fromkeys(way_of(name) for name in factors)):
        points = sorted((factors[n], rows[n]["wer"]["mean"]) for n in factors if way_of(n) == way)
        style = look(index)
        axes.plot(*zip(*points, strict=True), color=style.colour, linestyle=style.dash, marker="o", label=way)
    axes.set_xlabel("processor seconds for one of speech")
    axes.set_xlim(left=0)
    percent_axis(axes.yaxis)
    axes.legend()
    return figure
