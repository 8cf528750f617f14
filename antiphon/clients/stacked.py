"""A worker that trains many clients at once on one GPU, instead of one after another.

Every client of a cohort has its own parameters on the device. At each step those with similar batches are
launched together, as many as fit the memory (`grouping`); a client whose steps are done stays as it is. Each
client's update is what it would get alone.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch

from antiphon.clients.client import Bench, Unusable
from antiphon.clients.footprint import Footprint, measure_footprint
from antiphon.clients.grouping import Launch, Plan, launches
from antiphon.clients.stack import Stack, StackedBatch
from antiphon.clients.train import delta_stats, report, seed_of
from antiphon.clients.worker import SpeechWorker, refuse_nonfinite
from antiphon.core import Failure, Task, Update
from antiphon.kept import kept_in
from antiphon.labelling import Lesson
from antiphon.local import LocalTraining

log = logging.getLogger("antiphon")


@dataclass
class StackedWorker:
    """Trains as `SpeechWorker` does, many clients at once; everything else it leaves to that one."""

    bench: Bench
    clients: Mapping[str, np.ndarray]  # client -> its utterances in the store
    most: int = 256  # clients under way at once, however much memory there is
    graphs: bool = True  # CUDA graphs where shapes repeat
    _stack: Stack | None = field(default=None, init=False)
    _footprint: Footprint | None = field(default=None, init=False)
    _why_not: str = field(default="", init=False)
    _small: StackedWorker | None = field(default=None, init=False)

    def run(self, task: Task, clients: Sequence[str]) -> Iterator[Update]:
        bench = self.bench.shaped(kept_in(task.config))
        if bench is not self.bench:
            yield from self._with(bench).run(task, clients)
            return
        own, _ = Lesson.read(task)
        footprint = self._measured(own) if task.kind == "train" and len(clients) > 1 else None
        if footprint is None:
            yield from self.alone.run(task, clients)
            return
        window = footprint.held(self.most)
        for first in range(0, len(clients), window):
            names = clients[first : first + window]
            answers = self._train(task, names, footprint)
            yield from (answers.pop(name) for name in names)

    @cached_property
    def alone(self) -> SpeechWorker:
        """Takes one client after another."""
        return SpeechWorker(self.bench, self.clients)

    def _with(self, bench: Bench) -> StackedWorker:
        """The same worker for a smaller model: more clients fit the memory, and it has its own graphs."""
        self._stack = None
        if self._small is None or self._small.bench is not bench:
            self._small = None
            self._small = StackedWorker(bench, self.clients, self.most, self.graphs)
        return self._small

    def _measured(self, task: Task) -> Footprint | None:
        """Measured once, on a batch that is always the same: who is trained with whom must not vary.

        None where this model cannot be stacked.
        """
        if self._footprint is None and not self._why_not:
            try:
                self._footprint = measure_footprint(self.bench, task.tensors)
            except Exception as error:  # any model may come: what vmap cannot do, it says in many ways
                self._why_not = f"{type(error).__name__}: {error}"
                log.warning("clients are trained one after another, not stacked: %s", self._why_not)
        return self._footprint

    def _train(self, task: Task, names: Sequence[str], footprint: Footprint) -> dict[str, Update]:
        own, lesson = Lesson.read(task)
        local = LocalTraining.from_task(task.config)
        answers, plans = {}, []
        for name in names:
            self.alone.utterances(name)  # one that is not here is no client's fault
            try:
                client = self.alone.client(name, lesson)
                plans.append(Plan(client, list(client.steps(local, seed_of(task)))))
            except Unusable as error:
                answers[name] = Update.nothing(Failure(name, str(error)))
            except Exception as error:  # as when it is trained alone
                answers[name] = Update.nothing(Failure(name, f"{type(error).__name__}: {error}"))
        ids = [plan.client.id for plan in plans]
        return answers | dict(zip(ids, self._together(task, own, local, plans, footprint), strict=True))

    def _together(
        self, task: Task, own: Task, local: LocalTraining, plans: Sequence[Plan], footprint: Footprint
    ) -> list[Update]:
        """The clients' updates; those of fewer at once, or of one after another, where this fails."""
        most = self.most if plans else 0
        while most > 0:
            together = list(launches(plans, footprint, most))
            try:
                return self._launch(own, local, plans, together)
            except torch.OutOfMemoryError:
                largest = max(len(launch.members) for launch in together)
                log.warning("%d clients at once do not fit the GPU's memory: half of them", largest)
                most = largest // 2
            except Exception as error:  # one of them broke: alone, it will be found and named
                log.warning("%d clients are trained one after another: %s", len(plans), error)
                most = 0
            self._stack = None
        return list(self.alone.run(task, [plan.client.id for plan in plans]))

    def _launch(
        self, task: Task, local: LocalTraining, plans: Sequence[Plan], together: Sequence[Launch]
    ) -> list[Update]:
        if self._stack is None or not self._stack.serves(task.tensors, len(plans)):
            self._stack = None  # its memory first
            self._stack = Stack(self.bench, task.tensors, len(plans), self.graphs)
        stack = self._stack
        stack.restart(task.tensors)
        self.bench.model.train()
        totals = torch.zeros(len(plans), device=self.bench.device, dtype=torch.float64)
        for batch in stacked_batches(self.bench, plans, together):
            losses = stack.step(batch, local).masked_fill(batch.share == 0, 0.0)
            totals[batch.members] += losses.sum(dim=1)
        rows = stack.deltas()
        deltas = stack.layout.parted(rows)
        num_entries = sum(delta[0].numel() for delta in deltas.values())
        sums = torch.stack([torch.linalg.vector_norm(rows, ord=order, dim=1) for order in (2, 1)]).tolist()
        updates = []
        for place, (plan, total) in enumerate(zip(plans, totals.tolist(), strict=True)):
            loss = total / sum(len(step.indices) for step in plan.steps)
            stats = delta_stats(sums[0][place], sums[1][place], num_entries)
            told = report(plan.client, loss, len(plan.steps), **stats)
            mean = {name: delta[place] for name, delta in deltas.items()}
            updates.append(refuse_nonfinite(Update(mean, reports=(told,))))
        return updates


def stacked_batches(
    bench: Bench, plans: Sequence[Plan], together: Sequence[Launch]
) -> Iterator[StackedBatch]:
    """One launch after another: the batches of its clients, padded to one shape."""
    tables = []
    for launch in together:
        steps = [plans[place].steps[launch.number] for place in launch.members.tolist()]
        places = np.full((len(steps), max(len(step.indices) for step in steps)), -1, dtype=np.int64)
        for row, step in zip(places, steps, strict=True):
            row[: len(step.indices)] = step.indices
        tables.append((places, [step.noise for step in steps], launch.members))
    guesses = {index: found for plan in plans for index, found in plan.client.labels.texts.items()}
    batches = bench.feed.one_by_one(places.reshape(-1) for places, _, _ in tables)
    for (places, noise, members), fed in zip(tables, batches, strict=True):
        batch = bench.worded(fed, guesses)
        keys = bench.keys(noise, places).flatten()
        real = bench.sent(torch.from_numpy(places >= 0))
        share = (real / real.sum(dim=1, keepdim=True)).to(batch.features.dtype)
        here = bench.sent(torch.from_numpy(members))
        yield StackedBatch(bench.augmented(batch, keys), keys, share, here)
