"""Figures by speaker: before and after training, the worst decile, and runs compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from antiphon.report.drawing import (
    FAINT,
    HALF,
    INK,
    MUTED,
    PALETTE,
    WHOLE,
    Look,
    as_svg,
    legend,
    new_figure,
    percent_axis,
    plot,
    shorten,
)
from antiphon.scoring.statistics import Interval, worst_decile

MAX_ROWS = 30  # speakers shown by name
BETTER, WORSE, TINT = PALETTE[0], PALETTE[1], "#fbeee6"
START = Look(MUTED, (0, (3, 1.5)))  # the starting model
DOT: dict[str, Any] = {"marker": "o", "linestyle": "none"}
RING: dict[str, Any] = {**DOT, "markerfacecolor": "white", "markeredgecolor": MUTED, "markeredgewidth": 1.3}


@as_svg
def dumbbells(
    before: Mapping[str, float], after: Mapping[str, float], names: Sequence[str], title: str, wide: bool
) -> Figure:
    """Draw one row per speaker: WER before (ring) and after (dot); the worst decile is tinted."""
    figure, axes = new_figure(WHOLE if wide else HALF, 0.85 + 0.205 * max(len(names), 4))
    worst = set(worst_decile(after))
    axes.set_title(title)
    rows = np.arange(len(names))
    for row, name in zip(rows, names, strict=True):
        if name in worst and len(worst) < len(names):
            axes.axhspan(row - 0.5, row + 0.5, color=TINT, linewidth=0)
        colour = BETTER if after[name] <= before[name] else WORSE
        bar: dict[str, Any] = {"color": colour, "linewidth": 2.2, "alpha": 0.55, "solid_capstyle": "butt"}
        axes.plot([before[name], after[name]], [row, row], **bar)
        axes.plot(after[name], row, "o", color=colour, markersize=6)
    axes.plot([before[name] for name in names], rows, markersize=5, **RING)
    axes.set_yticks(rows, [shorten(name, 18) for name in names])
    for label, name in zip(axes.get_yticklabels(), names, strict=True):
        colour, weight = (INK, "bold") if name in worst else (MUTED, "normal")
        label.set(fontsize=8.5, color=colour, fontweight=weight)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    axes.set_xlim(left=0)
    percent_axis(axes.xaxis)
    axes.set_xlabel("word error rate")
    keys = [
        Line2D([], [], markersize=6, **style)
        for style in (RING, DOT | {"color": BETTER}, DOT | {"color": WORSE})
    ]
    legend(axes, keys, ["before", "after, better", "after, worse"])
    return figure


@plot("WER after, by speaker", height=4.6)
def scatter(axes: Axes, before: Mapping[str, float], after: Mapping[str, float]) -> None:
    """Draw all speakers of a large test set: WER after over WER before; below the diagonal is better."""
    names = list(after)
    x, y = np.array([before[n] for n in names]), np.array([after[n] for n in names])
    worst = np.isin(names, worst_decile(after))
    top = float(max(x.max(), y.max())) * 1.04 or 1.0
    axes.plot([0, top], [0, top], color=FAINT, linewidth=1, zorder=1)
    size = float(np.clip(2400 / len(names), 6, 26))
    for mask, colour in ((~worst, BETTER), (worst, WORSE)):
        axes.scatter(x[mask], y[mask], s=size, color=colour, alpha=0.55, linewidths=0, zorder=2)
    axes.text(top * 0.02, top * 0.965, "worse", va="top", color=MUTED, fontsize=8.5)
    axes.text(top * 0.985, top * 0.03, f"better: {np.mean(y < x):.0%} of {len(names)} speakers", ha="right",
              color=MUTED, fontsize=8.5)  # fmt: skip
    axes.set(xlim=(0, top), ylim=(0, top), xlabel="WER before")
    percent_axis(axes.xaxis)
    percent_axis(axes.yaxis)
    dots = [Line2D([], [], color=colour, markersize=5, **DOT) for colour in (BETTER, WORSE)]
    legend(axes, dots, ["speakers", "worst decile"])


@plot("Share of speakers at or below a WER", height=3.4)
def distribution(axes: Axes, models: Sequence[tuple[Mapping[str, float], Look]]) -> None:
    """Draw the share of speakers with a WER of at most x, one line per model: further left is better."""
    for values, style in models:
        ordered = np.sort(list(values.values()))
        share = np.arange(0, len(ordered) + 1) / len(ordered)
        if len(ordered) > 200:  # the same curve in 200 steps
            share = np.linspace(0, 1, 201)
            ordered = np.quantile(ordered, share[1:], method="inverted_cdf")
        axes.step([ordered[0], *ordered], share, where="post", color=style.colour, linestyle=style.dash)
    axes.axhline(0.9, color=FAINT, linewidth=0.9)
    axes.text(0, 0.9, " worst decile above", va="bottom", fontsize=8, color=MUTED)
    axes.set_xlim(left=0)
    axes.set_ylim(0, 1.02)
    percent_axis(axes.xaxis)
    percent_axis(axes.yaxis)
    axes.set_xlabel("word error rate")


@as_svg
def forest(rows: Sequence[tuple[str, float, Interval | None, Look]]) -> Figure:
    """Draw error rates with their intervals, one row per model."""
    figure, axes = new_figure(HALF, max(3.4, 0.95 + 0.3 * len(rows)))
    axes.set_title("Word error rate, %")
    for row, (_, rate, interval, style) in enumerate(rows):
        colour = style.colour
        if interval is not None:
            ends = [interval.low, interval.high]
            axes.plot(ends, [row, row], color=colour, linewidth=2.4, solid_capstyle="round")
        axes.plot(rate, row, "o", color=colour, markersize=7, markeredgecolor="white", markeredgewidth=1)
        value = axes.annotate(f"{100 * rate:.1f}", (rate, row), xytext=(0, 6), textcoords="offset points")
        value.set(ha="center", fontsize=8, fontweight="bold", color=colour)
    axes.set_yticks(np.arange(len(rows)), [shorten(name, 26) for name, *_ in rows])
    axes.tick_params(axis="y", labelcolor=INK)
    axes.set_ylim(len(rows) - 0.4, -0.75)
    axes.grid(visible=False, axis="y")
    percent_axis(axes.xaxis)
    axes.margins(x=0.08)
    axes.set_xlabel("95 % interval over speakers")
    return figure
