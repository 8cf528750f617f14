"""Scores of clients' own models, on the utterances that each client held out.

Two evaluations are written to evaluation/held-out/: `global` with the server's model for every client, and
`best` with the model of each client: its personal layers, or its own copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from antiphon.clients.client import ClientRuntime
from antiphon.clients.states import ClientStates
from antiphon.clients.worker import SpeechWorker
from antiphon.core import Collected, Task, Update, Weigh
from antiphon.decoding.search import recognise
from antiphon.engine import Outcome
from antiphon.experiment.preparation import Prepared
from antiphon.experiment.score import score
from antiphon.recognizer import Recognizer
from antiphon.server.run_context import personal_pool
from antiphon.tasks.submodel import SubmodelPool

SPLIT = "held-out"


@dataclass
class SentTasks:
    """A pool that sends nothing: it records the tasks that it is given."""

    tasks: list[Task] = field(default_factory=list)

    def reduce(self, task: Task, cohort: Sequence[str], weigh: Weigh) -> Update:
        self.tasks.append(task)
        return Update.nothing()

    def collect(self, task: Task, cohort: Sequence[str]) -> Collected:
        raise NotImplementedError("evaluation collects nothing")


def score_clients(
    prepared: Prepared,
    name: str,
    algorithm: Any,
    runtime: ClientRuntime,
    outcome: Outcome,
    states: ClientStates,
    folder: Path,
) -> None:
    """Write the scores of a run's clients, with the server's model and with their own."""
    held_out = prepared.held_out[name]
    indices = np.concatenate([held_out[client] for client in sorted(held_out)])
    for which, is_personal in (("global", False), ("best", True)):
        sent = SentTasks()
        pool = SubmodelPool(sent, outcome.submodel)
        task = Task("evaluate", outcome.best, {"round": outcome.best_round})
        (personal_pool(algorithm, pool) if is_personal else pool).reduce(task, [], lambda report: 0.0)
        worker = SpeechWorker(runtime, prepared.clients[name], states, held_out)
        notes = {"split": SPLIT, "which": which, "round": outcome.best_round}
        recognizer = Recognizer(prepared.recognizer(name).blueprint, prepared.tokens, runtime.model)
        hypotheses = partial(_recognise_clients, worker, sent.tasks[0])
        target = folder / "evaluation" / SPLIT / which
        score(recognizer, prepared.store, indices, target, notes, hypotheses=hypotheses)


def _recognise_clients(worker: SpeechWorker, task: Task) -> dict[int, str]:
    """Recognise the utterances of every client with the model that the task gives it."""
    texts: dict[int, str] = {}
    for client, indices in sorted(worker.held_out.items()):
        entered = worker.enter(task, client)
        runtime = entered.client.runtime
        runtime.load(entered.task.tensors)
        texts |= recognise(runtime.model, runtime.tokens, runtime.store, indices, feed=runtime.feed)
    return texts
