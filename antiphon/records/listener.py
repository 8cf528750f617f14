"""Listeners: objects that receive the events of a run while it goes on.

A listener is made for each run of an experiment. Override the methods that you need:

    class PrintLoss(antiphon.Listener):
        def finished(self, entry, clock):
            print(entry["round"], entry.get("loss"))

    antiphon.run("dga", data="speech", out="out", listeners=[lambda run: PrintLoss()])
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from antiphon.records.writer import Listener

SETTINGS = ("algorithm", "rounds")  # settings whose numbers are sent: others may have names of speakers


@dataclass(frozen=True)
class RunInfo:
    """A run that begins. `settings` are those of the run, as in experiment.json; `folder` is its folder."""

    name: str
    recipe: str
    seed: int
    num_rounds: int
    num_clients: int
    folder: Path
    settings: Mapping[str, Any]


Listen = Callable[[RunInfo], Listener]  # called as a run begins


@dataclass(frozen=True)
class Listeners(Listener):
    """Several listeners of one run as one."""

    members: Sequence[Listener]

    def resumed(self, round: int) -> None:
        for member in self.members:
            member.resumed(round)

    def replied(self, client: str) -> None:
        for member in self.members:
            member.replied(client)

    def at_sites(self, sites: Mapping[str, tuple[int, int]]) -> None:
        for member in self.members:
            member.at_sites(sites)

    def finished(self, entry: Mapping[str, Any], clock: Mapping[str, Any]) -> None:
        for member in self.members:
            member.finished(entry, clock)

    def ended(self, scores: Mapping[str, Any] | None) -> None:
        for member in self.members:
            member.ended(scores)


def numbers_of_run(run: RunInfo) -> dict[str, float]:
    """Return the numbers that describe a run: seed, clients, and those among its settings. No text.

    >>> settings = {"algorithm": {"beta": 2.0}, "start_folder": "home/ada", "rounds": {"total": 9}}
    >>> numbers_of_run(RunInfo("dga", "dga", 1, 9, 36, Path("out/dga"), settings))
    {'seed': 1, 'num_clients': 36, 'algorithm.beta': 2.0, 'rounds.total': 9}
    """
    chosen = {key: run.settings[key] for key in SETTINGS if key in run.settings}
    return {"seed": run.seed, "num_clients": run.num_clients, **_numbers(chosen)}


def _numbers(settings: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    numbers: dict[str, float] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            numbers |= _numbers(value, f"{prefix}{key}.")
        elif isinstance(value, int | float):
            numbers[prefix + key] = value
    return numbers


def client_scalars(entry: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of each client in a round, by tags that have the client's name.

    >>> client_scalars({"round": 1, "clients": {"ada": {"loss": 2.0, "weight": None}}})
    {'clients/ada/loss': 2.0}
    """
    return {
        f"clients/{client}/{name}": float(value)
        for client, stats in entry.get("clients", {}).items()
        for name, value in stats.items()
        if isinstance(value, int | float)
    }


def error_rates(scores: Mapping[str, Any]) -> dict[str, float]:
    """Return WER and CER of the scores of a run; nothing if it was not scored.

    >>> counts = {"substitutions": 1, "deletions": 0, "insertions": 1, "length": 8}
    >>> error_rates({"split": "test", "words": counts, "characters": {**counts, "length": 40}})
    {'test/wer': 0.25, 'test/cer': 0.05}
    """
    rates = {}
    for name, unit in (("wer", "words"), ("cer", "characters")) if scores else ():
        counts = scores[unit]
        wrong = counts["substitutions"] + counts["deletions"] + counts["insertions"]
        rates[f"{scores['split']}/{name}"] = wrong / max(counts["length"], 1)
    return rates
