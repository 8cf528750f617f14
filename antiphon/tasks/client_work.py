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

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from antiphon.core import Tensors, Update
from antiphon.registry import Registry, unknown_name

Answer = tuple[Update, Tensors]  # what leaves the client; changes to its state, which stay there

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
