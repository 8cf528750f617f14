"""One process: clients are trained where the server is, and folded as they finish."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from antiphon.core import Failure, Report, Task, Tensors, Update, Weigh, Worker, add_up
from antiphon.tasks.views import arrived


def distances_of(point: Tensors, others: Sequence[Tensors]) -> list[float]:
    """The l2 distance of each of `others` to a point, over all tensors together; read in one transfer."""
    if not point:
        return [0.0] * len(others)
    found = []
    for other in others:
        if other.keys() != point.keys():
            raise ValueError(
                f"the point and an update hold different tensors: {sorted(other.keys() ^ point.keys())[:5]}"
            )
        gaps = torch._foreach_sub([other[name] for name in point], list(point.values()))
        found.append(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gaps))))
    distances: list[float] = torch.stack(found).tolist() if found else []
    return distances


@dataclass(frozen=True)
class LocalUpdates:
    """Updates kept in memory, in cohort order, until weights for them are known."""

    updates: tuple[Update, ...]
    failures: tuple[Failure, ...]

    @property
    def reports(self) -> tuple[Report, ...]:
        return tuple(report for update in self.updates for report in update.reports)

    def combine(self, log_weights: Sequence[float]) -> Update:
        if len(log_weights) != len(self.updates):
            raise ValueError(f"{len(log_weights)} weights for {len(self.updates)} updates")
        return add_up(update.with_log_weight(w) for update, w in zip(self.updates, log_weights, strict=True))

    def distances(self, point: Tensors) -> list[float]:
        return distances_of(point, [update.mean for update in self.updates])


@dataclass(frozen=True)
class LocalPool:
    """Runs a worker in this process. Folds in cohort order, so the last bit is always the same."""

    worker: Worker

    def reduce(self, task: Task, cohort: Sequence[str], weigh: Weigh) -> Update:
        updates = map(arrived(task), self.worker.run(task, cohort))
        return add_up(update.weighted_by(weigh) for update in updates)

    def collect(self, task: Task, cohort: Sequence[str]) -> LocalUpdates:
        replies = list(map(arrived(task), self.worker.run(task, cohort)))
        held = tuple(update for update in replies if not update.is_empty)
        return LocalUpdates(held, tuple(failure for update in replies for failure in update.failures))
