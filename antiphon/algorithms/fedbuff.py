"""FedBuff: the server takes a step as soon as K clients have answered, whenever they began.

J. Nguyen, K. Malik, H. Zhan, A. Yousefpour, M. Rabbat, M. Malek, D. Huba, "Federated Learning with Buffered
Asynchronous Aggregation", AISTATS 2022, arXiv:2106.06639: Algorithm 1.

| paper              | here                                                                              |
| ------------------ | --------------------------------------------------------------------------------- |
| K                  | `buffer`: answers of a server step                                                |
| M_c (concurrency)  | `rounds.cohort`: clients at work at any time                                      |
| t                  | state.version: one server step is one round of the engine                         |
| w^t, Δ_i           | state.params; an update's mean, old minus new                                     |
| τ_i                | steps from the model that client i began from to the one that its answer changes  |
| s(τ)               | `staleness`, by default 1 / sqrt(1 + τ) (§5)                                      |
| η_g                | the learning rate of `inner.server`                                               |

Deviations.
- The time that a client needs is simulated by the experiment's clock, so a run is the same every time.
- Answers have weights α_i as in `inner` (by examples, DGA softmax). A step is Σ α_i s(τ_i) Δ_i with
  Σ α_i = 1; for uniform weights this is the paper's (1/K) Σ s(τ_i) Δ_i. Any server optimiser takes it.
- A client that is at work gets no second task. Free places are filled after each server step, not before.
- Code of wrappers (labels of a teacher, a pruning mask) is that of the round in which a client answers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from antiphon.algorithms.fedavg import FedAvg
from antiphon.core import ALGORITHMS, Metrics, Pool, Report, Task, Tensors, Weigh, add_up
from antiphon.server.run_context import RunContext
from antiphon.server.staleness import Polynomial, Staleness
from antiphon.tasks.clients_at_work import Arrived, AsynchronousState, after_step, begin, wait_for


def check_asynchronous(run: Any, name: str, answers: int) -> None:
    """Refuse settings of a run that do not fit clients which begin and end in different rounds."""
    if run.secure_aggregation:
        raise ValueError(
            f"{name}: secure_aggregation hides updates in the sum of a cohort that begins and ends together, "
            "and here every answer has its own weight: leave out one of the two"
        )
    if run.rounds.needs_clock:
        raise ValueError(
            f"{name} waits for no client, so nobody is late: leave out rounds.deadline and "
            "rounds.over_selection"
        )
    if run.rounds.min_clients > answers:
        raise ValueError(
            f"{name}: rounds.min_clients is {run.rounds.min_clients}, but a step waits for {answers} only"
        )


@ALGORITHMS.register
@dataclass(frozen=True)
class FedBuff:
    """Asynchronous federated averaging: a server step for every `buffer` answers, old ones count less."""

    inner: FedAvg = FedAvg()
    buffer: int = 10  # answers of a server step; rounds.cohort is the number of clients at work
    staleness: Staleness = Polynomial()
    is_asynchronous: ClassVar[bool] = True
    unbounded: ClassVar[str] = (
        "which clients are in a step depends on how fast the others are, which no accountant here covers"
    )

    def __post_init__(self) -> None:
        if self.buffer < 1:
            raise ValueError(f"fed_buff: buffer must be at least 1, not {self.buffer}")

    def check_run(self, run: Any) -> None:
        check_asynchronous(run, "fed_buff", self.buffer)
        if self.buffer > run.rounds.cohort:
            raise ValueError(
                f"fed_buff: buffer {self.buffer} is above the {run.rounds.cohort} clients at work "
                "(rounds.cohort): the buffer would never be full"
            )

    def prepare(self, context: RunContext) -> FedBuff:
        if context.clients and self.buffer > len(context.clients):
            raise ValueError(
                f"fed_buff: buffer {self.buffer} is above the {len(context.clients)} clients of the run"
            )
        return self

    def init(self, params: Tensors) -> AsynchronousState:
        state = self.inner.init(params)
        return AsynchronousState(state.round, state.params)

    def round(
        self, state: AsynchronousState, cohort: Sequence[str], pool: Pool
    ) -> tuple[AsynchronousState, Metrics]:
        def task_of(params: Tensors, version: int) -> Task:
            return self.inner.task(replace(state, params=params, round=version))

        state = begin(state, cohort, pool, task_of)
        arrived = wait_for(state, self.buffer, pool, task_of, lambda version: self._weigh(state, version))
        update = add_up(update for _, update in arrived.updates)
        scale = self._mean_factor(state, arrived)
        delta = {name: scale * d for name, d in update.mean.items()}
        stepped, metrics = self.inner.step(state, delta)
        return after_step(stepped, arrived), {**metrics, **staleness_metrics(state, arrived)}

    def _weigh(self, state: AsynchronousState, version: int) -> Weigh:
        """Return the log-weights of answers from a version: log α + log s(τ)."""
        factor = self.staleness(state.version - version)
        log_factor = math.log(factor) if factor > 0 else -math.inf  # too old to count: a failure

        def weigh(report: Report) -> float:
            return self.inner.weighting(report) + log_factor

        return weigh

    def _mean_factor(self, state: AsynchronousState, arrived: Arrived) -> float:
        """Return Σ α_i s(τ_i), which the normalised mean of the updates lacks."""
        weights = [
            (self.inner.weighting(report), self.staleness(state.version - version))
            for version, update in arrived.updates
            for report in update.reports
        ]
        top = max((log_weight for log_weight, _ in weights), default=0.0)
        total = math.fsum(math.exp(log_weight - top) for log_weight, _ in weights)
        damped = math.fsum(factor * math.exp(log_weight - top) for log_weight, factor in weights)
        return damped / total if total else 1.0


def staleness_metrics(state: AsynchronousState, arrived: Arrived) -> Metrics:
    """Return the staleness of the answers of a step, and how many clients are still at work."""
    steps = arrived.staleness(state.version)
    mean = sum(steps) / len(steps) if steps else 0.0
    return {
        "staleness": mean,
        "largest_staleness": max(steps, default=0),
        "at_work": len(arrived.left),
        "versions": len({version for _, version, *_ in arrived.left}),
    }
