"""A staleness: an answer counts half as much for every step that it is late."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class HalvedAnswers:
    factor: float = 0.5

    def __call__(self, steps: int) -> float:
        return self.factor**steps
