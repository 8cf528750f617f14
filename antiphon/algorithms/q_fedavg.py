"""q-FedAvg: fairness. Clients with larger losses get larger weights.

T. Li, M. Sanjabi, A. Beirami, V. Smith, "Fair Resource Allocation in Federated Learning", ICLR 2020,
arXiv:1905.10497: Algorithm 2.

| paper                        | here                                                                    |
| ---------------------------- | ----------------------------------------------------------------------- |
| q                            | `q`; 0 is federated averaging with uniform weights                      |
| F_k(w^t)                     | the report's "start_loss": mean loss per token before training          |
| L                            | 1 / (`local.lr` times its schedule)                                     |
| Δw_k = L (w^t − w_k)         | L · the update                                                          |
| Δ_k = F_k^q Δw_k             | the update, weighted by F_k^q                                           |
| h_k                          | q F_k^(q−1) ‖Δw_k‖² + L F_k^q                                           |
| w^(t+1) = w^t − ΣΔ_k / Σh_k  | `step`: both sums from reports and the weighted mean                    |

Deviations. F_k is the loss per token on the utterances that the client trains on, without masks and dropout.
L is a bound on curvature for plain SGD; with another `local.optimizer`, 1 / `local.lr` stands in for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from antiphon.algorithms.fedavg import select
from antiphon.core import ALGORITHMS, Metrics, Pool, Report, ServerState, Task, Tensors, Update
from antiphon.server.schedules import Constant, Schedule
from antiphon.tasks.client_work import LOSS
from antiphon.tasks.local_training import (
    TRAINED,
    LocalTraining,
    Trained,
    parameters_in,
    plan_local_steps,
    training_work,
)

SMALLEST = 1e-12  # a loss below this counts as this


@training_work(
    "q_fedavg.train", plan_local_steps, answers="parameters", reports={**TRAINED, "start_loss": LOSS}
)
def answer(task: Task, client: Any, trained: Trained) -> Update:
    """Answer as in plain training, and report the loss before training."""
    stats = {**trained.report.stats, "start_loss": client.mean_loss(parameters_in(task.tensors))}
    return Update(trained.delta, reports=(replace(trained.report, stats=stats),))


@ALGORITHMS.register
@dataclass(frozen=True)
class QFedAvg:
    """Federated averaging with weights and step sizes that make the losses of clients more equal."""

    q: float = 1.0
    local: LocalTraining = LocalTraining()
    client_schedule: Schedule = Constant()
    trainable: tuple[str, ...] = ("*",)  # patterns of parameter names; the others stay and never travel
    max_loss: float = 0.0  # a larger loss counts as this: what a client gains from a false one; 0: no limit
    choice: ClassVar[str] = "q_fed_avg"
    unbounded: ClassVar[str] = "its weights and its step size depend on the losses that clients report"

    def __post_init__(self) -> None:
        for name in ("q", "max_loss"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, not {getattr(self, name)}")

    def init(self, params: Tensors) -> ServerState:
        select(params, self.trainable)
        return ServerState(round=0, params=params)

    def round(self, state: ServerState, cohort: Sequence[str], pool: Pool) -> tuple[ServerState, Metrics]:
        scale = self.client_schedule(state.round)
        config = self.local.task_config(state, scale)
        task = Task("q_fedavg.train", select(state.params, self.trainable), config)
        update = pool.reduce(task, cohort, self.log_weight)
        size = self.step_size(update, self.local.lr * scale)
        params = {**state.params, **{n: state.params[n] - size * d for n, d in update.mean.items()}}
        losses = [report.stats["start_loss"] for report in update.reports]
        metrics = {"client_lr": self.local.lr * scale, "step_size": size, "largest_loss": max(losses)}
        return replace(state, round=state.round + 1, params=params), metrics

    def log_weight(self, report: Report) -> float:
        """Return q log F_k."""
        return self.q * math.log(self._loss(report))

    def _loss(self, report: Report) -> float:
        return min(max(SMALLEST, report.stats["start_loss"]), self.max_loss or math.inf)

    def step_size(self, update: Update, lr: float) -> float:
        """Return the factor on the weighted mean of the updates: L Σ F_k^q / Σ h_k."""
        total = 0.0
        for report in update.reports:
            loss = self._loss(report)
            norm = report.stats["norm"] / lr  # ‖Δw_k‖
            total += self.q * loss ** (self.q - 1) * norm**2 + loss**self.q / lr
        return math.exp(update.log_weight) / lr / total
