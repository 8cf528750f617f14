"""Tables of finished `antiphon personalize` folders: error rates, clients that gain, rates under noise.

    antiphon personalize lists.jsonl.gz --background TEXT --lm MODEL … --out paper
    antiphon personalize lists.jsonl.gz … --private paper=2,1,0.5,0.1 --out noise       (and so on)
    python benchmarks/marginals.py paper=paper noise=noise

Each argument is a name and a folder. A row has the word error rate with an interval over clients, the
relative change from the background model, and p of the matched-pairs test. Under noise, a rate is the mean of
its draws.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from statistics import mean
from typing import Any

from common import argument_parser, print_table, write_result

from antiphon.report.formatting import NONE, percent


def named(argument: str) -> tuple[str, Path]:
    name, _, folder = argument.partition("=")
    if not (Path(folder) / "results.json").is_file():
        raise argparse.ArgumentTypeError(f"{argument!r} is no NAME=FOLDER with a results.json")
    return name, Path(folder)


def read(folder: Path) -> dict[str, Any]:
    """Return the figures of a folder, without the clients, and how many of them gain and lose."""
    found: dict[str, Any] = json.loads((folder / "results.json").read_text())
    clients = found.pop("clients").values()
    found.pop("sha256", None)
    changes = [client["after"] - client["before"] for client in clients]
    found |= {
        "clients": len(changes),
        "better": sum(c < 0 for c in changes),
        "worse": sum(c > 0 for c in changes),
    }
    if (folder / "private.json").is_file():
        found["noise"] = json.loads((folder / "private.json").read_text())
        found["noise"].pop("sha256", None)
        for row in found["noise"]["rows"]:
            row["rate"] = mean(row["rates"])
            row["gain_kept"] = gain_kept(found["noise"], row["rate"])
    return found


def gain_kept(noise: Mapping[str, float], rate: float) -> float | None:
    """Return the share of the gain without noise that a rate has; None if there is no gain."""
    gain = noise["background"] - noise["no_noise"]
    return (noise["background"] - rate) / gain if gain else None


def span(interval: Mapping[str, float] | None, sign: str = "") -> str:
    if interval is None:
        return NONE
    low, high = (format(100 * interval[key], f"{sign}.2f") for key in ("low", "high"))
    return f" [{low}, {high}]"


def show(name: str, found: Mapping[str, Any]) -> None:
    print(f"\n{name}: {found['better']} of {found['clients']} clients gain, {found['worse']} lose\n")
    rows = []
    for row in found["rows"]:
        change = row["change"]
        relative = NONE if change is None else f"{100 * change['estimate']:+.2f}{span(change, '+')}"
        rows.append(
            [row["name"], percent(row["rate"]) + span(row["wer"]), relative, f"{row['test']['p']:.2g}"]
        )
    print_table(["", "WER %", "relative change %", "p"], rows)
    if "noise" in found:
        noise = found["noise"]
        print(f"\nno noise {percent(noise['no_noise'])} %, own words alone {percent(noise['own_words'])} %\n")
        head = ["noise", "ε", "population", "WER %", "draws", "gain kept %"]
        print_table(head, [noise_cells(row) for row in noise["rows"]])


def noise_cells(row: Mapping[str, Any]) -> list[str]:
    kept = NONE if row["gain_kept"] is None else f"{100 * row['gain_kept']:.0f}"
    rates = [percent(row["rate"]), " ".join(map(percent, row["rates"]))]
    return [row["name"], f"{row['epsilon']:g}", str(row["population"]), *rates, kept]


def main() -> None:
    parser = argument_parser(__doc__, "marginals")
    parser.add_argument(
        "folders", nargs="+", type=named, metavar="NAME=FOLDER", help="of antiphon personalize"
    )
    arguments = parser.parse_args()
    found = {name: read(folder) for name, folder in arguments.folders}
    for name, figures in found.items():
        show(name, figures)
    write_result(arguments, {"runs": found}, *(f"{name}=FOLDER" for name in found))


if __name__ == "__main__":
    main()
