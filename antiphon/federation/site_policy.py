"""The policy of a site: what its owner allows. It decides, whatever the server asks for.

A policy is a YAML file with some of these settings:

    kinds: [train, evaluate]
    hours: 22:00-06:00
    bytes_per_day: 2000000000
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

from antiphon import config
from antiphon.privacy.announced_noise import Announced
from antiphon.privacy.update_accounting import cost_from_dict, cost_to_dict, epsilon_of
from antiphon.privacy.update_ledger import ROUNDING, check_cost
from antiphon.records.files import write_json
from antiphon.records.reading import read_as, read_yaml
from antiphon.records.schema import Count


class Refused(ValueError):
    """The policy of a site does not allow what the server asks for."""


@dataclass(frozen=True)
class SitePolicy:
    """Limits that a site enforces itself. Each refusal is named on the server."""

    kinds: tuple[str, ...] = ()  # kinds of work that are allowed, such as train and evaluate; empty: all
    views: tuple[str, ...] | None = None  # views of tasks that are allowed; null: all
    hours: str = ""  # local time in which work is done, such as 22:00-06:00; empty: always
    bytes_per_day: int = 0  # received and sent together; 0: no limit
    min_cohort: int = 1  # clients that must be asked with one task, by the server's word
    answers_per_client: int = 0  # answers of a client in one run: what bounds its privacy loss; 0: no limit
    only_secure: bool = False  # take part under secure aggregation only: the server sees no single update
    max_share: float = 0.5  # largest share of the weight of one client in a secure sum
    epsilon: float = 0.0  # privacy loss of a client in all runs together, which must be private; 0: no limit
    delta: float = 1e-6  # at which epsilon is computed

    def __post_init__(self) -> None:
        if self.hours:
            self._times()
        if min(self.bytes_per_day, self.answers_per_client) < 0 or self.min_cohort < 1:
            raise ValueError("bytes_per_day and answers_per_client are at least 0, min_cohort at least 1")
        if not 0 < self.max_share <= 1:
            raise ValueError(f"max_share is above 0 and at most 1, not {self.max_share}")
        if not 0 <= self.epsilon < math.inf or not 0 < self.delta < 1:
            raise ValueError("epsilon is at least 0, delta between 0 and 1")

    @classmethod
    def read(cls, path: Path | None) -> SitePolicy:
        """Return the policy in a YAML file; without a file, one that allows everything."""
        if path is None:
            return cls()
        settings = read_yaml(path) or {}
        try:
            return config.from_dict(cls, settings)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    def check(self, task: Mapping[str, Any], num_answers: int, now: datetime) -> None:
        """Refuse a task that is not allowed; `task` is the head of its message."""
        kind = str(task.get("kind"))
        if self.kinds and kind not in self.kinds:
            raise Refused(f"it allows {', '.join(self.kinds)}, not {kind!r}")
        if self.views is not None:
            for name in _views_in(task):
                if name not in self.views:
                    raise Refused(f"it does not allow the view {name!r}")
        cohort = task.get("cohort")
        if not isinstance(cohort, int) or cohort < self.min_cohort:
            raise Refused(f"it wants at least {self.min_cohort} clients in a cohort, not {cohort}")
        if self.answers_per_client and num_answers >= self.answers_per_client:
            raise Refused(f"the client has given its {self.answers_per_client} answers to this run")
        if self.hours and not self._is_open(now):
            raise Refused(f"it works from {self.hours.replace('-', ' to ')}, and it is {now:%H:%M} there")

    def check_bytes(self, used: int, more: int) -> None:
        if self.bytes_per_day and used + more > self.bytes_per_day:
            raise Refused(f"it allows {self.bytes_per_day} bytes a day, and {used} are used")

    def check_privacy(self, task: Mapping[str, Any], noise: Announced | None, ledger: Ledger) -> None:
        """Refuse a task of a run that is not private enough by what its server has announced.

        The whole run is recorded in the ledger before its first task is done.
        """
        if not self.epsilon:
            return
        run, client, round = str(task["run"]), str(task["client"]), int(task["config"].get("round") or 0)
        if noise is None:
            raise Refused("it has a limit on epsilon: it takes part in private runs only")
        if why_not := noise.why_unprotected(_written_views(task)):
            raise Refused(why_not)
        cost = cost_to_dict(noise.cost)
        if ledger.costs.get(run, cost) != cost:
            raise Refused("this run announced other noise before")
        turns = ledger.turns.get(run, {}).get(client, {})
        if why_not := noise.why_not([int(turn) for turn in turns], round):
            raise Refused(why_not)
        if turns.get(str(round), digest_of_task(task)) != digest_of_task(task):
            raise Refused(f"it was asked something else in round {round + 1} of this run before")
        epsilon = ledger.epsilon({**ledger.costs, run: cost}, self.delta)
        if epsilon > self.epsilon * (1 + ROUNDING):
            raise Refused(
                f"epsilon of a client would be {epsilon:.4g} at delta {self.delta:g} in all runs together, "
                f"and it allows {self.epsilon:g}"
            )
        ledger.take_turn(run, client, round, cost, digest_of_task(task))

    def _times(self) -> tuple[str, str]:
        times = re.fullmatch(r"((?:[01]\d|2[0-3]):[0-5]\d)-((?:[01]\d|2[0-3]):[0-5]\d)", self.hours)
        if times is None or times[1] == times[2]:
            raise ValueError(f"hours are written like 22:00-06:00, not {self.hours!r}")
        return times[1], times[2]

    def _is_open(self, now: datetime) -> bool:
        begin, end = self._times()
        time = f"{now:%H:%M}"
        return begin <= time < end if begin < end else time >= begin or time < end


def _views_in(task: Mapping[str, Any]) -> list[str]:
    return [name for name, _ in _written_views(task)]


def _written_views(task: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    settings = task.get("config")
    written = settings.get("views", "[]") if isinstance(settings, dict) else "[]"
    return [(str(name), values) for name, values in json.loads(written)]


def digest_of_task(task: Mapping[str, Any]) -> str:
    """Return a digest of what a task asks for, whoever asks and however often."""
    what = [task.get("kind"), task.get("config"), task["body"]["sha256"]]
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class LedgerFile:
    """ledger.json: see `Ledger`."""

    what: ClassVar = "ledger of a site"
    advice: ClassVar = "Restore it from a copy: without it, the site forgets what it has used of its policy"
    days: Mapping[str, Count]
    answers: Mapping[str, Mapping[str, Count]]
    costs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    turns: Mapping[str, Mapping[str, Mapping[str, str]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for cost in self.costs.values():
            check_cost(cost)


@dataclass
class Ledger:
    """What a site has used of its policy. It survives a restart."""

    path: Path
    days: dict[str, int] = field(default_factory=dict)  # day -> bytes
    answers: dict[str, dict[str, int]] = field(default_factory=dict)  # run -> client -> number
    costs: dict[str, dict[str, Any]] = field(default_factory=dict)  # private run -> what all its rounds cost
    # Private run -> client -> round -> digest of the task.
    turns: dict[str, dict[str, dict[str, str]]] = field(default_factory=dict)

    @classmethod
    def open(cls, path: Path) -> Ledger:
        known = read_as(LedgerFile, path) if os.path.lexists(path) else LedgerFile({}, {})
        turns = {run: {c: dict(t) for c, t in clients.items()} for run, clients in known.turns.items()}
        answers = {run: dict(counts) for run, counts in known.answers.items()}
        costs = {run: dict(cost) for run, cost in known.costs.items()}
        return cls(path, dict(known.days), answers, costs, turns)

    @staticmethod
    def epsilon(costs: Mapping[str, Mapping[str, Any]], delta: float) -> float:
        """Return the privacy loss of a client in all these runs together."""
        return epsilon_of(tuple(cost_from_dict(cost) for cost in costs.values()), delta)

    def take_turn(self, run: str, client: str, round: int, cost: dict[str, Any], digest: str) -> None:
        self.costs[run] = cost
        self.turns.setdefault(run, {}).setdefault(client, {})[str(round)] = digest
        self._write()

    def used(self, now: datetime) -> int:
        return self.days.get(f"{now:%Y-%m-%d}", 0)

    def add(self, now: datetime, num_bytes: int, run: str = "", client: str = "") -> None:
        today = f"{now:%Y-%m-%d}"
        self.days = {today: self.used(now) + num_bytes}
        if client:
            counts = self.answers.setdefault(run, {})
            counts[client] = counts.get(client, 0) + 1
        self._write()

    def _write(self) -> None:
        private = {"costs": self.costs, "turns": self.turns} if self.costs else {}
        write_json(self.path, {"days": self.days, "answers": self.answers, **private}, indent=None)

    def num_answers(self, run: str, client: str) -> int:
        return self.answers.get(run, {}).get(client, 0)
