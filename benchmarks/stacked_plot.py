"""Plot where the time of a round of 64 Conformers goes: results/stacked_fused.json -> docs/stacked-round.svg.

The GPU works (kernels), waits between its first and its last kernel, or is idle before and after these, while
Python plans the round and adds up the updates. The profiled round is not one of those that were timed: the
profiler costs a little.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib
from common import RESULTS
from matplotlib.figure import Figure

from antiphon.report.drawing import PALETTE, STYLE, new_figure

WAYS = {"plain": "PyTorch's operations", "fused": "own kernels"}
PARTS = ("kernels", "waiting between kernels", "before the first and after the last")


def parts_of_a_round(found: dict[str, Any]) -> tuple[float, float, float]:
    """Milliseconds of each of PARTS.

    >>> parts_of_a_round({"busy_seconds": 0.06, "span_seconds": 0.08, "median": 0.1})
    (60.0, 20.0, 20.0)
    """
    busy, span, whole = (found[name] for name in ("busy_seconds", "span_seconds", "median"))
    return round(1000 * busy, 6), round(1000 * (span - busy), 6), round(1000 * max(0.0, whole - span), 6)


def draw(result: dict[str, Any]) -> Figure:
    figure, axes = new_figure(7.0, 3.2)
    axes.set_title("A round of 64 Conformers on one H200, milliseconds")
    labels: list[str] = []
    rows: list[tuple[float, float, float]] = []
    for name in (name for name in result if name.startswith("conformer-")):
        for way, label in WAYS.items():
            labels.append(f"{name.removeprefix('conformer-')}, {label}")
            rows.append(parts_of_a_round(result[name][way]))
    places, lefts = range(len(rows)), [0.0] * len(rows)
    for number, part in enumerate(PARTS):
        widths = [row[number] for row in rows]
        axes.barh(places, widths, left=lefts, color=PALETTE[number], label=part, height=0.7)
        lefts = [left + width for left, width in zip(lefts, widths, strict=True)]
    axes.set_yticks(list(places), labels)
    axes.invert_yaxis()
    figure.legend(loc="outside lower center", ncols=len(PARTS))
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("docs"))
    arguments = parser.parse_args()
    result = json.loads((RESULTS / "stacked_fused.json").read_text())
    with matplotlib.rc_context(STYLE):
        draw(result).savefig(arguments.out / "stacked-round.svg", metadata={"Date": None})
    print(f"written: {arguments.out / 'stacked-round.svg'}")


if __name__ == "__main__":
    main()
