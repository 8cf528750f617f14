"""Word error rates against what rounds cost devices: bytes, memory, simulated time; by class of devices.

    antiphon run benchmarks/devices-librispeech.yaml --data corpus --out out/0     (more)
    python benchmarks/devices.py out/0 out/1 out/2 --baseline float32 --classes partial

Means over seeds; WER with a 95 % interval by Student's t. MB are those of all rounds of the run. Memory is
the largest that the parameters of a client take between its steps, in MB: 4 bytes each without `storage`.
kJ are of all devices and rounds (docs/time.md). A run on the server's own speech costs devices nothing.
"times fewer" compares bytes up and down with those of the baseline. With --classes, the test speakers of a
run are shown by class: a speaker belongs to the class that a client of this name would.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from common import RESULTS, print_table
from seeds import Trained, check_seeds, compared, error_rate, to_json

from antiphon import config
from antiphon.algorithms.federated_dropout import FederatedDropout, class_of
from antiphon.report.formatting import NONE, percent
from antiphon.report.run_folder import RunFolder
from antiphon.scoring.error_rate import Tally

STRONG = "strong"


def costs(run: RunFolder) -> dict[str, float | None]:
    """Megabytes up and down, largest parameters on a client in MB, simulated hours and kJ of one run."""
    if run.about["config"]["data"] != "federated":
        return dict.fromkeys(("up", "down", "stored", "hours", "kilojoules"))
    stored = [
        stats["parameter_bytes"]
        for entry in run.trained
        for stats in entry["clients"].values()
        if "parameter_bytes" in stats
    ]
    hours = run.trained[-1].get("simulated_time")
    joules = [entry["simulated_joules"] for entry in run.trained if "simulated_joules" in entry]
    return {
        "up": sum(entry["bytes_up"] for entry in run.trained) / 1e6,
        "down": sum(entry["bytes_down"] for entry in run.trained) / 1e6,
        "stored": (max(stored) if stored else 4 * run.about["num_parameters"]) / 1e6,
        "hours": None if hours is None else hours / 3600,
        "kilojoules": sum(joules) / 1e3 if joules else None,
    }


def averaged(rows: Sequence[dict[str, float | None]]) -> dict[str, float | None]:
    columns = {key: [row[key] for row in rows] for key in rows[0]}
    return {
        key: None if None in values else mean(v for v in values if v is not None)
        for key, values in columns.items()
    }


def by_class(run: RunFolder, settings: Any, split: str) -> dict[str, Tally]:
    """Errors of the test speakers, added up by class of devices."""
    algorithm = config.from_dict(FederatedDropout, settings)
    found: dict[str, Tally] = {}
    for name, tally in run.evaluations[split]["best"].speakers.items():
        label = class_of(f"speaker/{name}", algorithm.classes, algorithm.seed) or STRONG
        found[label] = found.get(label, Tally()) + tally
    return found


def show(rows: dict[str, dict[str, Any]], baseline: str) -> None:
    whole = rows[baseline]["costs"]["up"] + rows[baseline]["costs"]["down"]
    table = []
    for name, row in rows.items():
        cost = row["costs"]
        cells = [NONE if cost[key] is None else f"{cost[key]:.1f}" for key in ("up", "down")]
        cells.append(NONE if cost["stored"] is None else f"{cost['stored']:.2f}")
        fewer = NONE if cost["up"] is None else f"{whole / (cost['up'] + cost['down']):.1f}"
        hours = NONE if cost["hours"] is None else f"{cost['hours']:.2f}"
        energy = NONE if cost["kilojoules"] is None else f"{cost['kilojoules']:.1f}"
        by_seed = " ".join(map(percent, row["wer"]["by_seed"]))
        table.append([name, error_rate(row["wer"]), by_seed, *cells, fewer, hours, energy])
    head = ["run", "test WER %", "by seed", "MB up", "MB down", "MB stored", "times fewer", "hours", "kJ"]
    print_table(head, table)


def show_classes(seeds: Sequence[Trained], name: str, others: Sequence[str]) -> dict[str, Any]:
    """Print WER by the classes of one run, also of runs whose devices are all strong."""
    first = seeds[0]
    settings = first.config["runs"][name]["algorithm"]["federated_dropout"]
    split = first.config["speakers"]["test"]
    result: dict[str, Any] = {}
    for other in [name, *others]:
        classes: dict[str, Tally] = {}
        for one in seeds:
            for label, tally in by_class(one.runs[other], settings, split).items():
                classes[label] = classes.get(label, Tally()) + tally
        result[other] = {label: tally.words.rate for label, tally in sorted(classes.items())}
    labels = sorted({label for rates in result.values() for label in rates})
    print()
    print_table(
        ["run", *(f"WER % {label}" for label in labels)],
        [[run, *(percent(rates.get(label)) for label in labels)] for run, rates in result.items()],
    )
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, help="experiments that differ in their seed")
    parser.add_argument("--baseline", required=True, help="the run with which bytes are compared")
    parser.add_argument("--classes", help="a run with federated_dropout: WER by its classes of devices")
    parser.add_argument("--out", type=Path, help=f"the file of figures, such as {RESULTS.name}/devices.json")
    options = parser.parse_args()
    seeds = [Trained.load(path) for path in options.folders]
    check_seeds(seeds, options.baseline)
    names = [name for name in seeds[0].config["runs"] if any(name in one.runs for one in seeds)]
    rows = {
        name: {
            **compared(seeds, name, options.baseline),
            "costs": averaged([costs(one.runs[name]) for one in seeds if name in one.runs]),
        }
        for name in names
        if all(one.runs[name].trained for one in seeds if name in one.runs)
    }
    show(rows, options.baseline)
    classes = show_classes(seeds, options.classes, [options.baseline]) if options.classes else {}
    if options.out:
        about = seeds[0].runs[options.baseline].about
        body = {
            "command": "python benchmarks/devices.py OUT..., after antiphon run for each seed",
            **{key: about.get(key) for key in ("recipe", "versions", "commit", "device")},
            "baseline": options.baseline,
            "runs": rows,
            "classes": classes,
        }
        options.out.write_text(json.dumps(body, indent=1, default=to_json) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
