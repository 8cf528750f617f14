"""A weighting: a client counts by its seconds of speech."""

from __future__ import annotations

from dataclasses import dataclass

from antiphon.core import Report


@dataclass(frozen=True)
class BySeconds:
    power: float = 1.0

    def __call__(self, report: Report) -> float:
        return self.power * report.stats["seconds"]
