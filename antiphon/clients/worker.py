"""Workers: do tasks for clients. One client's failure is that client's alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from antiphon.clients.client import Bench, Client, Unusable
from antiphon.clients.evaluate import evaluate
from antiphon.clients.labels_nbest import Labeller
from antiphon.clients.train import central, train
from antiphon.core import Failure, Task, Update, Worker
from antiphon.kept import kept_in
from antiphon.labelling import Lesson
from antiphon.seeding import derive

ClientWork = Callable[[Task, Client], Update]
WORK: dict[str, ClientWork] = {"train": train, "central": central, "evaluate": evaluate}


@dataclass(frozen=True)
class SpeechWorker:
    """Takes clients one after another through the work that a task's kind names."""

    bench: Bench
    clients: Mapping[str, np.ndarray]  # client -> its utterances in the store

    def run(self, task: Task, clients: Sequence[str]) -> Iterator[Update]:
        if task.kind not in WORK:
            raise ValueError(f"no client work of kind {task.kind!r}; there is {', '.join(sorted(WORK))}")
        own, lesson = Lesson.read(task)
        for name in clients:
            yield self._run_one(own, name, lesson)

    @cached_property
    def labeller(self) -> Labeller:
        """Labels the clients' speech where it has no text, if a task asks for it."""
        return Labeller(self.bench)

    def client(self, name: str, lesson: Lesson | None, shape: str = "") -> Client:
        """A client with what it trains on: texts, or what a teacher hears."""
        client = Client(name, self.utterances(name), self.bench.shaped(shape))
        if lesson is None:
            return client
        assert client.bench is self.bench, (
            "no algorithm has clients label speech with a model it makes smaller"
        )
        return self.labeller.labelled(client, lesson)

    def utterances(self, name: str) -> np.ndarray:
        if name not in self.clients:
            raise ValueError(f"no client {name!r} among the {len(self.clients)} clients here")
        return self.clients[name]

    def _run_one(self, task: Task, name: str, lesson: Lesson | None) -> Update:
        self.utterances(name)  # one that is not here is no client's fault
        try:
            client = self.client(name, lesson, kept_in(task.config))
            return refuse_nonfinite(WORK[task.kind](task, client))
        except Unusable as error:
            return Update.nothing(Failure(name, str(error)))
        except Exception as error:  # whatever broke on a client must not end the run: it is named instead
            return Update.nothing(Failure(name, f"{type(error).__name__}: {error}"))


def refuse_nonfinite(update: Update) -> Update:
    """The update itself, or a failure that names the first tensor or figure with NaN or infinity in it."""
    (report,) = update.reports
    for name, value in report.stats.items():
        if not math.isfinite(value):
            return Update.nothing(Failure(report.client, f"{name} is {value}"))
    if "norm" not in report.stats:  # a finite norm has seen every entry already
        for name, tensor in update.mean.items():
            if not bool(torch.isfinite(tensor).all()):
                return Update.nothing(Failure(report.client, f"NaN or infinity in {name}"))
    return update


@dataclass(frozen=True)
class Unreliability:
    """Simulated faults of training clients: some drop out, some are too slow.

    Client k needs (seconds of its audio) · `cost` / speed_k simulated seconds an epoch; speeds are
    log-normal with median 1 and the given spread, fixed for a run.
    """

    dropout: float = 0.0
    deadline: float = 0.0  # simulated seconds; 0: the server waits for everyone
    cost: float = 0.1
    speed_spread: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.dropout <= 1:
            raise ValueError(f"dropout is a probability, not {self.dropout}")
        if self.deadline < 0 or self.cost <= 0 or self.speed_spread < 0:
            raise ValueError("deadline and speed_spread must not be negative, cost must be above 0")


@dataclass(frozen=True)
class UnreliableWorker:
    """A worker some of whose training clients do not answer; who, depends on seed and round only."""

    worker: Worker
    unreliability: Unreliability
    seconds: Callable[[str], float]  # of audio a client has
    seed: int

    def run(self, task: Task, clients: Sequence[str]) -> Iterator[Update]:
        if task.kind != "train":
            yield from self.worker.run(task, clients)
            return
        reasons = {name: self._reason(task, name) for name in clients if not name.startswith("server/")}
        answers = self.worker.run(task, [name for name in clients if not reasons.get(name)])
        for name in clients:
            reason = reasons.get(name)
            yield Update.nothing(Failure(name, reason)) if reason else next(answers)

    def _reason(self, task: Task, name: str) -> str | None:
        faults = self.unreliability
        draw = np.random.default_rng(derive(self.seed, "dropout", int(task.config["round"]), name))  # type: ignore[arg-type]
        if draw.random() < faults.dropout:
            return "dropped out (simulated)"
        normal = np.random.default_rng(derive(self.seed, "speed", name)).standard_normal()
        needed = self.seconds(name) * faults.cost / math.exp(faults.speed_spread * normal)
        needed *= max(1, int(task.config["epochs"]))  # type: ignore[arg-type]
        if faults.deadline and needed > faults.deadline:
            return f"too slow (simulated): {needed:.1f} s, deadline {faults.deadline:g} s"
        return None
