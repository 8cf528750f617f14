"""Agnostic federated learning: the model of the worst mixture of clients, by mixture weights that are learnt.

M. Mohri, G. Sivek, A. T. Suresh, "Agnostic Federated Learning", ICML 2019, arXiv:1902.00146: Stochastic-AFL.
With local steps and cohorts, as Y. Deng, M. M. Kamani, M. Mahdavi, "Distributionally Robust Federated
Averaging" (DRFA), NeurIPS 2020, arXiv:2102.12660: Algorithm 1.

| paper                          | here                                                                     |
| ------------------------------ | ------------------------------------------------------------------------ |
| p domains, D_k                 | the clients of the run, each with its speech                             |
| min_w max_λ Σ_k λ_k L_k(w)     | `state.mixture` is λ: it sums up to 1                                    |
| w ← w − γ_w ∇_w Σ λ_k L_k      | local steps; the mean of the updates with weights λ_k; `server`          |
| δ_λ L: an estimate of L_k(w)   | `gradient`, from the clients' losses before training ("start_loss")      |
| λ ← Π_Λ(λ + γ_λ δ_λ L)         | `project`; Λ is the simplex; γ_λ is `mixture_lr` / p                     |

Deviations.
- DRFA trains clients that are drawn by λ, and asks others, drawn uniformly, for their losses. Here one
  cohort, drawn uniformly, does both: the mean of the updates has the weights λ_k / Σ_j λ_j of those who
  answered, and no client is asked twice. If all of them have λ_k = 0, the model stays as it is.
- The gradient is that of L_k − (mean of all L_j). The projection is the same, as it ignores what is added to
  all entries. But the mean loss, which is far larger than the differences, does not move λ towards those who
  were drawn. Of a cohort S of p clients it is estimated, without bias, by (p − 1) / (|S| − 1) · (L_k − mean
  over S) for clients in S, and by 0 for the others. A cohort of one client tells nothing.
- DRFA measures losses at a model within the round, drawn at random. Here it is the model that the round
  starts from.
- L_k is the loss per token on the utterances that the client trains on, without masks and dropout. The paper
  returns the mean of all models; here it is the last one, or the best one on validation speakers.
- With γ_λ = `mixture_lr` / p, the weight of a client changes by `mixture_lr` times its loss above the mean in
  a round, as a share of an equal weight, whatever p is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from antiphon.algorithms.fedavg import select
from antiphon.core import ALGORITHMS, Metrics, Pool, Report, ServerState, Task, Tensors
from antiphon.server.optimizers import ServerOptimizer, Sgd
from antiphon.server.run_context import RunContext
from antiphon.server.schedules import Constant, Schedule
from antiphon.server.weighting import NEGLIGIBLE
from antiphon.tasks.local_training import LocalTraining


@dataclass(frozen=True)
class AflState(ServerState):
    """A server's state, and the weights of the clients in the mixture, in the order of their names."""

    mixture: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.float64))  # [clients]


@ALGORITHMS.register
@dataclass(frozen=True)
class Afl:
    """Federated averaging whose weights grow for clients with larger losses than the others."""

    mixture_lr: float = 0.1  # p γ_λ; 0: all weights stay equal
    local: LocalTraining = LocalTraining()
    client_schedule: Schedule = Constant()
    server: ServerOptimizer = Sgd()
    server_schedule: Schedule = Constant()
    trainable: tuple[str, ...] = ("*",)  # patterns of parameter names; the others stay and never travel
    max_loss: float = 0.0  # a larger loss counts as this: what a client gains from a false one; 0: no limit
    clients: tuple[str, ...] = ()  # all clients of the run; empty: those that are known when it begins
    unbounded: ClassVar[str] = "its weights depend on the losses that clients report"

    def __post_init__(self) -> None:
        for name in ("mixture_lr", "max_loss"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, not {getattr(self, name)}")

    def prepare(self, context: RunContext) -> Afl:
        return replace(self, clients=self.clients or tuple(sorted(context.clients)))

    def init(self, params: Tensors) -> AflState:
        select(params, self.trainable)
        count = len(self.clients)
        return AflState(0, params, mixture=torch.full((count,), 1 / max(1, count), dtype=torch.float64))

    def round(self, state: AflState, cohort: Sequence[str], pool: Pool) -> tuple[AflState, Metrics]:
        if not self.clients:
            raise ValueError("AFL does not know the clients: call run_context.prepare first")
        if len(state.mixture) != len(self.clients):
            raise ValueError(
                f"AFL: the run began with {len(state.mixture)} clients, and now there are {len(self.clients)}"
            )
        weights = dict(zip(self.clients, state.mixture.tolist(), strict=True))
        scale = self.client_schedule(state.round)
        # The clients' work is that of q-FedAvg: they report their loss before training.
        config = self.local.task_config(state, scale)
        task = Task("q_fedavg.train", select(state.params, self.trainable), config)
        update = pool.reduce(task, cohort, lambda report: log_weight(weights[report.client]))
        params, opt, server_scale = state.params, state.opt, self.server_schedule(state.round)
        if any(weights[report.client] for report in update.reports):
            params, opt = self.server(params, update.mean, opt, server_scale)
        losses = {report.client: self._loss(report) for report in update.reports}
        rate = self.mixture_lr / len(self.clients)
        mixture = project(state.mixture.cpu() + rate * gradient(losses, self.clients))
        metrics = {
            "client_lr": self.local.lr * scale,
            "server_lr": self.server.lr * server_scale,
            "largest_loss": max(losses.values()),
            "largest_share": float(mixture.max()),
            "num_without_weight": float((mixture == 0).sum()),
        }
        return replace(state, round=state.round + 1, params=params, opt=opt, mixture=mixture), metrics

    def _loss(self, report: Report) -> float:
        return min(report.stats["start_loss"], self.max_loss or math.inf)


def log_weight(share: float) -> float:
    """Return log λ_k; a negligible weight for 0."""
    return math.log(share) if share > 0 else NEGLIGIBLE


def gradient(losses: Mapping[str, float], clients: Sequence[str]) -> Tensor:
    """Estimate L_k − (mean of all L_j) [clients] from the losses of a cohort.

    >>> gradient({"a": 3.0, "b": 1.0}, ["a", "b", "c"])
    tensor([ 2., -2.,  0.], dtype=torch.float64)
    """
    if len(losses) < 2:
        return torch.zeros(len(clients), dtype=torch.float64)
    mean = math.fsum(losses.values()) / len(losses)
    factor = (len(clients) - 1) / (len(losses) - 1)
    values = [factor * (losses[client] - mean) if client in losses else 0.0 for client in clients]
    return torch.tensor(values, dtype=torch.float64)


def project(point: Tensor) -> Tensor:
    """Return the nearest point [n] of the simplex: no entry is negative, and they sum up to 1.

    By sorting: J. Duchi, S. Shalev-Shwartz, Y. Singer, T. Chandra, "Efficient Projections onto the l1-Ball",
    ICML 2008, Figure 1.

    >>> project(torch.tensor([0.9, 0.5, -0.2]))
    tensor([0.7000, 0.3000, 0.0000])
    """
    ordered = point.sort(descending=True).values
    excess = (ordered.cumsum(0) - 1) / torch.arange(1, len(point) + 1)
    num_positive = int((ordered > excess).sum())
    return (point - excess[num_positive - 1]).clamp(min=0)
