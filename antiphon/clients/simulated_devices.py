"""Simulated devices: how fast a client computes and how fast its network is.

`Devices` is an open choice: a frozen dataclass that returns the device of a client, decided by the seed. The
device of a client is the same in every round and every run of an experiment.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from antiphon.clients.availability import Availability
from antiphon.registry import Registry
from antiphon.seeding import derive

BITS_IN_MEGABIT = 1e6


@dataclass(frozen=True)
class Device:
    """What decides how long a client needs for its work."""

    slowness: float  # seconds of computing for a second of audio that it trains on
    down: float  # megabits a second from the server
    up: float  # megabits a second to the server
    availability: Availability | None = None  # null: that of the clock

    def seconds(self, bytes_down: int, audio: float, bytes_up: int) -> float:
        """Return the seconds of a task: receive, train on some seconds of audio, send.

        >>> Device(slowness=0.5, down=8.0, up=1.0).seconds(2_000_000, 10.0, 1_000_000)
        15.0
        """
        return self.seconds_of_network(bytes_down, bytes_up) + self.slowness * audio

    def seconds_of_network(self, bytes_down: int, bytes_up: int) -> float:
        """Return the seconds in which a task is received and its answer is sent."""
        return 8 * (bytes_down / self.down + bytes_up / self.up) / BITS_IN_MEGABIT


class Devices(Protocol):
    """A frozen dataclass: (client, seed) -> the device of the client."""

    def __call__(self, client: str, seed: int) -> Device: ...


DEVICES = Registry(
    "antiphon.devices",
    kind=Devices,
    homes=["antiphon.clients.simulated_devices", "antiphon.clients.device_table"],
    default="log_normal",
)


def check_positive(settings: object, *names: str) -> None:
    """Refuse settings that are not above 0."""
    for name in names:
        value = getattr(settings, name)
        if not (value > 0 and math.isfinite(value)):
            raise ValueError(f"{name} must be above 0, not {value}")


@dataclass(frozen=True)
class Bandwidth:
    """Log-normal bandwidths. A client has one draw for both directions."""

    down: float = 20.0  # megabits a second from the server, the median of the clients
    up: float = 5.0  # megabits a second to the server, the median of the clients
    spread: float = 0.5  # standard deviation of the logarithm; 0: all clients have the same

    def __post_init__(self) -> None:
        check_positive(self, "down", "up")
        if self.spread < 0:
            raise ValueError(f"spread must not be negative, not {self.spread}")

    def draw(self, generator: np.random.Generator) -> tuple[float, float]:
        factor = math.exp(self.spread * generator.standard_normal())
        return self.down * factor, self.up * factor


@DEVICES.register
@dataclass(frozen=True)
class LogNormal:
    """Slowness is log-normal: half of the clients are slower than the median, few are much slower."""

    slowness: float = 0.1  # the median, in seconds of computing for a second of audio
    spread: float = 0.5  # standard deviation of the logarithm; 0: all clients are equally fast
    bandwidth: Bandwidth = Bandwidth()

    def __post_init__(self) -> None:
        check_positive(self, "slowness")
        if self.spread < 0:
            raise ValueError(f"spread must not be negative, not {self.spread}")

    def __call__(self, client: str, seed: int) -> Device:
        generator = np.random.default_rng(derive(seed, "device", client))
        slowness = self.slowness * math.exp(self.spread * generator.standard_normal())
        return Device(slowness, *self.bandwidth.draw(generator))


@DEVICES.register
@dataclass(frozen=True)
class Pareto:
    """Slowness has a heavy tail: a share x^-tail of the clients is more than x times as slow as the fastest.

    With tail 1, one client of ten is 10 times as slow as the fastest, and one of a hundred 100 times.
    """

    slowness: float = 0.1  # of the fastest, in seconds of computing for a second of audio
    tail: float = 1.2  # smaller: more clients are very slow
    bandwidth: Bandwidth = Bandwidth()

    def __post_init__(self) -> None:
        check_positive(self, "slowness", "tail")

    def __call__(self, client: str, seed: int) -> Device:
        generator = np.random.default_rng(derive(seed, "device", client))
        slowness = self.slowness * (1.0 - generator.random()) ** (-1 / self.tail)
        return Device(slowness, *self.bandwidth.draw(generator))
