"""Clients that attack: some clients of a simulation send false updates or report a false loss.

Bad data are a setting of an experiment (`corruption`). Here a client's data and training are right, but its
answer is changed just before it leaves the client:

| attack                        | setting                                                               |
| ----------------------------- | --------------------------------------------------------------------- |
| sign flip                     | `scale: -1`: −Δ_k; what an honest client learns is unlearnt           |
| scaling, model replacement    | `scale: 10`, `scale: -10` (Bagdasaryan et al. 2020, arXiv:1807.00459) |
| a lie about the loss          | `loss: 0`: any weight that depends on losses becomes too large        |
| wrong labels                  | `corruption.transcripts`, of the same clients (below)                 |

A simulation of P. Blanchard et al.'s Byzantine clients (NeurIPS 2017), who may send anything. In a federation
clients are real, and it is refused. The server's own clients never attack.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from antiphon.algorithms.fedavg import FedAvg
from antiphon.core import ALGORITHMS, Algorithm, Metrics, Pool, Report, Task, Tensors
from antiphon.registry import unknown_name
from antiphon.seeding import chosen_share
from antiphon.server.run_context import RunContext
from antiphon.tasks.client_work import Answer
from antiphon.tasks.views import CLIENT_VIEWS, View, ViewPool

LOSSES = ("loss", "start_loss")  # numbers in reports that weights may depend on


@CLIENT_VIEWS.register
@dataclass(frozen=True)
class AttackView(View):
    """The clients in `names` change their answers."""

    names: tuple[str, ...]
    scale: float
    loss: float | None

    def after(self, task: Task, client: Any, answer: Answer) -> Answer:
        update, changes = answer
        if client.id not in self.names or not update.mean:
            return answer
        mean = {n: self.scale * t if t.is_floating_point() else t for n, t in update.mean.items()}
        reports = tuple(self._reported(report) for report in update.reports)
        return replace(update, mean=mean, reports=reports), changes

    def _reported(self, report: Report) -> Report:
        if self.loss is None:
            return report
        return replace(report, stats={**report.stats, **{n: self.loss for n in LOSSES if n in report.stats}})


@ALGORITHMS.register
@dataclass(frozen=True)
class Attacked:
    """An algorithm, and clients that attack it.

    Only `seed` and the names of the clients decide who attacks. A larger fraction includes the clients of a
    smaller one, and the clients are those that `corruption` chooses with the same fraction and seed.
    """

    inner: Algorithm = FedAvg()
    fraction: float = 0.2  # share of the clients that attack
    scale: float = 1.0  # factor on their updates
    loss: float | None = None  # what they report as their loss; null: the true one
    seed: int = 0
    names: tuple[str, ...] = ()  # these clients attack, instead of a share

    def __post_init__(self) -> None:
        if not 0 < self.fraction <= 1:
            raise ValueError(f"fraction is a share of the clients above 0 and up to 1, not {self.fraction:g}")
        if not math.isfinite(self.scale):
            raise ValueError(f"scale is a number, not {self.scale}")
        if self.scale == 1 and self.loss is None:
            raise ValueError("clients are chosen but their answers are right: set scale or loss")

    def prepare(self, context: RunContext) -> Attacked:
        """Choose the clients; refuse the name of a client that is not there."""
        for name in self.names:
            if name not in context.clients:
                raise unknown_name(name, context.clients, "client", "attacked.names")
        return replace(
            self, names=self.names or tuple(chosen_share(context.clients, self.fraction, self.seed))
        )

    def check_place(self, is_away: bool) -> None:
        """Refuse clients on other machines."""
        if is_away:
            raise ValueError("attacked simulates bad clients: a federation has real ones")

    def init(self, params: Tensors) -> Any:
        return self.inner.init(params)

    def round(self, state: Any, cohort: Sequence[str], pool: Pool) -> tuple[Any, Metrics]:
        view = AttackView(self.names, self.scale, self.loss)
        return self.inner.round(state, cohort, ViewPool(pool, view))
