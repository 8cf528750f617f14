"""Views: code of a wrapper that runs on the client, around any kind of work. A plain round has none.

A view is a frozen dataclass of plain values, registered under a name. A task carries the name and the values;
a client builds only views that it has registered itself. The first view of a task is nearest to the work, the
last one nearest to the network. Views that encode what travels stay outside of those that come later, so
`Private(Compressed(FedAvg))` clips, then compresses.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from antiphon import config
from antiphon.core import Task, Tensors, Update
from antiphon.registry import Registry
from antiphon.tasks.client_work import Answer
from antiphon.tasks.pool_wrapper import PoolWrapper

VIEWS = "views"  # the key in a task's configuration

CLIENT_VIEWS = Registry(
    "antiphon.client_views",
    ("before", "after", "arrive"),
    homes=["antiphon.clients", "antiphon.algorithms"],
    takes_paths=False,
)


class View:
    """A view that does nothing; subclasses override what they need.

    `effect` names what the view does to tensors. `refuses` maps the effect of a view that must not be nearer
    to the work to advice.
    """

    effect: ClassVar[str] = ""
    refuses: ClassVar[Mapping[str, str]] = {}
    consumes: ClassVar[tuple[str, ...]] = ()  # parts of a task's tensors that the work does not see
    is_outside: ClassVar[bool] = False  # it encodes what travels: other views need what is decoded

    def depart(self, task: Task) -> Task:
        """On the server: change a task that leaves; it has its round and call, and all its views."""
        return task

    def before(self, task: Task, client: Any) -> tuple[Task, Any]:
        """On the client: change the task or the client before the work."""
        return task, client

    def after(self, task: Task, client: Any, answer: Answer) -> Answer:
        """On the client: change the answer. Task and client are the arguments of `before`."""
        return answer

    def decode(self, update: Update, task: Task, like: Tensors | None) -> Update:
        """On the server: undo what `after` encoded, before `arrive`.

        like: tensors with the names and shapes that the answer to the task must have; None: not declared.
        """
        return update

    def arrive(self, update: Update) -> Update:
        """On the server: change one client's update before it is added to others."""
        return update


def through(task: Task, view: View) -> Task:
    """Return the task with one more view, outside those it has.

    Views that encode stay outside. A view that reshapes tensors is outside even of them: what they keep on
    the client is shaped like the tensors that they see.
    """
    return through_named(task, CLIENT_VIEWS.name_of(type(view)), config.to_dict(view))


def through_named(task: Task, name: str, values: Mapping[str, Any]) -> Task:
    """Do as `through`, for a view whose class only clients import."""
    refuses = CLIENT_VIEWS[name].refuses
    for nearer in views_of(task) if refuses else ():
        if advice := refuses.get(nearer.effect):
            raise ValueError(f"{name} outside {CLIENT_VIEWS.name_of(type(nearer))}: {advice}")
    views = _written(task)
    views.insert(_place_of(CLIENT_VIEWS[name], views), [name, dict(values)])
    return replace(task, config={**task.config, VIEWS: json.dumps(views, separators=(",", ":"))})


def _place_of(view: Any, views: Sequence[Any]) -> int:
    """Return where a view is inserted into a task's views, as they are written."""
    if not view.is_outside and view.effect != "reshapes":
        for place, (name, _) in enumerate(views):
            if CLIENT_VIEWS[name].is_outside:
                return place
    return len(views)


def views_of(task: Task) -> list[View]:
    """Return the task's views, nearest to the work first."""
    return [config.from_dict(CLIENT_VIEWS[name], values) for name, values in _written(task)]


def _written(task: Task) -> list[Any]:
    written: list[Any] = json.loads(str(task.config.get(VIEWS, "[]")))
    return written


@dataclass(frozen=True)
class Entered:
    """A task and a client as the work sees them, and the views that its answer passes through."""

    task: Task
    client: Any
    layers: Sequence[tuple[View, Task, Any]]  # nearest to the work first

    def leave(self, answer: Update | Answer) -> Answer:
        """Return the answer to the work after all views: the update, and changes to the client's state."""
        answer = answer if isinstance(answer, tuple) else (answer, {})
        for view, task, client in self.layers:
            answer = view.after(task, client, answer)
        return answer


def enter(task: Task, client: Any) -> Entered:
    """Apply the views of a task to the task and a client."""
    layers: list[tuple[View, Task, Any]] = []
    views = views_of(task)
    task = replace(task, config={key: value for key, value in task.config.items() if key != VIEWS})
    for view in reversed(views):
        layers.insert(0, (view, task, client))
        task, client = view.before(task, client)
    return Entered(task, client, layers)


@dataclass
class ViewPool(PoolWrapper):
    """A pool that sends every task through a view."""

    view: View

    def outgoing(self, task: Task, cohort: Sequence[str]) -> Task:
        return through(task, self.view)
