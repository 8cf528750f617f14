"""An algorithm: one task for everybody, and the server's step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from antiphon.core import Metrics, Pool, ServerState, Task, Tensors
from antiphon.server.optimizers import ServerOptimizer, Sgd
from antiphon.server.weighting import Uniform, Weighting
from antiphon.tasks.local_training import LocalTraining


@dataclass(frozen=True)
class PlainRounds:
    local: LocalTraining = LocalTraining()
    weighting: Weighting = Uniform()
    server: ServerOptimizer = Sgd()

    def init(self, params: Tensors) -> ServerState:
        return ServerState(0, params)

    def round(self, state: ServerState, cohort: Sequence[str], pool: Pool) -> tuple[ServerState, Metrics]:
        task = Task("train", state.params, self.local.task_config(state))
        delta = pool.reduce(task, cohort, self.weighting).mean
        params, opt = self.server(state.params, delta, state.opt)
        return replace(state, round=state.round + 1, params=params, opt=opt), {}
