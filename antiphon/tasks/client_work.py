"""Client work: what a client does for a kind of task.

Work is a function (Task, client) -> Update, or -> (Update, changes to the client's state), registered for a
kind of task. New work is one decorated function. It can use `client.id`, `client.state` (tensors that the
client kept from earlier rounds) and `client.base` (the parameters at the start of the run), which never leave
the client:

>>> from antiphon.core import Report
>>> @client_work("doctest.count", answers="nothing", reports={"num_utterances": COUNT})
... def count(task, client):
...     return Update({}, reports=(Report(client.id, {"num_utterances": len(client.indices)}),))

A server does not trust clients. So work declares what its answers look like, and pools leave out a client
whose answer is different (`pools.local.arrived`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Bounds:
    """What a number in a client's report may be, so that a client cannot claim just anything."""

    least: float = -math.inf
    most: float = math.inf
    is_whole: bool = False
    is_required: bool = True  # False: a report may lack it


ROUNDING = 1e-3  # how far rounding may take a number out of its bounds
LOSS = Bounds(-ROUNDING, 1e6)  # a mean −ln p, in nats per token
COUNT = Bounds(0, 1e9, is_whole=True)


def client_work(kind: str, answers: str = "", reports: Mapping[str, Bounds] = {}) -> Callable[[Any], Any]:
    """Register work for a kind of task, and declare its answers, so that pools can check them.

    answers: the tensors. "parameters": the task's tensors without a part; "everything": all of the task's
    tensors; "nothing": only a report; "": anything. reports: numbers of the report, and their bounds; other
    numbers may be anything finite.
    """

    def register(work: Any) -> Any:
        work.answers, work.reports = answers, reports
        return CLIENT_WORK.register(work, kind)

    return register


@lru_cache
def work_for(kind: str) -> Any:
    """Return the work for a kind of task; ValueError if there is none."""
    if kind not in CLIENT_WORK:
        raise unknown_name(kind, CLIENT_WORK, "kind of client work")
    return CLIENT_WORK[kind]
