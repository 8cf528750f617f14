"""Files that outlive a process: a budget that several runs share, and the rounds that a run has released.

Both are locked while a process changes them, and replaced as a whole.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from antiphon.core import Stopped
from antiphon.privacy.update_accounting import COSTS, Cost, cost_from_dict, cost_to_dict, epsilon_of
from antiphon.records.files import make_folder, write_json
from antiphon.records.reading import read_as
from antiphon.records.schema import Amount, Count, checked, shown

LEDGER_FORMAT = "antiphon-ledger/1"
RELEASES_FORMAT = "antiphon-releases/1"
RELEASES_FILE = "releases.json"
ROUNDING = 1e-9  # by which a computed ε may be above a budget


def check_cost(values: Mapping[str, Any]) -> None:
    """Refuse what `cost_to_dict` did not write."""
    kind = values.get("cost")
    if not isinstance(kind, str) or kind not in COSTS:
        raise ValueError(f"cost: {shown(kind)} is no cost of a private run")
    checked(COSTS[kind], {name: value for name, value in values.items() if name != "cost"})


@dataclass(frozen=True)
class SpentByRun:
    """A run in the ledger: its releases, and their cost."""

    rounds: Count
    cost: dict[str, Any]

    def __post_init__(self) -> None:
        check_cost(self.cost)


@dataclass(frozen=True)
class LedgerFile:
    """The ledger of private runs that share a budget."""

    format: ClassVar = LEDGER_FORMAT
    what: ClassVar = "ledger of private runs"
    advice: ClassVar = "Restore it: without it nobody knows what was spent"
    epsilon: Amount
    delta: Amount
    runs: Mapping[str, SpentByRun]


@dataclass(frozen=True)
class ReleasesFile:
    """releases.json: digests of what was released, by round."""

    format: ClassVar = RELEASES_FORMAT
    what: ClassVar = "list of releases"
    advice: ClassVar = "Restore it, or start a new run in another folder, with a new key"
    rounds: Mapping[str, str]


@dataclass(frozen=True)
class SharedBudget:
    """A file with what all runs on the same clients have cost, and the most that they may cost together."""

    file: str
    epsilon: float  # for all runs together, at the delta of the runs

    def __post_init__(self) -> None:
        if not self.file or not self.epsilon > 0:
            raise ValueError("a shared budget needs a file and an epsilon above 0")

    def spend(self, run: str, rounds: int, cost: Cost, delta: float) -> None:
        """Record that a run makes its first `rounds` releases; raise `Stopped` if that exceeds the budget.

        It is recorded before the clients are asked. A run that is resumed and repeats a round pays once.
        """
        path = Path(self.file)
        with _locked(path):
            runs = self._read(path, delta)
            if run in runs and runs[run]["rounds"] >= rounds:
                return
            others = [cost_from_dict(entry["cost"]) for name, entry in runs.items() if name != run]
            epsilon = epsilon_of((*others, cost), delta)
            if epsilon > self.epsilon * (1 + ROUNDING):
                raise Stopped(
                    f"the budget of {self.file} allows no further round: with it, all runs on these clients "
                    f"would have epsilon {epsilon:.4g}, and the budget is {self.epsilon:.4g}"
                )
            runs[run] = {"rounds": rounds, "cost": cost_to_dict(cost)}
            write_json(path, {"format": LEDGER_FORMAT, "epsilon": self.epsilon, "delta": delta, "runs": runs})

    def _read(self, path: Path, delta: float) -> dict[str, Any]:
        if not os.path.lexists(path):  # a link that leads nowhere is damage
            return {}
        body = read_as(LedgerFile, path)
        if (body.epsilon, body.delta) != (self.epsilon, delta):
            was, now = f"{body.epsilon:g} at delta {body.delta:g}", f"{self.epsilon:g} at {delta:g}"
            raise ValueError(
                f"{path} has a budget of epsilon {was}, not {now}: runs that share a budget name the same one"
            )
        return {name: asdict(run) for name, run in body.runs.items()}


def check_release(folder: Path, key: bytes, round: int, total: Mapping[str, np.ndarray]) -> None:
    """Record what a round releases, before its noise is added; refuse a round that had other answers before.

    The noise of a round is always the same. Two releases of one round with other answers would differ by
    these answers alone, without noise. Digests are keyed, so the file says nothing about the answers.
    """
    digest = hashlib.blake2b(key=key)
    for name, values in total.items():
        digest.update(json.dumps([round, name, values.shape]).encode())
        digest.update(np.ascontiguousarray(values).data)
    path = folder / RELEASES_FILE
    with _locked(path):
        body = {"rounds": dict(read_as(ReleasesFile, path).rounds) if os.path.lexists(path) else {}}
        before = body["rounds"].setdefault(str(round), digest.hexdigest())
        if before != digest.hexdigest():
            raise ValueError(
                f"{path} says that round {round + 1} was released before, with other answers: to release "
                "it again with the same noise would reveal them. Start a new run in another folder, with a "
                "new key"
            )
        write_json(path, {"format": RELEASES_FORMAT, **body})


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on the folder of a file; other processes wait."""
    make_folder(path.parent)
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
