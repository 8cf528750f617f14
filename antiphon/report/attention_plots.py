"""Attention of a few utterances as heat maps: tokens from the top, time from the left."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from antiphon.report.attention_summary import Example, centres
from antiphon.report.drawing import PALETTE, WHOLE, as_svg, shorten

COLOURS = LinearSegmentedColormap.from_list(
    "attention", ["#ffffff", "#cfe3f1", "#56b4e9", "#0072b2", "#00263d"]
)


@as_svg
def attention_maps(examples: Sequence[Example]) -> Figure:
    """One panel an utterance, two in a row; a line through the centres."""
    num_rows = -(-len(examples) // 2)
    figure = Figure(figsize=(WHOLE, 0.4 + 2.7 * num_rows), layout="constrained")
    panels = figure.subplots(num_rows, 2, squeeze=False).flatten()
    for axes, example in zip(panels, examples, strict=False):
        _draw(axes, example)
    for axes in panels[len(examples) :]:
        axes.set_visible(False)
    return figure


def _draw(axes: Axes, example: Example) -> None:
    num_tokens, num_frames = example.weights.shape
    extent = (0.0, example.seconds, num_tokens + 0.5, 0.5)
    axes.imshow(example.weights, cmap=COLOURS, vmin=0, aspect="auto", extent=extent, interpolation="none")
    seconds = (centres(example.weights) + 0.5) * example.seconds / num_frames
    axes.plot(seconds, np.arange(1, num_tokens + 1), color=PALETTE[1], linewidth=1.0)
    axes.grid(visible=False)
    axes.set_title(shorten(example.speaker))
    axes.set_xlabel("seconds")
    axes.set_ylabel("token")
    axes.yaxis.set_major_locator(MaxNLocator(6, integer=True))
