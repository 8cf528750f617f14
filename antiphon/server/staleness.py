"""How much an answer counts that began from an older model: a factor of the number of steps since then."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from antiphon.registry import Registry


class Staleness(Protocol):
    """A frozen dataclass: server steps since a client got its model -> factor above 0; 1 for no step."""

    def __call__(self, steps: int) -> float: ...


STALENESS = Registry("antiphon.staleness", kind=Staleness, default="polynomial")


@STALENESS.register
@dataclass(frozen=True)
class Polynomial:
    """(1 + steps)^-power.

    >>> Polynomial()(0), Polynomial()(3), Polynomial(power=1.0)(3)
    (1.0, 0.5, 0.25)
    """

    power: float = 0.5

    def __post_init__(self) -> None:
        if not self.power >= 0:
            raise ValueError(f"staleness: power must not be negative, not {self.power}")

    def __call__(self, steps: int) -> float:
        return float((1 + steps) ** -self.power)


@STALENESS.register
@dataclass(frozen=True)
class Hinge:
    """1 up to `free` steps, then 1 / (slope · (steps - free) + 1).

    >>> [Hinge(slope=10.0, free=4)(steps) for steps in (0, 4, 5)]
    [1.0, 1.0, 0.09090909090909091]
    """

    slope: float = 10.0
    free: int = 4

    def __post_init__(self) -> None:
        if self.slope <= 0 or self.free < 0:
            raise ValueError("staleness: slope must be above 0, and free must not be negative")

    def __call__(self, steps: int) -> float:
        return 1.0 if steps <= self.free else 1 / (self.slope * (steps - self.free) + 1)


@STALENESS.register
@dataclass(frozen=True)
class Equal:
    """1, however old the model was."""

    def __call__(self, steps: int) -> float:
        return 1.0
