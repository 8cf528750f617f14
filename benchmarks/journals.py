"""What the journals of finished runs say: held-out WER, time, how much of it went into labels, memory.

    python benchmarks/journals.py out/0/* rates/*/books

Prints a line for each run: the best WER of the held-out speakers with its round, that of the start and of
the last round; seconds of training, and the share of them that clients spent on labels; seconds of all
clients' speech for one second of that (where a teacher never changes, the speed of labelling); the most
memory of a GPU.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common import print_table

from antiphon.records.journal import read
from antiphon.report.formatting import NONE, percent

HELD_OUT = ["best held-out WER %", "round", "start", "end"]
SPENT = ["training, s", "labels", "speech / labels"]
Entries = Sequence[Mapping[str, Any]]


def held_out(journal: Entries) -> list[str]:
    """Best, its round, start and end."""
    wers = {entry["round"]: entry["valid"]["wer"] for entry in journal if entry.get("valid")}
    if not wers:
        return [NONE] * 4
    best = min(wers, key=lambda number: wers[number])
    return [percent(wers[best]), str(best), percent(wers[min(wers)]), percent(wers[max(wers)])]


def spent(journal: Entries, clock: Entries) -> list[str]:
    """Seconds of training, the share of labels in them, and speech over the time for labels."""
    training = sum(entry["train_seconds"] for entry in clock)
    labels = sum(entry.get("task_label_seconds", 0.0) for entry in clock)
    if not labels:
        return [f"{training:.0f}", NONE, NONE]
    clients = (entry.get("clients", {}).items() for entry in journal)
    speech = {client: stats["seconds"] for own in clients for client, stats in own}
    return [f"{training:.0f}", f"{100 * labels / training:.0f} %", f"{sum(speech.values()) / labels:.0f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, help="folders; those without a journal are passed over")
    rows = []
    for run in parser.parse_args().runs:
        if (run / "journal.jsonl").exists():
            journal, clock = read(run / "journal.jsonl"), read(run / "clock.jsonl")
            memory = max((entry.get("gpu_mib", 0.0) for entry in clock), default=0.0)
            gpu = f"{memory:,.0f}" if memory else NONE
            rows.append([f"{run.parent.name}/{run.name}", *held_out(journal), *spent(journal, clock), gpu])
    print_table(["run", *HELD_OUT, *SPENT, "GPU, MiB"], rows)


if __name__ == "__main__":
    main()
