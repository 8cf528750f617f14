"""The worker that does tasks for clients. A client that fails is named, and does not affect others."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch

from antiphon.clients.client import Client, ClientRuntime
from antiphon.clients.states import ClientStates
from antiphon.core import Failure, Task, Tensors, Unusable, Update
from antiphon.records.files import Damaged, NotWritten
from antiphon.tasks.client_work import Answer, work_for
from antiphon.tasks.local_training import find_nonfinite
from antiphon.tasks.views import VIEWS, Entered, enter


@dataclass
class SpeechWorker:
    """Does the work of a task for one client after another."""

    runtime: ClientRuntime
    clients: Mapping[str, np.ndarray]  # client -> its utterances in the store
    states: ClientStates | None = None  # for work that stores a state on the client
    # Client -> utterances that score its own model.
    held_out: Mapping[str, np.ndarray] = field(default_factory=dict)

    def run(self, task: Task, clients: Sequence[str]) -> Iterator[Update]:
        work = work_for(task.kind)
        for name in clients:
            self.utterances(name)

            def run_one(name: str = name) -> Update:
                entered = self.enter(task, name)
                return self.finish(task, name, entered, work(entered.task, entered.client))

            yield named_failure(name, run_one)

    def enter(self, task: Task, name: str) -> Entered | PlainTask:
        """Return a task and a client as the work sees them: through the task's views."""
        read, held_out = partial(self._read_state, name, task), self.held_out.get(name)
        client = Client(name, self.utterances(name), self.runtime, held_out=held_out, read_state=read)
        return enter(task, client) if VIEWS in task.config else PlainTask(task, client)

    def finish(self, task: Task, name: str, entered: Entered | PlainTask, answer: Update | Answer) -> Update:
        """Return the update that leaves the client; store its state, unless it failed."""
        update, changes = entered.leave(answer)
        update = refuse_nonfinite(update, changes)
        if not changes or update.is_empty:
            return update
        if self.states is None:
            raise ValueError(f"{task.kind!r} keeps state on the client, and this run has no folder for it")
        state = {**self._read_state(name, task), **changes}
        size = self.states.write(name, task.moment, state)
        return replace(update, reports=tuple(replace(r, state_bytes=size) for r in update.reports))

    def _read_state(self, name: str, task: Task) -> Mapping[str, torch.Tensor]:
        return {} if self.states is None else self.states.read(name, task.moment, str(self.runtime.device))

    def utterances(self, name: str) -> np.ndarray:
        """Return a client's utterances; ValueError for an unknown client."""
        if name not in self.clients:
            raise ValueError(f"no client {name!r} among the {len(self.clients)} clients here")
        return self.clients[name]


@dataclass(frozen=True)
class PlainTask:
    """A task without views, and a client."""

    task: Task
    client: Client

    def leave(self, answer: Update | Answer) -> Answer:
        return answer if isinstance(answer, tuple) else (answer, {})


def named_failure(client: str, work: Callable[[], Update]) -> Update:
    """Return the result of the work; if it raises, an empty update with the client and the reason.

    A damaged file or a full disk ends the run: without the client, its result would be another one.
    """
    try:
        return work()
    except (Damaged, NotWritten):
        raise
    except Unusable as error:
        return Update.nothing(Failure(client, str(error)))
    except Exception as error:  # an error on one client must not end the run
        return Update.nothing(Failure(client, f"{type(error).__name__}: {error}"))


def refuse_nonfinite(update: Update, changes: Tensors = {}) -> Update:
    """Return the update, or a failure if a number in it, or in what the client would keep, is not finite.

    The server measures the tensors of all answers (`pools.local.arrived`). A client that keeps a state has to
    look before it writes.
    """
    (report,) = update.reports
    for name, value in report.stats.items():
        if not math.isfinite(value):
            return Update.nothing(Failure(report.client, f"{name} is {value}"))
    if changes and (name := find_nonfinite({**update.mean, **changes})):
        return Update.nothing(Failure(report.client, f"NaN or infinity in {name}"))
    return update
