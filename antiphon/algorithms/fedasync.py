"""FedAsync: the server mixes in the model of every client that answers, at once.

C. Xie, S. Koyejo, I. Gupta, "Asynchronous Federated Optimization", 2019, arXiv:1903.03934: Algorithm 1.

| paper              | here                                                                              |
| ------------------ | --------------------------------------------------------------------------------- |
| x_t, x_new         | state.params; the client's model: the parameters it began from minus its update   |
| t − τ              | steps from the model that the client began from to the one that it changes        |
| α, s(t − τ)        | `mixing`, `staleness`: polynomial (default), hinge or equal (§5.2)                |
| α_t = α s(t − τ)   | the share of the client's model in the next one                                   |
| ρ                  | `local.proximal`                                                                  |

x_t = (1 − α_t) x_(t−1) + α_t x_new. Clients at work: `rounds.cohort`; one answer is one round of the engine.

Deviations.
- The time that a client needs is simulated by the experiment's clock, so a run is the same every time.
- `local.proximal` is 0 by default, not above it; set it for very different clients.
- A client that is at work gets no second task.
- An answer to the present model has t − τ = 0. In the paper, it has 1: x_t is made from x_(t−1). `mixing`
  here is α s(1) there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from antiphon.algorithms.fedavg import select
from antiphon.algorithms.fedbuff import check_asynchronous, staleness_metrics
from antiphon.core import ALGORITHMS, Metrics, Pool, Task, Tensors
from antiphon.server.schedules import Constant, Schedule
from antiphon.server.staleness import Polynomial, Staleness
from antiphon.server.weighting import Uniform
from antiphon.tasks.clients_at_work import AsynchronousState, after_step, begin, wait_for
from antiphon.tasks.local_training import LocalTraining


@ALGORITHMS.register
@dataclass(frozen=True)
class FedAsync:
    """Asynchronous federated optimisation: every answer changes the model, old ones change it less."""

    local: LocalTraining = LocalTraining()
    client_schedule: Schedule = Constant()
    mixing: float = 0.6  # share of a client's model in the next one, if it began from the present one
    staleness: Staleness = Polynomial()
    trainable: tuple[str, ...] = ("*",)  # patterns of parameter names; the others stay and never travel
    is_asynchronous: ClassVar[bool] = True
    unbounded: ClassVar[str] = "every answer changes the model, and the next client, by itself"

    def __post_init__(self) -> None:
        if not 0 < self.mixing <= 1:
            raise ValueError(f"fed_async: mixing is a share above 0 and at most 1, not {self.mixing}")

    def check_run(self, run: Any) -> None:
        check_asynchronous(run, "fed_async", 1)

    def init(self, params: Tensors) -> AsynchronousState:
        select(params, self.trainable)
        return AsynchronousState(0, params)

    def round(
        self, state: AsynchronousState, cohort: Sequence[str], pool: Pool
    ) -> tuple[AsynchronousState, Metrics]:
        def task_of(params: Tensors, version: int) -> Task:
            config = self.local.task_config(replace(state, round=version), self.client_schedule(version))
            return Task("train", select(params, self.trainable), config)

        state = begin(state, cohort, pool, task_of)
        arrived = wait_for(state, 1, pool, task_of, lambda version: Uniform())
        params, share = state.params, 0.0
        for version, update in arrived.updates:
            if update.is_empty:
                continue
            began = state.versions[str(version)]
            share = self.mixing * self.staleness(state.version - version)  # α_t
            new = {name: began[name] - d for name, d in update.mean.items()}
            params = {**params, **{name: (1 - share) * params[name] + share * p for name, p in new.items()}}
        after = after_step(replace(state, round=state.round + 1, params=params), arrived)
        lr = self.local.lr * self.client_schedule(state.version)
        return after, {"client_lr": lr, "share": share, **staleness_metrics(state, arrived)}
