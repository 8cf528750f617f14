"""A client-side method: each client keeps a momentum, and updates travel as 16-bit floats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from antiphon.core import Metrics, Pool, ServerState, Task, Tensors, Update
from antiphon.server.weighting import Uniform
from antiphon.tasks.client_work import Answer
from antiphon.tasks.local_training import (
    LocalTraining,
    Trained,
    as_part,
    part_of,
    plan_local_steps,
    training_work,
)
from antiphon.tasks.views import CLIENT_VIEWS, View, ViewPool


@training_work("client_momentum.train", plan=plan_local_steps, answers="parameters")
def train(task: Task, client: Any, trained: Trained) -> Answer:
    before = part_of(client.state, "momentum")
    delta = {n: d + 0.5 * before[n] if n in before else d for n, d in trained.delta.items()}
    return Update(delta, reports=(trained.report,)), as_part(delta, "momentum")


@CLIENT_VIEWS.register
@dataclass(frozen=True)
class SixteenBits(View):
    def after(self, task: Task, client: Any, answer: Answer) -> Answer:
        update, changes = answer
        return replace(update, mean={name: delta.half() for name, delta in update.mean.items()}), changes

    def arrive(self, update: Update) -> Update:
        return replace(update, mean={name: delta.float() for name, delta in update.mean.items()})


@dataclass(frozen=True)
class ClientMomentum:
    local: LocalTraining = LocalTraining()

    def init(self, params: Tensors) -> ServerState:
        return ServerState(0, params)

    def round(self, state: ServerState, cohort: Sequence[str], pool: Pool) -> tuple[ServerState, Metrics]:
        task = Task("client_momentum.train", state.params, self.local.task_config(state))
        delta = ViewPool(pool, SixteenBits()).reduce(task, cohort, Uniform()).mean
        params = {name: parameter - delta[name] for name, parameter in state.params.items()}
        return replace(state, round=state.round + 1, params=params), {}
