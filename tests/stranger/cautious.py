"""An algorithm of somebody else, in a package of its own. antiphon does not know it.

`Cautious` asks every client for its loss before it trains. Clients that the model fits badly then train with
a smaller learning rate, so each client gets its own task. Every client keeps a momentum from round to round.
Updates travel in half precision. `Twice` makes two passes over the cohort in a round, around any algorithm.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from antiphon.core import (
    Algorithm,
    Metrics,
    Pool,
    Report,
    ServerState,
    Task,
    Tensors,
    Update,
    WrapperState,
    add_up,
)
from antiphon.server.weighting import Weighting
from antiphon.tasks.client_work import LOSS, Answer, client_work
from antiphon.tasks.local_training import (
    LocalTraining,
    Trained,
    as_part,
    parameters_in,
    part_of,
    plan_local_steps,
    training_work,
)
from antiphon.tasks.views import CLIENT_VIEWS, View, ViewPool


@client_work("cautious.probe", answers="nothing", reports={"loss": LOSS})
def probe(task: Task, client: Any) -> Update:
    """Report the loss of the parameters that came, and train nothing."""
    loss = client.mean_loss(parameters_in(task.tensors))
    return Update({}, reports=(Report(client.id, {"loss": loss}),))


@training_work("cautious.train", plan=plan_local_steps, answers="parameters")
def train(task: Task, client: Any, trained: Trained) -> Answer:
    """Answer with what changed plus a share of the last answer; keep the sum for the next round."""
    before, share = part_of(client.state, "momentum"), float(task.config["momentum"] or 0)
    delta = {n: d + share * before[n] if n in before else d for n, d in trained.delta.items()}
    return Update(delta, reports=(trained.report,)), as_part(delta, "momentum")


@CLIENT_VIEWS.register
@dataclass(frozen=True)
class Halved(View):
    """Updates travel as 16-bit floats."""

    def after(self, task: Task, client: Any, answer: Answer) -> Answer:
        update, changes = answer
        return replace(update, mean={name: delta.half() for name, delta in update.mean.items()}), changes

    def arrive(self, update: Update) -> Update:
        return replace(update, mean={name: delta.float() for name, delta in update.mean.items()})


@dataclass(frozen=True)
class ByLoss:
    """A client counts by its loss to some power."""

    power: float = 0.5

    def __call__(self, report: Report) -> float:
        return self.power * math.log(report.stats["loss"])


@dataclass(frozen=True)
class CautiousState(ServerState):
    """A server's state, and the client with the largest loss, round by round."""

    hardest: tuple[str, ...] = ()


@dataclass(frozen=True)
class Cautious:
    """Federated averaging in which each client has its own learning rate and its own momentum."""

    local: LocalTraining = LocalTraining()
    weighting: Weighting = ByLoss()
    momentum: float = 0.5

    def init(self, params: Tensors) -> CautiousState:
        return CautiousState(0, params)

    def round(self, state: CautiousState, cohort: Sequence[str], pool: Pool) -> tuple[CautiousState, Metrics]:
        asked = pool.reduce(Task("cautious.probe", state.params), cohort, lambda report: 0.0)
        losses = {report.client: report.stats["loss"] for report in asked.reports}
        smallest, hardest = min(losses.values()), max(losses, key=lambda client: losses[client])
        config, halved = (
            {**self.local.task_config(state), "momentum": self.momentum},
            ViewPool(pool, Halved()),
        )
        updates = []
        for client, loss in losses.items():
            task = Task("cautious.train", state.params, {**config, "lr": self.local.lr * smallest / loss})
            updates.append(halved.reduce(task, [client], self.weighting))
        delta = add_up(updates).mean
        params = {name: p - delta[name] for name, p in state.params.items()}
        after = replace(state, round=state.round + 1, params=params, hardest=(*state.hardest, hardest))
        return after, {"client_lr": self.local.lr, "largest_loss": losses[hardest]}


@dataclass(frozen=True)
class Twice:
    """An algorithm whose rounds are two rounds of another one, with the same cohort."""

    inner: Algorithm

    def init(self, params: Tensors) -> Any:
        return self.inner.init(params)

    def round(self, state: Any, cohort: Sequence[str], pool: Pool) -> tuple[Any, Metrics]:
        between, _ = self.inner.round(state, cohort, pool)
        after, metrics = self.inner.round(between, cohort, pool)
        return _at_round(after, state.round + 1), metrics


def _at_round(state: Any, round: int) -> Any:
    if isinstance(state, WrapperState):
        return replace(state, inner=_at_round(state.inner, round))
    return replace(state, round=round)
