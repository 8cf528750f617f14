"""How much each client counted: weights over rounds for three clients or ten thousand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from antiphon.report.drawing import (
    FAINT,
    INK,
    MUTED,
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
from antiphon.report.weights import relative_weights, weights_by_kind

MAX_LINES = 6  # clients drawn as lines
MAX_ROWS = 48  # rows of the heat map; more clients share rows
MAX_COLUMNS = 150

# Purple to orange, safe for every colour vision; grey in the middle, since white means "not there".
COLOURS = LinearSegmentedColormap.from_list(
    "weights", ["#3b1a6b", "#7a63ad", "#b9b2d6", "#dcdcdc", "#f5b865", "#d97a12", "#7f3b08"]
)


@as_svg
def weights_over_rounds(run: RunFolder) -> Figure:
    """Lines for a few clients, a heat map for more, groups of clients as its rows for many.

    Corrupted clients have a star.
    """
    clients, weights = relative_weights(run)
    names = [f"* {name}" if name in run.corrupted else name for name in clients]
    rounds = np.array([float(entry["round"]) for entry in run.trained])
    if len(clients) > MAX_LINES:
        return _heat_map(names, weights, rounds)
    present = np.isfinite(weights)
    lines = {name: (rounds[p], row[p]) for name, row, p in zip(names, weights, present, strict=True)}
    return _lines("Weight of each client over an equal share", 3.0, lines, run.num_finished)[0]


@as_svg
def clean_and_corrupted(run: RunFolder) -> Figure:
    """The mean weight of clean and of corrupted clients by round."""
    title = "Mean weight of clean and corrupted clients over an equal share"
    figure, axes = _lines(title, 2.4, weights_by_kind(run), run.num_finished)
    axes.set_ylim(bottom=0)
    return figure


def _lines(
    title: str, height: float, lines: Mapping[str, tuple[Array, Array]], last: int
) -> tuple[Figure, Axes]:
    """Weights by round, each with its name, about an equal share."""
    figure, axes = new_figure(WHOLE, height)
    axes.set_title(title)
    for index, (rounds, weights) in enumerate(lines.values()):
        draw_line(axes, rounds, weights, look(index))
    axes.axhline(1, color=FAINT, linewidth=1, zorder=0)
    rounds_axis(axes, last)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}×"))
    legend(axes, [Line2D([], [], color=look(index).colour) for index in range(len(lines))], list(lines))
    return figure, axes


def _heat_map(clients: Sequence[str], weights: Array, rounds: Array) -> Figure:
    mean = np.array([np.nanmean(row) if np.isfinite(row).any() else -np.inf for row in weights])
    order = np.argsort(-mean, kind="stable")
    per_row = -(-len(order) // MAX_ROWS)
    rows = np.array_split(order, -(-len(order) // per_row))
    columns = np.array_split(np.arange(len(rounds)), min(MAX_COLUMNS, len(rounds)))
    cells = _means(weights, rows, columns)
    figure, axes = new_figure(WHOLE, 1.3 + (0.125 if per_row == 1 else 0.085) * max(len(rows), 16))
    strength = np.log2(np.maximum(cells, 1e-9))
    # 98 % of cells decide the scale, so that one odd client does not wash out the rest.
    limit = (
        float(np.clip(np.nanquantile(np.abs(strength), 0.98), 0.5, 4)) if np.isfinite(strength).any() else 1.0
    )
    extent = (rounds[0] - 0.5, rounds[-1] + 0.5, len(rows) - 0.5, -0.5)
    image = axes.imshow(strength, cmap=COLOURS, vmin=-limit, vmax=limit, aspect="auto", extent=extent,
                        interpolation="none")  # fmt: skip
    axes.grid(visible=False)
    axes.set_xlabel("round")
    axes.xaxis.set_major_locator(MaxNLocator(9, integer=True))
    _name_rows(axes, clients, rows)
    bar = figure.colorbar(
        image,
        ax=axes,
        pad=0.012,
        aspect=28,
        fraction=0.03,
        ticks=np.arange(-4, 4.5, 1 if limit >= 2 else 0.5),
    )
    bar.outline.set_visible(False)
    bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{2.0**value:.2g}×"))
    bar.ax.grid(visible=False)
    what = "each client" if len(rows) == len(clients) else f"{len(clients):,} clients in {len(rows)} groups"
    axes.set_title(f"Weight of {what} over an equal share")
    return figure


def _means(
    weights: Array, rows: Sequence[npt.NDArray[np.intp]], columns: Sequence[npt.NDArray[np.intp]]
) -> Array:
    """Mean over each block of `weights` [clients, rounds], leaving out clients that were not there."""
    there = np.isfinite(weights)
    blocks = []
    for values in (np.where(there, weights, 0.0), there.astype(float)):
        tall = np.stack([values[row].sum(axis=0) for row in rows])
        blocks.append(np.add.reduceat(tall, [column[0] for column in columns], axis=1))
    return np.divide(blocks[0], blocks[1], out=np.full(blocks[0].shape, np.nan), where=blocks[1] > 0)


def _name_rows(axes: Axes, clients: Sequence[str], rows: Sequence[npt.NDArray[np.intp]]) -> None:
    if len(rows) == len(clients):
        axes.set_yticks(np.arange(len(rows)), [shorten(clients[row[0]], 18) for row in rows])
        axes.tick_params(axis="y", labelsize=8.5 if len(rows) <= 24 else 7, labelcolor=INK)
        return
    axes.set_yticks([0, len(rows) / 2 - 0.5, len(rows) - 1], ["heaviest", "", "lightest"])
    axes.set_ylabel("clients by mean weight", labelpad=-28, color=MUTED)
