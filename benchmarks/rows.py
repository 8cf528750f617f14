"""Any experiment over seeds: error rates of test speakers, and how much better a run is than another.

    antiphon run self-training --data CORPUS --out out/0 --set frontend.path=ENCODER.onnx --set seed=0
    …                                      (the same for seeds 1 and 2)
    python benchmarks/rows.py out/0 out/1 out/2 --baseline seed

Means over seeds with 95 % intervals by Student's t; the relative change of word errors against the baseline
with a 95 % interval over speakers (errors pooled over seeds, speakers resampled, paired).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import RESULTS, print_table
from seeds import Trained, check_seeds, error_rate, over_seeds, pooled_errors

from antiphon.report.formatting import NONE, percent, signed
from antiphon.report.statistics import relative_interval


def measure(seeds: Sequence[Trained], name: str, baseline: str) -> dict[str, Any]:
    """Figures of one run, over the seeds with which it has been scored."""
    having = [one for one in seeds if name in one.runs]
    split = having[0].config["speakers"]["test"]
    scores = [one.runs[name].evaluations[split]["best"].overall for one in having]
    errors, others = (pooled_errors([one.runs[n] for one in having], split)[0] for n in (name, baseline))
    change = relative_interval(errors, others)
    return {
        "seeds": [one.config["seed"] for one in having],
        "wer": over_seeds([score.words.rate for score in scores]),
        "cer": over_seeds([score.characters.rate for score in scores]),
        "relative_to_baseline": vars(change) if change else None,
        "change": signed(change, 1) if name != baseline else NONE,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("experiments", nargs="+", type=Path, help="folders that differ in their seed")
    parser.add_argument("--baseline", default="seed", help="the run that the others are compared with")
    parser.add_argument("--out", type=Path, help="a JSON file; results/RECIPE.json unless told otherwise")
    options = parser.parse_args()
    seeds = [Trained.load(path) for path in options.experiments]
    try:
        check_seeds(seeds)
        for one in seeds:
            if options.baseline not in one.runs:
                raise ValueError(f"{one.path}: {options.baseline!r} has not been scored: choose a --baseline")
    except ValueError as error:
        parser.error(str(error))
    names = [name for name in seeds[0].config["runs"] if any(name in one.runs for one in seeds)]
    rows = {name: measure(seeds, name, options.baseline) for name in names}
    print_table(
        ["run", "WER %", "by seed", "CER %", f"WER relative to {options.baseline}, %"],
        [
            [name, error_rate(row["wer"]), " ".join(map(percent, row["wer"]["by_seed"])),
             error_rate(row["cer"]), row["change"]]
            for name, row in rows.items()
        ],
    )  # fmt: skip
    about = seeds[0].runs[options.baseline].about
    body = {
        "command": "python benchmarks/rows.py OUT..., after antiphon run for each seed",
        **{key: about.get(key) for key in ("recipe", "versions", "commit", "device")},
        "baseline": options.baseline,
        "runs": rows,
    }
    out = options.out or RESULTS / f"{about['recipe']}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(body, indent=1) + "\n")


if __name__ == "__main__":
    main()
