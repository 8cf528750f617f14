"""When simulated clients are available: always, at some hours of the day, or while they are charged.

`Availability` is an open choice: a frozen dataclass that returns the next moment at which a client may begin.
Times are seconds since midnight before the run. A task that has begun is finished, also after the window.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from antiphon.registry import Registry
from antiphon.seeding import derive

HOUR = 3600.0
DAY = 24 * HOUR


class Availability(Protocol):
    """A frozen dataclass: (client, seed, time) -> the first moment from `time` on at which it may begin."""

    def __call__(self, client: str, seed: int, time: float) -> float: ...


AVAILABILITIES = Registry("antiphon.availabilities", kind=Availability, default="always")


@AVAILABILITIES.register
@dataclass(frozen=True)
class Always:
    """Every client, at any time."""

    def __call__(self, client: str, seed: int, time: float) -> float:
        return time


def _check_window(opens: float, hours: float, spread: float) -> None:
    if not 0 <= opens < 24 or not 0 < hours <= 24 or spread < 0:
        raise ValueError(
            f"a window opens at an hour of at least 0 and below 24, and lasts up to 24 hours; its spread is "
            f"not negative: not opens {opens:g}, hours {hours:g}, spread {spread:g}"
        )


def _next_moment(time: float, hours: float, opens: Callable[[int], float | None]) -> float:
    """Return the first moment from `time` on in a window; `opens` gives its hour on a day, or None."""
    day = math.floor(time / DAY) - 2  # windows that begin earlier have ended
    while True:
        hour = opens(day)
        if hour is not None:
            begins = day * DAY + hour * HOUR
            if time < begins + hours * HOUR:
                return max(time, begins)
        day += 1


@AVAILABILITIES.register
@dataclass(frozen=True)
class Diurnal:
    """A window of the day, the same every day. Every client has its own hour, around `opens`.

    >>> Diurnal(opens=8, hours=14, spread=0)("speaker/1", 0, 7 * HOUR) / HOUR
    8.0
    """

    opens: float = 8.0  # hour of the day
    hours: float = 14.0
    spread: float = 2.0  # standard deviation of the opening hours of the clients, in hours

    def __post_init__(self) -> None:
        _check_window(self.opens, self.hours, self.spread)

    def __call__(self, client: str, seed: int, time: float) -> float:
        if not self.spread:
            return _next_moment(time, self.hours, lambda day: self.opens)
        shift = np.random.default_rng(derive(seed, "diurnal", client)).standard_normal()
        hour = (self.opens + self.spread * shift) % 24
        return _next_moment(time, self.hours, lambda day: hour)


@AVAILABILITIES.register
@dataclass(frozen=True)
class Charging:
    """A window in which a client is charged: at another hour every day, and on some days not at all."""

    opens: float = 23.0  # hour of the day
    hours: float = 7.0
    spread: float = 1.0  # standard deviation of the hours at which charging begins, in hours
    missed: float = 0.1  # share of the days on which a client is not charged

    def __post_init__(self) -> None:
        _check_window(self.opens, self.hours, self.spread)
        if not 0 <= self.missed < 1:
            raise ValueError(f"missed is a share of at least 0 and below 1, not {self.missed}")

    def __call__(self, client: str, seed: int, time: float) -> float:
        def opens(day: int) -> float | None:
            generator = np.random.default_rng(derive(seed, "charging", client, day))
            shift = min(12.0, max(-12.0, self.spread * generator.standard_normal()))
            return None if generator.random() < self.missed else self.opens + shift

        return _next_moment(time, self.hours, opens)
