"""A listener that prints the loss of every round: python docs/examples/print_losses.py CORPUS OUT"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import antiphon


class PrintLosses(antiphon.Listener):
    def __init__(self, run: antiphon.RunInfo) -> None:
        self.name = run.name

    def finished(self, entry: Mapping[str, Any], clock: Mapping[str, Any]) -> None:
        if "loss" in entry:
            print(f"{self.name}, round {entry['round']}: loss {entry['loss']:.2f}")

    def ended(self, scores: Mapping[str, Any] | None) -> None:
        print(f"{self.name} {'was stopped' if scores is None else 'has ended'}")


if __name__ == "__main__":
    antiphon.run("fedavg", sys.argv[1], sys.argv[2], settings=sys.argv[3:], listeners=[PrintLosses])
