"""One process: clients are trained where the server is, and added up as they finish."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from antiphon.core import Failure, Report, Task, Tensors, Update, Weigh, Worker, add_up, size_in_bytes
from antiphon.tasks.client_work import work_for
from antiphon.tasks.local_training import parameters_in
from antiphon.tasks.views import VIEWS, views_of


def distances_of(point: Tensors, others: Sequence[Tensors]) -> list[float]:
    """Return the l2 distance of each of `others` to a point, over all tensors, in one transfer."""
    if not point:
        return [0.0] * len(others)
    norms = []
    for other in others:
        if other.keys() != point.keys():
            raise ValueError(
                f"the point and an update hold different tensors: {sorted(other.keys() ^ point.keys())[:5]}"
            )
        gaps = torch._foreach_sub([other[name] for name in point], list(point.values()))
        norms.append(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gaps))))
    distances: list[float] = torch.stack(norms).tolist() if norms else []
    return distances


@dataclass(frozen=True)
class LocalUpdates:
    """Updates in memory, in cohort order, until their weights are known."""

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
    """Runs a worker in this process. Adds updates in cohort order, so the last bit is always the same."""

    worker: Worker

    def reduce(self, task: Task, cohort: Sequence[str], weigh: Weigh) -> Update:
        updates = map(arrived(task), self.worker.run(task, cohort))
        return add_up(update.weighted_by(weigh) for update in updates)

    def collect(self, task: Task, cohort: Sequence[str]) -> LocalUpdates:
        replies = list(map(arrived(task), self.worker.run(task, cohort)))
        updates = tuple(update for update in replies if not update.is_empty)
        return LocalUpdates(updates, tuple(failure for update in replies for failure in update.failures))


def arrived(task: Task) -> Callable[[Update], Update]:
    """Return a function from a client's answer to a task to an update that can be added to others.

    The function adds the number of bytes to the report. An answer with other tensors than the kind of work
    declares becomes a failure.
    """
    views = views_of(task) if VIEWS in task.config else []
    expected = _expected(task, {part for view in views for part in view.consumes})

    def arrive(update: Update) -> Update:
        if update.is_empty:
            return update
        (report,) = update.reports
        report = replace(report, bytes_up=size_in_bytes(update.mean))
        update = replace(update, reports=(report,))
        for view in reversed(views):
            update = view.arrive(update)
        if expected is not None and (wrong := _difference(update, expected)):
            return Update.nothing(Failure(report.client, f"its answer does not fit the task: {wrong}"))
        return update

    return arrive


def _expected(task: Task, consumed: set[str]) -> Mapping[str, Any] | None:
    """Return tensors with the names and shapes that an answer must have; None: any."""
    try:
        answers = getattr(work_for(task.kind), "answers", "")
    except ValueError:  # a kind that only the worker knows
        return None
    if answers == "everything":
        return {n: t for n, t in task.tensors.items() if n.rpartition("/")[0] not in consumed}
    return {"parameters": parameters_in(task.tensors), "nothing": {}}.get(answers)


def _difference(update: Update, expected: Mapping[str, Any]) -> str:
    if update.mean.keys() != expected.keys():
        odd = sorted(update.mean.keys() ^ expected.keys())
        return f"{odd[0]!r} is {'missing' if odd[0] in expected else 'unknown'}"
    for name, tensor in update.mean.items():
        if tensor.shape != expected[name].shape:
            return f"{name!r} has shape {tuple(tensor.shape)}, not {tuple(expected[name].shape)}"
    return ""
