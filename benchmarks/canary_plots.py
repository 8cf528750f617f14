"""The canary benchmark drawn: how often the best attack finds the planted word, against what was claimed.

python benchmarks/canary_plots.py benchmarks/results/canary.json docs/privacy-canary.svg
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from antiphon.report.drawing import MUTED, STYLE, look, new_figure, percent_axis

ATTACK = "all words"  # the likelihood ratio of all that was published
Cases = Sequence[Mapping[str, Any]]


def drawn(cases: Cases) -> Figure:
    """One line for each kind of noise and unit, with intervals; the bound of the claim beside them."""
    lines: dict[str, list[Mapping[str, Any]]] = {}
    for case in cases:
        if case["claimed"] is not None and ATTACK in case:
            lines.setdefault(f"{case['noise']}: {case['unit']}", []).append(case)
    figure, axes = new_figure(7.5, 4.4)
    axes.set_title("How often the best attack is right after ten rounds")
    # Noise is rounded up to whole steps, so that 0.1 may be 0.09998.
    shown = sorted({float(f"{case['claimed']:.2g}") for own in lines.values() for case in own})
    claims = np.geomspace(shown[0], shown[-1], 50)
    axes.plot(
        claims, 1 / (1 + np.exp(-claims)), color=MUTED, linewidth=1, label="most that the claimed ε allows"
    )
    for number, (name, own) in enumerate(line for line in lines.items() if len(line[1]) > 1):
        own = sorted(own, key=lambda case: case["claimed"])
        rates = np.array([case[ATTACK]["rate"] for case in own])
        intervals = np.array([case[ATTACK]["interval"] for case in own])
        places = np.array([case["claimed"] for case in own]) * 1.03 ** (number - 2)  # side by side
        reach = np.abs(intervals.T - rates)
        style = look(number)
        axes.errorbar(
            places,
            rates,
            reach,
            color=style.colour,
            linestyle=style.dash,
            marker="o",
            markersize=4,
            label=name,
        )
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(shown))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel("claimed ε: of a round for eq. 9, in total for caps")
    percent_axis(axes.yaxis)
    axes.legend()
    return figure


def main() -> None:
    source, target = map(Path, sys.argv[1:])
    with matplotlib.rc_context(STYLE):
        drawn(json.loads(source.read_text())["cases"]).savefig(target)


if __name__ == "__main__":
    main()
