"""Pools and collected updates that use others, and change or observe what passes through them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from antiphon.core import Collected, Failure, Pool, Report, Task, Tensors, Update, Weigh


@dataclass
class PoolWrapper:
    """A pool that uses another pool. A subclass changes the tasks, or reads what comes back."""

    pool: Pool

    def outgoing(self, task: Task, cohort: Sequence[str]) -> Task:
        """Return the task to send instead."""
        return task

    def answered(self, reports: Sequence[Report]) -> None:
        """Read the reports of the clients that answered a task."""

    def reduce(self, task: Task, cohort: Sequence[str], weigh: Weigh) -> Update:
        update = self.pool.reduce(self.outgoing(task, cohort), cohort, weigh)
        self.answered(update.reports)
        return update

    def collect(self, task: Task, cohort: Sequence[str]) -> Collected:
        collected = self.pool.collect(self.outgoing(task, cohort), cohort)
        self.answered(collected.reports)
        return collected

    def arrival(self, task: Task, client: str, sent: float) -> float:
        return arrival(self.pool, self.outgoing(task, [client]), client, sent)


def arrival(pool: Pool, task: Task, client: str, sent: float) -> float:
    """Return the simulated time at which a client answers a task; `sent` if the pool has no clock."""
    ask: Callable[[Task, str, float], float] | None = getattr(pool, "arrival", None)
    return sent if ask is None else ask(task, client, sent)


@dataclass(frozen=True)
class WatchedUpdates:
    """Collected updates; `combined` is called with the log-weights and the result of every `combine`."""

    collected: Collected
    failures: Sequence[Failure]
    combined: Callable[[Sequence[float], Update], None]

    @property
    def reports(self) -> Sequence[Report]:
        return self.collected.reports

    def combine(self, log_weights: Sequence[float]) -> Update:
        update = self.collected.combine(log_weights)
        self.combined(log_weights, update)
        return update

    def distances(self, point: Tensors) -> Sequence[float]:
        return self.collected.distances(point)
