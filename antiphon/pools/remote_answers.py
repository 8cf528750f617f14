"""The other end of a remote pool: from a message with a task to a message with the answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from antiphon.core import Task, Tensors, Worker
from antiphon.pools.remote_messages import Message, WireError, pack
from antiphon.records.files import Damaged, NotWritten


def task_in(head: Mapping[str, Any], tensors: Tensors) -> Task:
    """Return the task in a message; WireError if there is none."""
    kind, config = head.get("kind"), head.get("config")
    plain = isinstance(config, dict) and all(
        value is None or isinstance(value, bool | int | float | str) for value in config.values()
    )
    if not isinstance(kind, str) or not plain:
        raise WireError("the message has no task: a kind of work and a flat configuration")
    return Task(kind, tensors, config or {})


def answer_task(worker: Worker, head: Mapping[str, Any], tensors: Tensors) -> Message:
    """Do the task of a message for its client; a client that fails is a message with the reason."""
    task = task_in(head, tensors)
    try:
        (update,) = worker.run(task, [str(head.get("client"))])
    except (Damaged, NotWritten) as error:  # on this machine; the server's run goes on
        return failure(str(error))
    if update.is_empty:
        return failure("; ".join(failed.reason for failed in update.failures))
    (report,) = update.reports
    about = {key: head.get(key) for key in ("run", "client")}
    stats = {"stats": dict(report.stats), "state_bytes": report.state_bytes}
    return pack({"verb": "answer", **about, "moment": list(task.moment), **stats}, update.mean)


def failure(reason: str) -> Message:
    return pack({"verb": "failure", "reason": reason[:500]})
