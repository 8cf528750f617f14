"""FedAvg that ends its process after the first round: its time until then is measured from outside."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from antiphon.algorithms.fedavg import FedAvg
from antiphon.core import Metrics, Pool, ServerState


@dataclass(frozen=True)
class OneStep(FedAvg):
    """Ends after a round; of one client with one step, this is the first step."""

    def round(self, state: ServerState, cohort: Sequence[str], pool: Pool) -> tuple[ServerState, Metrics]:
        super().round(state, cohort, pool)
        os._exit(0)
