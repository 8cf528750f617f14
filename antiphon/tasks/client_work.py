"""Work on clients: what a task of some kind makes a client do.

Work is a function (Task, client) -> Update, or -> (Update, changes to the client's state), registered under
the kind of task it is for. A stranger's work is one decorated function:

>>> @client_work("doctest.count", answers="nothing")
... def count(task, client):
...     return Update({}, reports=(Report(client.id, {"num_utterances": len(client.indices)}),))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Protocol

from torch import Tensor

from antiphon.core import Report, Task, Tensors, Update
from antiphon.registry import Registry, unknown_name

__all__ = ["CLIENT_WORK", "Answer", "Client", "ClientWork", "Report", "client_work"]


class Client(Protocol):
    """One client, as its work sees it. What is here never leaves the client."""

    @property
    def id(self) -> str: ...
    @property
    def state(self) -> Mapping[str, Tensor]:
        """What the client kept from earlier rounds; empty for a client that took part in none."""

    @property
    def base(self) -> Tensors:
        """The parameters that the run began with."""


Answer = tuple[Update, Tensors]  # what leaves the client; changes to its state, which stay there
ClientWork = Callable[[Task, Any], Update | Answer]

# Work by the kind of its task. Kinds come over the wire, so only registered names and entry points count.
CLIENT_WORK = Registry(
    "antiphon.client_work",
    ("__call__",),
    homes=["antiphon.clients", "antiphon.algorithms"],
    is_config=False,
    takes_paths=False,
)


def client_work(kind: str, answers: str = "") -> Callable[[Any], Any]:
    """Register work for tasks of a kind; `answers` declares its tensors, so that pools can check replies.

    "parameters": those of the task without a part; "everything": all of the task's; "nothing": a report only;
    "": anything.
    """

    def register(work: Any) -> Any:
        work.answers = answers
        return CLIENT_WORK.register(work, kind)

    return register


@lru_cache
def work_for(kind: str) -> Any:
    """Return the work for tasks of a kind, looked up once; ValueError if there is none."""
    if kind not in CLIENT_WORK:
        raise unknown_name(kind, CLIENT_WORK, "kind of client work")
    return CLIENT_WORK[kind]
