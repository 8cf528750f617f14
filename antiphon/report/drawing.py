"""The common style of all figures, and their conversion to inline SVG."""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, Concatenate, ParamSpec

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from antiphon.report.run_folder import Array

INK, MUTED, FAINT, GRID = "#1c2733", "#5b6875", "#9aa5b1", "#e4e8ec"
HALF, WHOLE = 5.6, 11.5  # widths in inches: one column of the page, or both
MAX_POINTS = 240  # of a line; more are averaged into bins

# Okabe and Ito's colours, which colour-blind people can distinguish; yellow is too pale for lines.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)))

STYLE: dict[Any, Any] = {
    "font.family": ["DejaVu Sans"],
    "font.size": 9,
    "text.parse_math": False,  # a $ in a name is a dollar sign
    "text.color": INK,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 9,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": FAINT,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.major.size": 3,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.linewidth": 1.7,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "svg.fonttype": "none",
    "svg.hashsalt": "antiphon",
}


@dataclass(frozen=True)
class Look:
    """The colour and dash of one run, the same in every figure of a report."""

    colour: str
    dash: Any


def look(index: int) -> Look:
    """Return the look of the run at `index`: first other colours, then the same colours with other dashes."""
    return Look(PALETTE[index % len(PALETTE)], DASHES[index // len(PALETTE) % len(DASHES)])


Parameters = ParamSpec("Parameters")


def as_svg(draw: Callable[Parameters, Figure]) -> Callable[Parameters, Markup]:
    """Turn a function that returns a Figure into one that returns inline SVG in the common style.

    The SVG is safe in a page: matplotlib escapes its text.
    """

    @wraps(draw)
    def drawn(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Markup:
        with matplotlib.rc_context(STYLE), warnings.catch_warnings():
            # The browser draws the letters, so matplotlib's font may lack some.
            missing = "Glyph .* missing|Matplotlib currently does not support"
            warnings.filterwarnings("ignore", message=missing)
            return Markup(_to_svg(draw(*args, **kwargs)))

    return drawn


def plot(
    title: str = "", height: float = 3.0
) -> Callable[[Callable[Concatenate[Axes, Parameters], None]], Callable[Parameters, Markup]]:
    """Turn a function that draws on axes into one that returns inline SVG, one column wide."""

    def decorate(draw: Callable[Concatenate[Axes, Parameters], None]) -> Callable[Parameters, Markup]:
        @as_svg
        def drawn(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Figure:
            figure, axes = new_figure(HALF, height)
            axes.set_title(title)
            draw(axes, *args, **kwargs)
            return figure

        return wraps(draw)(drawn)

    return decorate


def _to_svg(figure: Figure) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->|<style .*?</style>", "", text, flags=re.DOTALL)
    # Numbered ids would be the same in several figures; ids of markers and clips are hashes and stay.
    text = re.sub(r' id="[A-Za-z]\w*_\d+"', "", text)
    # The figure scales with the page and uses the browser's font.
    text = re.sub(r'(<svg [^>]*?)height="[\d.]+pt"', r"\1", text, count=1)
    text = re.sub(r'(<svg [^>]*?)width="([\d.]+)pt"', r'\1role="img" data-width="\2"', text, count=1)
    text = text.replace("'DejaVu Sans'", "inherit")
    return re.sub(r"\s*\n\s*", "\n", text)


def new_figure(width: float = HALF, height: float = 3.0) -> tuple[Figure, Axes]:
    """Return a figure with one axes, sizes in inches."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.add_subplot()


def rounds_axis(axes: Axes, last: float) -> None:
    """Let the x axis count rounds from 0."""
    axes.set_xlim(0, max(last, 1) * 1.015)
    axes.xaxis.set_major_locator(MaxNLocator(7, integer=True))
    axes.set_xlabel("round")


def percent_axis(axis: Any) -> None:
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.4g} %"))


def bytes_axis(axis: Any, largest: float) -> None:
    """Label ticks in the unit that suits the largest value."""
    power = min(4, int(math.log(max(largest, 1), 1000)))
    unit = ("B", "kB", "MB", "GB", "TB")[power]
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / 1000**power:.4g} {unit}"))


def thin(x: Array, y: Array, limit: int = MAX_POINTS) -> tuple[Array, Array, Array, Array]:
    """Reduce a line to at most `limit` points: x, mean, lowest and highest y of each bin of neighbours.

    >>> thin(np.arange(4.0), np.array([1.0, 3.0, 5.0, 9.0]), limit=2)
    (array([0.5, 2.5]), array([2., 7.]), array([1., 5.]), array([3., 9.]))
    """
    if len(x) <= limit:
        return x, y, y, y
    edges = np.linspace(0, len(x), limit + 1).astype(int)[:-1]
    sizes = np.diff([*edges, len(x)])
    means = [np.add.reduceat(values, edges) / sizes for values in (x, y)]
    return means[0], means[1], np.minimum.reduceat(y, edges), np.maximum.reduceat(y, edges)


def draw_line(axes: Axes, x: Array, y: Array, style: Look, **more: Any) -> None:
    """Draw a line: few points have markers; many are binned, with the range of each bin as a band."""
    centres, mean, low, high = thin(x, y)
    marker = {"marker": "o", "markersize": 3.2} if len(centres) <= 25 else {}
    axes.plot(centres, mean, **{"color": style.colour, "linestyle": style.dash, **marker, **more})
    if len(centres) < len(x):
        axes.fill_between(centres, low, high, color=style.colour, alpha=0.15, linewidth=0)


def shorten(name: str, limit: int = 22) -> str:
    """Shorten a name so that it fits a label.

    >>> shorten("speaker/with-a-very-long-name", 12)
    'speaker/wit…'
    """
    return name if len(name) <= limit else name[: limit - 1] + "…"


def legend(axes: Axes, handles: Sequence[Any], names: Sequence[str]) -> None:
    """Draw a legend in one row above the data."""
    labels = ["\u200b" + shorten(name) for name in names]  # matplotlib hides names that begin with "_"
    axes.legend(handles, labels, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=len(names),
                borderaxespad=0.2, handlelength=1.6, columnspacing=1.2)  # fmt: skip
