"""Figures by speaker and by client: WER before and after training, weights over rounds, attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from antiphon.report.attention_summary import Example, centres
from antiphon.report.drawing import (
    FAINT,
    HALF,
    INK,
    MUTED,
    PALETTE,
    WHOLE,
    Look,
    as_svg,
    draw_line,
    legend,
    look,
    new_figure,
    percent_axis,
    plot,
    rounds_axis,
    shorten,
)
from antiphon.report.run_folder import Array, RunFolder
from antiphon.report.tables import relative_weights, weights_by_kind
from antiphon.scoring.statistics import Interval, worst_decile

MAX_NAMES = 30  # speakers shown by name
BETTER, WORSE, TINT = PALETTE[0], PALETTE[1], "#fbeee6"
START = Look(MUTED, (0, (3, 1.5)))  # the starting model
DOT: dict[str, Any] = {"marker": "o", "linestyle": "none"}
RING: dict[str, Any] = {**DOT, "markerfacecolor": "white", "markeredgecolor": MUTED, "markeredgewidth": 1.3}
CELLS: dict[str, Any] = {"aspect": "auto", "interpolation": "none"}  # of a heat map
MAX_LINES = 6  # clients drawn as lines; more become rows of a heat map
MAX_ROWS, MAX_COLUMNS = 48, 150  # of the heat map; more clients share rows, more rounds share columns
Groups = Sequence[npt.NDArray[np.intp]]

# Purple to orange, safe for every colour vision; grey in the middle, because white means "not drawn".
WEIGHTS = ["#3b1a6b", "#7a63ad", "#b9b2d6", "#dcdcdc", "#f5b865", "#d97a12", "#7f3b08"]
ATTENTION = ["#ffffff", "#cfe3f1", "#56b4e9", "#0072b2", "#00263d"]


@as_svg
def dumbbells(
    before: Mapping[str, float], after: Mapping[str, float], names: Sequence[str], title: str, wide: bool
) -> Figure:
    """Draw one row per speaker: WER before (ring) and after (dot); the worst decile is tinted.

    Without `before` there are only dots.
    """
    figure, axes = new_figure(WHOLE if wide else HALF, 0.85 + 0.205 * max(len(names), 4))
    worst = set(worst_decile(after))
    axes.set_title(title)
    rows = np.arange(len(names))
    for row, name in zip(rows, names, strict=True):
        if name in worst and len(worst) < len(names):
            axes.axhspan(row - 0.5, row + 0.5, color=TINT, linewidth=0)
        colour = BETTER if not before or after[name] <= before[name] else WORSE
        bar: dict[str, Any] = {"color": colour, "linewidth": 2.2, "alpha": 0.55, "solid_capstyle": "butt"}
        if before:
            axes.plot([before[name], after[name]], [row, row], **bar)
        axes.plot(after[name], row, "o", color=colour, markersize=6)
    if before:
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
    if before:
        _dumbbell_legend(axes, any(after[name] > before[name] for name in names))
    return figure


def _dumbbell_legend(axes: Axes, any_worse: bool) -> None:
    styles = {"before": RING, "after, better": DOT | {"color": BETTER}}
    if any_worse:
        styles["after, worse"] = DOT | {"color": WORSE}
    legend(axes, [Line2D([], [], markersize=6, **style) for style in styles.values()], list(styles))


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
    axes.set_xlabel("word error rate")
    return figure


@as_svg
def weights_over_rounds(run: RunFolder) -> Figure:
    """Draw lines for a few clients, a heat map for more, with groups of clients as rows for many.

    Corrupted clients have a star.
    """
    clients, weights = relative_weights(run)
    names = [f"* {name}" if name in run.corrupted else name for name in clients]
    rounds = np.array([float(entry["round"]) for entry in run.trained])
    if len(clients) > MAX_LINES:
        return _weight_map(names, weights, rounds)
    drawn = np.isfinite(weights)
    lines = {name: (rounds[d], row[d]) for name, row, d in zip(names, weights, drawn, strict=True)}
    return _weight_lines("Weight of each client over an equal share", 3.0, lines, run.num_finished)[0]


@as_svg
def clean_and_corrupted(run: RunFolder) -> Figure:
    """Draw the mean weight of clean and of corrupted clients by round."""
    title = "Mean weight of clean and corrupted clients over an equal share"
    figure, axes = _weight_lines(title, 2.4, weights_by_kind(run), run.num_finished)
    axes.set_ylim(bottom=0)
    return figure


def _weight_lines(
    title: str, height: float, lines: Mapping[str, tuple[Array, Array]], last: int
) -> tuple[Figure, Axes]:
    """Draw (rounds, weights) by name, with a line at an equal share."""
    figure, axes = new_figure(WHOLE, height)
    axes.set_title(title)
    for index, (rounds, weights) in enumerate(lines.values()):
        draw_line(axes, rounds, weights, look(index))
    axes.axhline(1, color=FAINT, linewidth=1, zorder=0)
    rounds_axis(axes, last)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}×"))
    legend(axes, [Line2D([], [], color=look(index).colour) for index in range(len(lines))], list(lines))
    return figure, axes


def _weight_map(clients: Sequence[str], weights: Array, rounds: Array) -> Figure:
    mean = np.array([np.nanmean(row) if np.isfinite(row).any() else -np.inf for row in weights])
    order = np.argsort(-mean, kind="stable")
    per_row = -(-len(order) // MAX_ROWS)
    rows = np.array_split(order, -(-len(order) // per_row))
    columns = np.array_split(np.arange(len(rounds)), min(MAX_COLUMNS, len(rounds)))
    strength = np.log2(np.maximum(_block_means(weights, rows, columns), 1e-9))
    # 98 % of the cells decide the scale, so that one odd client does not make the others pale.
    limit = np.clip(np.nanquantile(np.abs(strength), 0.98), 0.5, 4) if np.isfinite(strength).any() else 1.0
    figure, axes = new_figure(WHOLE, 1.3 + (0.125 if per_row == 1 else 0.085) * max(len(rows), 16))
    extent = (rounds[0] - 0.5, rounds[-1] + 0.5, len(rows) - 0.5, -0.5)
    colours = LinearSegmentedColormap.from_list("weights", WEIGHTS)
    image = axes.imshow(strength, cmap=colours, vmin=-limit, vmax=limit, extent=extent, **CELLS)
    axes.grid(visible=False)
    axes.set_xlabel("round")
    axes.xaxis.set_major_locator(MaxNLocator(9, integer=True))
    _name_rows(axes, clients, rows)
    ticks = np.arange(-4, 4.5, 1 if limit >= 2 else 0.5)
    bar = figure.colorbar(image, ax=axes, pad=0.012, aspect=28, fraction=0.03, ticks=ticks)
    bar.outline.set_visible(False)
    bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{2.0**value:.2g}×"))
    bar.ax.grid(visible=False)
    shown = "each client" if len(rows) == len(clients) else f"{len(clients):,} clients in {len(rows)} groups"
    axes.set_title(f"Weight of {shown} over an equal share")
    return figure


def _block_means(weights: Array, rows: Groups, columns: Groups) -> Array:
    """Return the mean of each block of `weights` [clients, rounds]; NaN entries are ignored."""
    drawn = np.isfinite(weights)
    blocks = []
    for values in (np.where(drawn, weights, 0.0), drawn.astype(float)):
        sums = np.stack([values[row].sum(axis=0) for row in rows])
        blocks.append(np.add.reduceat(sums, [column[0] for column in columns], axis=1))
    return np.divide(blocks[0], blocks[1], out=np.full(blocks[0].shape, np.nan), where=blocks[1] > 0)


def _name_rows(axes: Axes, clients: Sequence[str], rows: Groups) -> None:
    if len(rows) == len(clients):
        axes.set_yticks(np.arange(len(rows)), [shorten(clients[row[0]], 18) for row in rows])
        axes.tick_params(axis="y", labelsize=8.5 if len(rows) <= 24 else 7, labelcolor=INK)
        return
    axes.set_yticks([0, len(rows) / 2 - 0.5, len(rows) - 1], ["heaviest", "", "lightest"])
    axes.set_ylabel("clients by mean weight", labelpad=-28, color=MUTED)


@as_svg
def attention_maps(examples: Sequence[Example]) -> Figure:
    """Draw a panel per utterance: tokens from the top, time from the left, a line through the centres."""
    colours = LinearSegmentedColormap.from_list("attention", ATTENTION)
    num_rows = -(-len(examples) // 2)
    figure = Figure(figsize=(WHOLE, 0.4 + 2.7 * num_rows), layout="constrained")
    panels = figure.subplots(num_rows, 2, squeeze=False).flatten()
    for axes, example in zip(panels, examples, strict=False):
        num_tokens, num_frames = example.weights.shape
        extent = (0.0, example.seconds, num_tokens + 0.5, 0.5)
        axes.imshow(example.weights, cmap=colours, vmin=0, extent=extent, **CELLS)
        seconds = (centres(example.weights) + 0.5) * example.seconds / num_frames
        axes.plot(seconds, np.arange(1, num_tokens + 1), color=PALETTE[1], linewidth=1.0)
        axes.grid(visible=False)
        axes.set(title=shorten(example.speaker), xlabel="seconds", ylabel="token")
        axes.yaxis.set_major_locator(MaxNLocator(6, integer=True))
    for axes in panels[len(examples) :]:
        axes.set_visible(False)
    return figure
