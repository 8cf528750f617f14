"""Server rehearsal: after each round, some steps on data the server holds itself.

Dimitriadis et al., "A Federated Approach in Training Acoustic Models", Interspeech 2020, eq. 9;
"Dynamic Gradient Aggregation for Federated Domain Adaptation", 2021, eq. 5. It holds the model to its
task while clients pull it elsewhere ("naive rehearsal").

The server's data are one more client, so this wraps any algorithm and runs in any pool.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from antiphon.algorithms.dga_rl import DgaRl
from antiphon.algorithms.fedavg import FedAvg, select
from antiphon.algorithms.robust import GeometricMedian
from antiphon.core import Metrics, Pool, ServerState, Task, Tensors, with_validation
from antiphon.local import LocalTraining
from antiphon.schedule import Constant, Schedule
from antiphon.weighting import Uniform

SERVER_CLIENT = "server/rehearsal"


@dataclass(frozen=True)
class Rehearsed:
    """An algorithm whose every round ends with training steps on the server's own utterances."""

    inner: FedAvg | DgaRl | GeometricMedian = FedAvg()
    local: LocalTraining = LocalTraining(steps=5)
    schedule: Schedule = Constant()
    client: str = SERVER_CLIENT

    def with_validation(self, clients: Sequence[str]) -> Rehearsed:
        return replace(self, inner=with_validation(self.inner, clients))

    def init(self, params: Tensors) -> ServerState:
        return self.inner.init(params)

    def round(self, state: Any, cohort: Sequence[str], pool: Pool) -> tuple[Any, Metrics]:
        after, metrics = self.inner.round(state, cohort, pool)
        config = self.local.task_config(state, self.schedule(state.round), purpose="rehearse")
        trained = select(after.params, self.inner.trainable)
        update = pool.reduce(Task("train", trained, config), [self.client], Uniform())
        moved = {name: after.params[name] - step for name, step in update.mean.items()}  # DGA eq. 5
        loss = update.reports[0].stats["loss"]
        return replace(after, params={**after.params, **moved}), {**metrics, "rehearsal_loss": loss}
