"""One process: clients are trained where the server is, and added up as they finish."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from antiphon.core import (
    Failure,
    Report,
    Task,
    Tensors,
    Update,
    Weigh,
    Worker,
    add_up,
    size_in_bytes,
)
from antiphon.tasks.client_work import Bounds, work_for
from antiphon.tasks.local_training import (
    MeasuredDelta,
    find_nonfinite,
    measure_delta,
    parameters_in,
    parts_of,
)
from antiphon.tasks.views import VIEWS, View, views_of


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
        updates = map(arrived(task), self.worker.run(task, cohort), cohort)
        return add_up(update.weighted_by(weigh) for update in updates)

    def collect(self, task: Task, cohort: Sequence[str]) -> LocalUpdates:
        replies = list(map(arrived(task), self.worker.run(task, cohort), cohort))
        updates = tuple(update for update in replies if not update.is_empty)
        return LocalUpdates(updates, tuple(failure for update in replies for failure in update.failures))


# --- Where answers of clients enter the server ----------------------------------------------------

MISFIT = "its answer does not fit the task"
Shapes = dict[str, tuple[torch.Size, torch.dtype]]  # name of a tensor -> what it must be


def departing(task: Task) -> Task:
    """Return a task as it leaves the server. Its round and call are known.

    Every task of a round passes it once, whatever the pool. Encoded tensors do not say what an answer must be
    like, so this is noted before.
    """
    if VIEWS not in task.config:
        return task
    views = views_of(task)
    task = replace(task, answers_like=expected_tensors(task, views))
    for view in views:
        task = view.depart(task)
    return task


def arrived(task: Task) -> Callable[[Update, str], Update]:
    """Return a function from the answer of a client to an update that can be added to others.

    Every answer passes it, in every pool. The server trusts only the name of the client that it asked. An
    answer that does not fit the task, is not finite, or reports numbers outside their bounds becomes a
    failure of that client, and the round goes on. Norms are the server's own, whatever the client reports.
    Of work that declares no tensors, all answers must have those of the first one.
    """
    views = views_of(task) if VIEWS in task.config else []
    like = expected_tensors(task, views)
    expected = None if like is None else _shapes_of(like)
    measured: object = None  # rows of these parts have `num_bytes` …
    fitting: object = None  # … and rows of these fit the task
    num_bytes = 0

    def accept(update: Update, client: str) -> Update:
        nonlocal expected, measured, fitting, num_bytes
        parts = parts_of(update.mean)
        if parts is None or parts is not measured:
            measured, num_bytes = parts, size_in_bytes(update.mean)
        report = replace(_report_of(update, client), bytes_up=num_bytes)
        check_stats(task.kind, report.stats)
        update = Update(update.mean, reports=(report,))
        for view in reversed(views):
            update = view.arrive(view.decode(update, task, like))
        parts = parts_of(update.mean)
        if expected is not None and (parts is None or parts is not fitting):
            _check_shapes(update.mean, expected)
            fitting = parts
        update = _measured(update, has_parameters=_work_for(task.kind) is not None)
        expected = _shapes_of(update.mean) if expected is None else expected
        return update

    def arrive(update: Update, client: str) -> Update:
        try:
            return _failed(update, client) if update.is_empty else accept(update, client)
        except ValueError as error:
            return Update.nothing(Failure(client, str(error)))
        except Exception as error:  # an answer that is like no other must not end the run
            return Update.nothing(Failure(client, f"{type(error).__name__}: {error}"))

    return arrive


def _work_for(kind: str) -> Any:
    """Return the work for a kind of task; None for a kind that only the worker knows."""
    try:
        return work_for(kind)
    except ValueError:
        return None


def expected_tensors(task: Task, views: Sequence[View]) -> Tensors | None:
    """Return tensors with the names, shapes and types that an answer must have; None: not declared."""
    if task.answers_like is not None:
        return task.answers_like
    consumed = {part for view in views for part in view.consumes}
    everything = {n: t for n, t in task.tensors.items() if n.rpartition("/")[0] not in consumed}
    declared = {"everything": everything, "parameters": parameters_in(task.tensors), "nothing": {}}
    return declared.get(getattr(_work_for(task.kind), "answers", ""))


def check_stats(kind: str, stats: Mapping[str, Any]) -> None:
    """Refuse a report whose numbers are not finite, or outside the bounds that the kind of work declares.

    Texts are not repeated: they could be private.
    """
    for name, value in stats.items():
        if not isinstance(value, float | int) or isinstance(value, bool):
            raise ValueError(f"{name!r:.60} is a {type(value).__name__}, not a number")
        if not abs(value) <= sys.float_info.max:  # NaN, infinity, or an integer that no float holds
            raise ValueError(f"{name:.60} is {value if isinstance(value, float) else 'too large'}")
    bounds: Mapping[str, Bounds] = getattr(_work_for(kind), "reports", {})
    for name, bound in bounds.items():
        if name not in stats:
            if bound.is_required:
                raise ValueError(f"it did not report {name!r}")
        elif not bound.least <= stats[name] <= bound.most:
            raise ValueError(f"{name}: {stats[name]:g} is not between {bound.least:g} and {bound.most:g}")
        elif bound.is_whole and stats[name] != int(stats[name]):
            raise ValueError(f"{name}: {stats[name]:g} is not a whole number")


def _shapes_of(tensors: Tensors) -> Shapes:
    return {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}


def _failed(update: Update, client: str) -> Update:
    """Return the update of a client that did not answer; its failures must be its own."""
    if update.reports or any(failure.client != client for failure in update.failures):
        raise ValueError(f"{MISFIT}: it reports about other clients")
    return update


def _report_of(update: Update, client: str) -> Report:
    """Return the one report of an answer, which must be that of the client."""
    if len(update.reports) != 1 or update.failures:
        raise ValueError(f"{MISFIT}: it has {len(update.reports)} reports, not one")
    (report,) = update.reports
    if report.client != client:
        raise ValueError(f"{MISFIT}: its report names another client")
    if type(report.state_bytes) is not int or report.state_bytes < 0:
        raise ValueError(f"{MISFIT}: the size of its state is not a number of bytes")
    return report


def _check_shapes(tensors: Tensors, expected: Shapes) -> None:
    """Refuse tensors of other names, shapes or types than expected."""
    if tensors.keys() != expected.keys():
        odd = sorted(tensors.keys() ^ expected.keys())
        raise ValueError(f"{MISFIT}: {odd[0]!r:.60} is {'missing' if odd[0] in expected else 'unknown'}")
    for name, tensor in tensors.items():
        shape, dtype = expected[name]
        if tensor.shape != shape:
            raise ValueError(f"{MISFIT}: {name!r} has shape {tuple(tensor.shape)}, not {tuple(shape)}")
        if tensor.dtype != dtype:
            raise ValueError(f"{MISFIT}: {name!r} has type {tensor.dtype}, not {dtype}")


@torch.no_grad()
def _measured(update: Update, has_parameters: bool) -> Update:
    """Return the update with the norm of its parameters in the report; refuse tensors that are not finite."""
    (report,), tensors = update.reports, update.mean
    parameters: Tensors = tensors
    stats = tensors.stats if isinstance(tensors, MeasuredDelta) and has_parameters else None
    if stats is None:
        parameters = parameters_in(tensors) if has_parameters else {}
        parameters = {name: tensor for name, tensor in parameters.items() if tensor.is_floating_point()}
        stats = measure_delta(list(parameters.values())) if parameters else {}
        if name := find_nonfinite({n: tensor for n, tensor in tensors.items() if n not in parameters}):
            raise ValueError(f"NaN or infinity in {name}")
    if not all(map(math.isfinite, stats.values())):
        name = find_nonfinite(parameters)
        raise ValueError(f"NaN or infinity in {name}" if name else f"its norm is {stats['norm']:g}")
    return replace(update, reports=(replace(report, stats={**report.stats, **stats}),))
