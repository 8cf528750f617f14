"""An availability: clients begin on the hour."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class FullHours:
    hours: int = 1

    def __call__(self, client: str, seed: int, time: float) -> float:
        return math.ceil(time / (3600 * self.hours)) * 3600.0 * self.hours
