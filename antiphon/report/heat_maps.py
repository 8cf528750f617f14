"""Heat maps: the weights of clients over rounds, and the attention of a few utterances."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
    INK,
    MUTED,
    PALETTE,
    WHOLE,
    as_svg,
    draw_line,
    legend,
    look,
    new_figure,
    rounds_axis,
    shorten,
)
from antiphon.report.run_folder import Array, RunFolder
from antiphon.report.tables import relative_weights, weights_by_kind

MAX_LINES = 6  # clients drawn as lines
MAX_ROWS = 48  # rows of the heat map; more clients share rows
MAX_COLUMNS = 150
Groups = Sequence[npt.NDArray[np.intp]]

# Purple to orange, safe for every colour vision; grey in the middle, because white means "not drawn".
WEIGHTS = LinearSegmentedColormap.from_list(
    "weights", ["#3b1a6b", "#7a63ad", "#b9b2d6", "#dcdcdc", "#f5b865", "#d97a12", "#7f3b08"]
)
ATTENTION = LinearSegmentedColormap.from_list(
    "attention", ["#ffffff", "#cfe3f1", "#56b4e9", "#0072b2", "#00263d"]
)


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
    image = axes.imshow(strength, cmap=WEIGHTS, vmin=-limit, vmax=limit, aspect="auto", extent=extent,
                        interpolation="none")  # fmt: skip
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
    num_rows = -(-len(examples) // 2)
    figure = Figure(figsize=(WHOLE, 0.4 + 2.7 * num_rows), layout="constrained")
    panels = figure.subplots(num_rows, 2, squeeze=False).flatten()
    for axes, example in zip(panels, examples, strict=False):
        num_tokens, num_frames = example.weights.shape
        extent = (0.0, example.seconds, num_tokens + 0.5, 0.5)
        axes.imshow(
            example.weights, cmap=ATTENTION, vmin=0, aspect="auto", extent=extent, interpolation="none"
        )
        seconds = (centres(example.weights) + 0.5) * example.seconds / num_frames
        axes.plot(seconds, np.arange(1, num_tokens + 1), color=PALETTE[1], linewidth=1.0)
        axes.grid(visible=False)
        axes.set(title=shorten(example.speaker), xlabel="seconds", ylabel="token")
        axes.yaxis.set_major_locator(MaxNLocator(6, integer=True))
    for axes in panels[len(examples) :]:
        axes.set_visible(False)
    return figure
