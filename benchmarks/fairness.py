"""How unequal word error rates of speakers are in finished runs: mean, worst tenth, variance.

    antiphon run docs/examples/fair.yaml --data demo/corpus --out fair/0
    antiphon run docs/examples/fair.yaml --data demo/corpus --out fair/1 --set seed=1     (more seeds)
    python benchmarks/fairness.py fair/0 fair/1 --baseline hierarchical

Two tables: the utterances that the clients held out of training (runs with `held_out`), and the test
speakers. All speakers count alike, whatever they have said. "worst tenth" is the mean WER of the tenth of the
speakers with the highest WER, rounded up; "variance" that of the speakers' WER, in squared points. Figures
are means over seeds; "difference" is that of the worst tenth to the baseline's in the same seeds, with a 95 %
interval by Student's t. The JSON has the figures of each seed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, pvariance
from typing import Any

from common import argument_parser, print_table, write_result
from seeds import Trained, check_seeds, over_seeds

from antiphon.experiment.score import HELD_OUT
from antiphon.report.formatting import NONE
from antiphon.report.run_folder import RunFolder

COLUMNS = {"wer": "mean", "worst_tenth": "worst tenth", "variance": "variance", "largest": "largest"}


def rates_of(run: RunFolder, split: str) -> list[float]:
    """Return the word error rate of each speaker of a split, in per cent, with the run's best model."""
    speakers = run.evaluations[split]["best"].speakers.values()
    return [100 * tally.words.rate for tally in speakers if tally.words.length]


def spread(rates: Sequence[float]) -> dict[str, float]:
    """Return the figures of a table for the rates of some speakers."""
    ordered = sorted(rates, reverse=True)
    worst = ordered[: math.ceil(len(ordered) / 10)]
    return {
        "wer": fmean(rates),
        "worst_tenth": fmean(worst),
        "variance": pvariance(rates),
        "largest": ordered[0],
    }


def measure(seeds: Sequence[Trained], split: str) -> dict[str, list[dict[str, Any]]]:
    """Return the figures of each run for each seed that has them."""
    found: dict[str, list[dict[str, Any]]] = {}
    for name in seeds[0].config["runs"]:
        having = [one for one in seeds if name in one.runs and split in one.runs[name].evaluations]
        if having:
            found[name] = [
                {
                    "seed": one.config["seed"],
                    "commit": one.runs[name].about["commit"],
                    **spread(rates_of(one.runs[name], split)),
                }
                for one in having
            ]
    return found


def show(rows: dict[str, list[dict[str, Any]]], baseline: str) -> None:
    own = {one["seed"]: one["worst_tenth"] for one in rows[baseline]}
    table = []
    for name, figures in rows.items():
        cells = [f"{fmean(one[key] for one in figures):.1f}" for key in COLUMNS]
        change = over_seeds([one["worst_tenth"] - own[one["seed"]] for one in figures])
        interval = " [{:+.1f}, {:+.1f}]".format(*change["interval"]) if change["interval"] else ""
        difference = NONE if name == baseline else f"{change['mean']:+.1f}{interval}"
        table.append([name, str(len(figures)), *cells, difference])
    print_table(["run", "seeds", *COLUMNS.values(), "difference"], table)


def main() -> None:
    parser = argument_parser(__doc__, "fairness")
    parser.add_argument("folders", nargs="+", type=Path, help="experiments that differ in their seed alone")
    parser.add_argument("--baseline", required=True, help="the run that others are compared with")
    arguments = parser.parse_args()
    seeds = [Trained.load(path) for path in arguments.folders]
    check_seeds(seeds, arguments.baseline)
    test = seeds[0].config["speakers"]["test"]
    result = {}
    for split, title in ((HELD_OUT, "Held-out utterances of the clients"), (test, "Test speakers")):
        rows = measure(seeds, split)
        if arguments.baseline in rows:
            first = rates_of(seeds[0].runs[arguments.baseline], split)
            print(f"{title}, WER % of {len(first)} speakers:\n")
            show(rows, arguments.baseline)
            print()
            result[split] = {"num_speakers": len(first), "runs": rows}
    options = [*map(str, arguments.folders), f"--baseline {arguments.baseline}"]
    write_result(arguments, result, *options)


if __name__ == "__main__":
    main()
