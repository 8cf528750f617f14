"""Views: what a wrapper does on the client, around any kind of work. A plain round has none.

A view is a frozen dataclass of plain values, registered under a name. It travels in a task by that name with
its values, and a client builds only views that it has registered itself. The first view of a task is nearest
to the work, the last one nearest to the wire: `Compressed(Private(FedAvg))` clips, then compresses.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from antiphon import config
from antiphon.core import Collected, Failure, Pool, Task, Update, Weigh, size_in_bytes
from antiphon.registry import Registry
from antiphon.tasks.client_work import CLIENT_WORK, Answer
from antiphon.tasks.parts import parameters_in

VIEWS = "views"  # the key in a task's configuration

CLIENT_VIEWS = Registry(
    "antiphon.client_views",
    ("before", "after", "arrive"),
    homes=["antiphon.clients", "antiphon.algorithms"],
    takes_paths=False,
)


class View:
    """Does nothing; a view overrides what it needs.

    `effect` names what the view does to tensors; `refuses` maps effects of views that must not be nearer to
    the work to advice.
    """

    effect: ClassVar[str] = ""
    refuses: ClassVar[Mapping[str, str]] = {}
    consumes: ClassVar[tuple[str, ...]] = ()  # parts of a task's tensors that the work does not see

    def before(self, task: Task, client: Any) -> tuple[Task, Any]:
        """On the client: change the task or the client before the work."""
        return task, client

    def after(self, task: Task, client: Any, answer: Answer) -> Answer:
        """On the client: change the update and the changes of state. Task and client as `before` got them."""
        return answer

    def arrive(self, update: Update) -> Update:
        """On the server: change one client's update before it is added to others."""
        return update


def through(task: Task, view: View) -> Task:
    """Return the task, to be done through one more view outside those it has."""
    return through_named(task, CLIENT_VIEWS.name_of(type(view)), config.to_dict(view))


def through_named(task: Task, name: str, values: Mapping[str, Any]) -> Task:
    """As `through`, for a view whose class only clients need."""
    refuses = CLIENT_VIEWS[name].refuses
    for nearer in views_of(task) if refuses else ():
        if advice := refuses.get(nearer.effect):
            raise ValueError(f"{name} outside {CLIENT_VIEWS.name_of(type(nearer))}: {advice}")
    views = [*_written(task), [name, dict(values)]]
    return replace(task, config={**task.config, VIEWS: json.dumps(views, separators=(",", ":"))})


def views_of(task: Task) -> list[View]:
    """Return the task's views, nearest to the work first."""
    return [config.from_dict(CLIENT_VIEWS[name], values) for name, values in _written(task)]


def _written(task: Task) -> list[Any]:
    written: list[Any] = json.loads(str(task.config.get(VIEWS, "[]")))
    return written


@dataclass(frozen=True)
class Entered:
    """A task and a client as the work sees them, and the way back out through the views."""

    task: Task
    client: Any
    layers: Sequence[tuple[View, Task, Any]]  # nearest to the work first

    def leave(self, answer: Update | Answer) -> Answer:
        """Return what leaves the client and what it keeps, given what the work answered."""
        answer = answer if isinstance(answer, tuple) else (answer, {})
        for view, task, client in self.layers:
            answer = view.after(task, client, answer)
        return answer


def enter(task: Task, client: Any) -> Entered:
    """Take a task and a client through the task's views."""
    if VIEWS not in task.config:
        return Entered(task, client, ())
    layers: list[tuple[View, Task, Any]] = []
    views = views_of(task)
    task = replace(task, config={key: value for key, value in task.config.items() if key != VIEWS})
    for view in reversed(views):
        layers.insert(0, (view, task, client))
        task, client = view.before(task, client)
    return Entered(task, client, layers)


def arrived(task: Task) -> Callable[[Update], Update]:
    """Return what turns one client's answer to a task into an update that can be added to others.

    Its report gets the number of bytes that came. An answer whose tensors are not those that the kind of work
    declares is a failure.
    """
    views = views_of(task)
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
    """Return the tensors that an answer must be like; None: anything goes."""
    if task.kind not in CLIENT_WORK:
        return None
    answers = getattr(CLIENT_WORK[task.kind], "answers", "")
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


@dataclass(frozen=True)
class ViewPool:
    """A pool that sends every task through a view."""

    pool: Pool
    view: View

    def reduce(self, task: Task, cohort: Sequence[str], weigh: Weigh) -> Update:
        return self.pool.reduce(through(task, self.view), cohort, weigh)

    def collect(self, task: Task, cohort: Sequence[str]) -> Collected:
        return self.pool.collect(through(task, self.view), cohort)
