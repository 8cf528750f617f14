"""Learning-rate schedules: from the round (starting at 0) to a factor on the learning rate.

No schedule gives 0 within its rounds unless it is set to, so every round changes the model.

>>> [round(Cosine(rounds=4)(r), 3) for r in range(5)]
[1.0, 0.854, 0.5, 0.146, 0.0]
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from antiphon.registry import Registry


class Schedule(Protocol):
    """A frozen dataclass: the round -> a factor on the learning rate."""

    def __call__(self, round: int) -> float: ...


SCHEDULES = Registry("antiphon.schedules", kind=Schedule, default="constant")


@SCHEDULES.register
@dataclass(frozen=True)
class Constant:
    """Always 1."""

    def __call__(self, round: int) -> float:
        return 1.0


@dataclass(frozen=True)
class _Falling:
    """A linear rise for `warmup` rounds, then a fall from 1 to `final`, which is reached after `rounds`."""

    rounds: int
    final: float = 0.0
    warmup: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.warmup < self.rounds:
            raise ValueError(f"warmup must be at least 0 and below rounds ({self.rounds}), not {self.warmup}")

    def __call__(self, round: int) -> float:
        if round < self.warmup:
            return (round + 1) / (self.warmup + 1)
        return self._after(min(1.0, (round - self.warmup) / (self.rounds - self.warmup)))

    def _after(self, progress: float) -> float:
        raise NotImplementedError


@SCHEDULES.register
class Cosine(_Falling):
    """A linear rise for `warmup` rounds, then half a cosine from 1 to `final`, reached after `rounds`."""

    def _after(self, progress: float) -> float:
        return self.final + (1 - self.final) * (1 + math.cos(math.pi * progress)) / 2


@SCHEDULES.register
class Linear(_Falling):
    """A linear rise for `warmup` rounds, then a straight line from 1 to `final`, reached after `rounds`."""

    def _after(self, progress: float) -> float:
        return 1 + (self.final - 1) * progress


@SCHEDULES.register
@dataclass(frozen=True)
class Step:
    """A factor of `factor` after every `every` rounds."""

    every: int
    factor: float = 0.5

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ValueError(f"every must be at least 1 round, not {self.every}")

    def __call__(self, round: int) -> float:
        return self.factor ** (round // self.every)


@SCHEDULES.register
@dataclass(frozen=True)
class InverseSqrt:
    """A linear rise to 1 in `warmup` rounds, then a fall as 1/sqrt(round) (Vaswani et al. 2017)."""

    warmup: int = 1

    def __post_init__(self) -> None:
        if self.warmup < 1:
            raise ValueError(f"warmup must be at least 1 round, not {self.warmup}")

    def __call__(self, round: int) -> float:
        number = round + 1
        return min(number / self.warmup, math.sqrt(self.warmup / number))
