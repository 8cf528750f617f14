"""Server rehearsal: after each round, some training steps on the server's own data.

Dimitriadis et al., "A Federated Approach in Training Acoustic Models", Interspeech 2020, eq. 9;
"Dynamic Gradient Aggregation for Federated Domain Adaptation", 2021, eq. 5. It keeps the model good at
its task while clients pull it elsewhere ("naive rehearsal").

The server's data are one more client, so this wraps any algorithm and runs in any pool.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from antiphon.algorithms.fedavg import FedAvg
from antiphon.core import ALGORITHMS, Algorithm, Metrics, Pool, Task, Tensors, lives_with_server
from antiphon.server.schedules import Constant, Schedule
from antiphon.server.weighting import Uniform
from antiphon.tasks.local_training import LocalTraining, parameters_in
from antiphon.tasks.pool_wrapper import PoolWrapper

SERVER_CLIENT = "server/rehearsal"


@ALGORITHMS.register
@dataclass(frozen=True)
class Rehearsed:
    """An algorithm whose rounds end with training steps on the server's own utterances."""

    inner: Algorithm = FedAvg()
    local: LocalTraining = LocalTraining(steps=5)
    schedule: Schedule = Constant()
    client: str = SERVER_CLIENT
    refuses: ClassVar = {
        "reshapes": "the server would train removed weights; write {inside} around rehearsed"
    }

    def init(self, params: Tensors) -> Any:
        return self.inner.init(params)  # it has no state of its own

    def round(self, state: Any, cohort: Sequence[str], pool: Pool) -> tuple[Any, Metrics]:
        watched = TrainedNames(pool)
        after, metrics = self.inner.round(state, cohort, watched)
        config = self.local.task_config(state, self.schedule(state.round), purpose="rehearse")
        trained = {name: p for name, p in after.params.items() if name in watched.names}
        update = pool.reduce(Task("train", trained, config), [self.client], Uniform())
        moved = {name: after.params[name] - step for name, step in update.mean.items()}  # DGA eq. 5
        loss = update.reports[0].stats["loss"]
        return after.with_params({**after.params, **moved}), {**metrics, "rehearsal_loss": loss}


@dataclass
class TrainedNames(PoolWrapper):
    """A pool that notes which parameters are sent to clients: those that they train."""

    names: set[str] = field(default_factory=set)

    def outgoing(self, task: Task, cohort: Sequence[str]) -> Task:
        if not all(map(lives_with_server, cohort)):
            self.names |= parameters_in(task.tensors).keys()
        return task
