"""Settings of secure aggregation."""

from __future__ import annotations

import importlib.util
import math
from dataclasses import dataclass

MIN_CLIENTS = 3  # a sum over fewer clients is close to a single update


@dataclass(frozen=True)
class SecureAggregation:
    """The server learns sums of updates, and no single update."""

    threshold: float = 0.6  # share of the cohort that must stay until the sum is open; more than one half
    bound: float = 1.0  # largest absolute value in an update; a client with a larger one is left out
    max_share: float = 0.5  # largest share of the weight that one client may have

    def __post_init__(self) -> None:
        if not 0.5 < self.threshold <= 1:
            raise ValueError(f"secure_aggregation.threshold is above 0.5 and at most 1, not {self.threshold}")
        if not 0 < self.bound < math.inf:
            raise ValueError(f"secure_aggregation.bound is a number above 0, not {self.bound}")
        if not 0 < self.max_share <= 1:
            raise ValueError(f"secure_aggregation.max_share is above 0 and at most 1, not {self.max_share}")

    def needed(self, num_clients: int) -> int:
        """Return t: how many clients of a cohort must stay until the end."""
        return max(MIN_CLIENTS, num_clients // 2 + 1, math.ceil(self.threshold * num_clients))

    def check(self, cohort: int, num_processes: int) -> None:
        """Refuse, before any work, a run whose sums could never be opened."""
        if importlib.util.find_spec("cryptography") is None:
            raise ValueError("secure aggregation needs cryptography: pip install 'antiphon[federation]'")
        if cohort < MIN_CLIENTS:
            raise ValueError(
                f"secure aggregation needs {MIN_CLIENTS} clients in a round, and rounds.cohort is {cohort}"
            )
        if num_processes > 1:
            raise ValueError("a simulation with secure_aggregation runs in one process: leave out --workers")
