"""Server rehearsal: after each round, some steps on data the server holds itself.

Dimitriadis et al., "A Federated Approach in Training Acoustic Models", Interspeech 2020, eq. 9;
"Dynamic Gradient Aggregation for Federated Domain Adaptation", 2021, eq. 5. It holds the model to its
task while clients pull it elsewhere ("naive rehearsal").

The server's data are one more client, so this wraps any algorithm and runs in any pool.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from antiphon.algorithms.fedavg import FedAvg
from antiphon.core import (
    ALGORITHMS,
    Algorithm,
    Collected,
    Metrics,
    Pool,
    Task,
    Tensors,
    Update,
    Weigh,
    lives_with_server,
)
from antiphon.server.schedules import Constant, Schedule
from antiphon.server.weighting import Uniform
from antiphon.tasks.local_training import LocalTraining, parameters_in

SERVER_CLIENT = "server/rehearsal"


@ALGORITHMS.register
@dataclass(frozen=True)
class Rehearsed:
    """An algorithm whose every round ends with training steps on the server's own utterances."""

    inner: Algorithm = FedAvg()
    local: LocalTraining = LocalTraining(steps=5)
    schedule: Schedule = Constant()
    client: str = SERVER_CLIENT
    refuses: ClassVar = {
        "reshapes": "the server would train removed weights; write federated_pruning around rehearsed"
    }

    def init(self, params: Tensors) -> Any:
        return self.inner.init(params)  # it has no state of its own

    def round(self, state: Any, cohort: Sequence[str], pool: Pool) -> tuple[Any, Metrics]:
        travelled = TravelledNames(pool)
        after, metrics = self.inner.round(state, cohort, travelled)
        config = self.local.task_config(state, self.schedule(state.round), purpose="rehearse")
        trained = {name: p for name, p in after.params.items() if name in travelled.names}
        update = pool.reduce(Task("train", trained, config), [self.client], Uniform())
        moved = {name: after.params[name] - step for name, step in update.mean.items()}  # DGA eq. 5
        loss = update.reports[0].stats["loss"]
        return after.with_params({**after.params, **moved}), {**metrics, "rehearsal_loss": loss}


class TravelledNames:
    """A pool that notes which parameters travel to clients: what travels is what is trained."""

    def __init__(self, pool: Pool) -> None:
        self.pool, self.names = pool, set[str]()

    def reduce(self, task: Task, cohort: Sequence[str], weigh: Weigh) -> Update:
        self._note(task, cohort)
        return self.pool.reduce(task, cohort, weigh)

    def collect(self, task: Task, cohort: Sequence[str]) -> Collected:
        self._note(task, cohort)
        return self.pool.collect(task, cohort)

    def _note(self, task: Task, cohort: Sequence[str]) -> None:
        if not all(map(lives_with_server, cohort)):
            self.names |= parameters_in(task.tensors).keys()
