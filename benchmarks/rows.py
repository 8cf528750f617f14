"""Any experiment over seeds: error rates of test speakers, and how much better a run is than another.

    antiphon run self-training --data CORPUS --out out/0 --set frontend.path=ENCODER.onnx --set seed=0
    …                                      (the same for seeds 1 and 2)
    python benchmarks/rows.py out/0 out/1 out/2 --baseline seed --plot rows.svg

Means over seeds with 95 % intervals by Student's t; the relative change of word errors against the baseline
with a 95 % interval over speakers (errors pooled over seeds, speakers resampled, paired), drawn if asked for.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import matplotlib
from common import RESULTS, print_table
from matplotlib.figure import Figure
from seeds import Trained, check_seeds, compared, error_rate, to_json

from antiphon.report.drawing import MUTED, PALETTE, STYLE, new_figure, percent_axis
from antiphon.report.formatting import NONE, percent
from antiphon.scoring.statistics import signed


def cells(name: str, row: Mapping[str, Any], is_baseline: bool) -> list[str]:
    by_seed = " ".join(map(percent, row["wer"]["by_seed"]))
    change = NONE if is_baseline else signed(row["relative_to_baseline"], 1)
    metrics = [NONE if value is None else f"{value:.4g}" for value in row["metrics"].values()]
    return [name, error_rate(row["wer"]), by_seed, error_rate(row["cer"]), change, *metrics]


def last_metric(seeds: Sequence[Trained], run: str, metric: str) -> float | None:
    """A metric of the algorithm in the last round, the mean over seeds; None if the run has none."""
    entries = [one.runs[run].trained[-1:] for one in seeds if run in one.runs]
    values = [entry["metrics"].get(metric) for (entry,) in filter(None, entries)]
    return None if not values or None in values else mean(values)


def draw(rows: Mapping[str, Mapping[str, Any]], baseline: str) -> Figure:
    """Relative changes with their intervals, the first row on top."""
    shown = {name: row["relative_to_baseline"] for name, row in rows.items() if row["relative_to_baseline"]}
    figure, axes = new_figure(7.0, 0.8 + 0.28 * len(shown))
    axes.set_title(f"WER of test speakers relative to {baseline}")
    axes.axvline(0, color=MUTED, linewidth=0.8)
    for place, change in enumerate(shown.values()):
        axes.plot([change.low, change.high], [place, place], color=PALETTE[0])
        axes.plot(change.estimate, place, color=PALETTE[0], marker="o", markersize=4)
    axes.set_yticks(range(len(shown)), shown)
    axes.invert_yaxis()
    percent_axis(axes.xaxis)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("experiments", nargs="+", type=Path, help="folders that differ in their seed")
    parser.add_argument("--baseline", default="seed", help="the run that the others are compared with")
    parser.add_argument("--out", type=Path, help="a JSON file; results/RECIPE.json unless told otherwise")
    parser.add_argument(
        "--metric",
        action="append",
        default=[],
        help="a metric of the last round, such as epsilon; repeatable",
    )
    parser.add_argument("--plot", type=Path, help="an .svg file of the relative changes")
    options = parser.parse_args()
    seeds = [Trained.load(path) for path in options.experiments]
    try:
        check_seeds(seeds, options.baseline)
    except ValueError as error:
        parser.error(str(error))
    names = [name for name in seeds[0].config["runs"] if any(name in one.runs for one in seeds)]
    rows = {
        name: compared(seeds, name, options.baseline)
        | {"metrics": {metric: last_metric(seeds, name, metric) for metric in options.metric}}
        for name in names
    }
    head = ["run", "WER %", "by seed", "CER %", f"WER relative to {options.baseline}, %", *options.metric]
    print_table(head, [cells(name, row, name == options.baseline) for name, row in rows.items()])
    if options.plot:
        with matplotlib.rc_context(STYLE):
            draw(rows, options.baseline).savefig(options.plot)
    about = seeds[0].runs[options.baseline].about
    body = {
        "command": "python benchmarks/rows.py OUT..., after antiphon run for each seed",
        **{key: about.get(key) for key in ("recipe", "versions", "commit", "device")},
        "baseline": options.baseline,
        "runs": rows,
    }
    out = options.out or RESULTS / f"{about['recipe']}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(body, indent=1, default=to_json) + "\n")


if __name__ == "__main__":
    main()
