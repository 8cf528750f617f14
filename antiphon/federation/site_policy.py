"""The policy of a site: what its owner allows. It has the last word, whatever the server asks for.

A policy is a YAML file with some of these settings:

    kinds: [train, evaluate]
    hours: 22:00-06:00
    bytes_per_day: 2000000000
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from antiphon import config
from antiphon.records.files import write_text


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

    def __post_init__(self) -> None:
        if self.hours:
            self._times()
        if min(self.bytes_per_day, self.answers_per_client) < 0 or self.min_cohort < 1:
            raise ValueError("bytes_per_day and answers_per_client are at least 0, min_cohort at least 1")
        if not 0 < self.max_share <= 1:
            raise ValueError(f"max_share is above 0 and at most 1, not {self.max_share}")

    @classmethod
    def read(cls, path: Path | None) -> SitePolicy:
        """Return the policy in a YAML file; without a file, one that allows everything."""
        if path is None:
            return cls()
        try:
            settings = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
            return config.from_dict(cls, settings)
        except (yaml.YAMLError, ValueError) as error:
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
    settings = task.get("config")
    written = settings.get("views", "[]") if isinstance(settings, dict) else "[]"
    return [str(view[0]) for view in json.loads(written)]


@dataclass
class Ledger:
    """What a site has used of its policy: bytes by day, answers by run and client. It survives a restart."""

    path: Path
    days: dict[str, int] = field(default_factory=dict)
    answers: dict[str, dict[str, int]] = field(default_factory=dict)

    @classmethod
    def open(cls, path: Path) -> Ledger:
        return cls(path, **json.loads(path.read_text())) if path.exists() else cls(path)

    def used(self, now: datetime) -> int:
        return self.days.get(f"{now:%Y-%m-%d}", 0)

    def add(self, now: datetime, num_bytes: int, run: str = "", client: str = "") -> None:
        today = f"{now:%Y-%m-%d}"
        self.days = {today: self.used(now) + num_bytes}
        if client:
            counts = self.answers.setdefault(run, {})
            counts[client] = counts.get(client, 0) + 1
        write_text(self.path, json.dumps({"days": self.days, "answers": self.answers}))

    def num_answers(self, run: str, client: str) -> int:
        return self.answers.get(run, {}).get(client, 0)
