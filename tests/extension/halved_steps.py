"""A schedule: the learning rate is halved after every `rounds` rounds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class HalvedSteps:
    rounds: int = 1

    def __call__(self, round: int) -> float:
        return 0.5 ** (round // self.rounds)
