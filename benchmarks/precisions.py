"""Word error rates of the precisions of training: what do `tf32` and `bfloat16` cost against `float32`?

    for precision in float32 tf32 bfloat16; do for seed in 0 1 2; do
      antiphon run librispeech --data CORPUS --out out/$precision/$seed --set frontend.path=ENCODER.onnx \\
        --set precision=$precision --set seed=$seed --only seed --only hierarchical
    done; done
    python benchmarks/precisions.py out

Each experiment is whole in its precision, its seed model included. Means over seeds with 95 % intervals by
Student's t; the relative change of word errors against `float32` with a 95 % interval over speakers (paired).
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

from common import RESULTS, print_table
from seeds import Trained, check_seeds, compared, error_rate, to_json

from antiphon.clients.precision import PRECISIONS
from antiphon.report.formatting import NONE, percent
from antiphon.scoring.statistics import signed

BASELINE = "float32"


def side_by_side(root: Path, seed: str, run: str) -> Trained:
    """The run of one seed in all precisions, each under the name of its precision."""
    loaded = {precision: Trained.load(root / precision / seed) for precision in PRECISIONS}
    missing = [str(one.path) for one in loaded.values() if run not in one.runs]
    if missing:
        raise ValueError(f"{run} has not been scored in {', '.join(missing)}")
    config = {key: value for key, value in loaded[BASELINE].config.items() if key != "precision"}
    for precision, one in loaded.items():
        if {**config, "precision": precision} != one.config:
            raise ValueError(f"{one.path} differs from {loaded[BASELINE].path} in more than its precision")
    return replace(
        loaded[BASELINE], config=config, runs={name: one.runs[run] for name, one in loaded.items()}
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("root", type=Path, help="the folder of PRECISION/SEED")
    parser.add_argument(
        "--run", action="append", help="a run; repeatable; seed and hierarchical unless told otherwise"
    )
    parser.add_argument("--out", type=Path, default=RESULTS / "precisions.json", help="a JSON file")
    options = parser.parse_args()
    names = sorted(path.name for path in (options.root / BASELINE).iterdir() if path.is_dir())
    tables = {}
    try:
        for run in options.run or ("seed", "hierarchical"):
            seeds = [side_by_side(options.root, seed, run) for seed in names]
            check_seeds(seeds, BASELINE)
            tables[run] = {precision: compared(seeds, precision, BASELINE) for precision in PRECISIONS}
    except ValueError as error:
        parser.error(str(error))
    rows = [
        [
            run,
            precision,
            error_rate(row["wer"]),
            " ".join(map(percent, row["wer"]["by_seed"])),
            NONE if precision == BASELINE else signed(row["relative_to_baseline"], 1),
        ]
        for run, table in tables.items()
        for precision, row in table.items()
    ]
    print_table(["run", "precision", "WER %", "by seed", f"WER relative to {BASELINE}, %"], rows)
    about = seeds[0].runs[BASELINE].about
    body = {
        "command": "python benchmarks/precisions.py OUT, after antiphon run for each precision and seed",
        **{key: about.get(key) for key in ("recipe", "versions", "commit", "device")},
        "runs": tables,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(body, indent=1, default=to_json) + "\n")


if __name__ == "__main__":
    main()
