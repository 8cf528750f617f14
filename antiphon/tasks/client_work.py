"""Client work: what a client does for a kind of task.

Work is a function (Task, client) -> Update, or -> (Update, changes to the client's state), registered for a
kind of task. New work is one decorated function. It can use `client.id`, `client.state` (tensors that the
client kept from earlier rounds) and `client.base` (the parameters at the start of the run), which never leave
the client:

>>> from antiphon.core import Report
>>> @client_work("doctest.count", answers="nothing")
... def count(task, client):
...     return Update({}, reports=(Report(client.id, {"num_utterances": len(client.indices)}),))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from antiphon.core import Task, Tensors, Update
from antiphon.registry import Registry, unknown_name

Answer = tuple[Update, Tensors]  # what leaves the client; changes to its state, which stay there


@dataclass(frozen=True)
class Entered:
    """A task and a client as the work sees them, and the views that the answer passes through."""

    task: Task
    client: Any
    layers: Sequence[tuple[Any, Task, Any]] = ()  # views with their arguments, nearest to the work first

    def leave(self, answer: Update | Answer) -> Answer:
        """Return the answer after all views: the update, and changes to the client's state."""
        final: Answer = answer if isinstance(answer, tuple) else (answer, {})
        for view, task, client in self.layers:
            final = view.after(task, client, final)
        return final


# Kinds of tasks come over a network, so only registered names and entry points are accepted.
CLIENT_WORK = Registry(
    "antiphon.client_work",
    ("__call__",),
    homes=["antiphon.clients", "antiphon.algorithms"],
    is_config=False,
    takes_paths=False,
)


def client_work(kind: str, answers: str = "") -> Callable[[Any], Any]:
    """Register work for a kind of task; `answers` declares its tensors, so that pools can check replies.

    "parameters": the task's tensors without a part; "everything": all of the task's tensors; "nothing": only
    a report; "": anything.
    """

    def register(work: Any) -> Any:
        work.answers = answers
        return CLIENT_WORK.register(work, kind)

    return register


@lru_cache
def work_for(kind: str) -> Any:
    """Return the work for a kind of task; ValueError if there is none."""
    if kind not in CLIENT_WORK:
        raise unknown_name(kind, CLIENT_WORK, "kind of client work")
    return CLIENT_WORK[kind]
