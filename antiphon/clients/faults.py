"""Simulated faults: some clients drop out of a round, some are too slow for it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from antiphon.core import Task
from antiphon.seeding import derive


@dataclass(frozen=True)
class Unreliability:
    """Simulated faults of training clients.

    Client k needs (seconds of its audio) · `cost` / speed_k simulated seconds for an epoch. Speeds are
    log-normal with median 1 and fixed for a run.
    """

    dropout: float = 0.0  # probability that a client is away for a whole round
    deadline: float = 0.0  # simulated seconds; 0: the server waits for every client
    cost: float = 0.1
    speed_spread: float = 0.5  # standard deviation of the logarithm of the speeds

    def __post_init__(self) -> None:
        if not 0 <= self.dropout <= 1:
            raise ValueError(f"dropout is a probability, not {self.dropout}")
        if self.deadline < 0 or self.cost <= 0 or self.speed_spread < 0:
            raise ValueError("deadline and speed_spread must not be negative, cost must be above 0")


@dataclass(frozen=True)
class SimulatedFaults:
    """Decides which clients do not answer, from the seed, the round and the client."""

    unreliability: Unreliability
    seconds: Callable[[str], float]  # client -> seconds of its audio
    seed: int

    def __call__(self, task: Task, client: str) -> str:
        """Return the reason; "" if the client answers."""
        faults = self.unreliability
        draw = np.random.default_rng(derive(self.seed, "dropout", task.moment[0], client))
        if draw.random() < faults.dropout:
            return "dropped out (simulated)"
        if not faults.deadline:
            return ""
        normal = np.random.default_rng(derive(self.seed, "speed", client)).standard_normal()
        needed = self.seconds(client) * faults.cost / math.exp(faults.speed_spread * normal)
        needed *= max(1, int(task.config.get("epochs") or 1))
        if needed > faults.deadline:
            return f"too slow (simulated): {needed:.1f} s, deadline {faults.deadline:g} s"
        return ""
