"""A worker that trains many clients at once on one GPU, instead of one after another.

Every client of a cohort has its own parameters on the device. At each step, clients with similar batches are
launched together, as many as the memory can hold (`grouping`). Each client gets the same update as alone.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch

from antiphon.clients.client import ClientRuntime
from antiphon.clients.stacked.client_stack import Stack
from antiphon.clients.stacked.footprint import Footprint, measure_footprint
from antiphon.clients.stacked.grouping import Launch, Plan, launches
from antiphon.clients.stacked.stacked_rows import StackedBatch
from antiphon.clients.train import chosen_by, memory_stats, report
from antiphon.clients.worker import PlainTask, SpeechWorker, named_failure
from antiphon.core import Task, Tensors, Update
from antiphon.tasks.client_work import work_for
from antiphon.tasks.local_training import MeasuredDelta, Trained, TrainingWork, delta_stats
from antiphon.tasks.views import Entered

log = logging.getLogger("antiphon")


@dataclass
class StackedWorker(SpeechWorker):
    """A worker that trains many clients at once, and does all other work for one after another."""

    max_clients: int = 256  # clients in training at once, however much memory there is
    graphs: bool = True  # CUDA graphs where shapes repeat
    _trainer: StackedTrainer | None = field(default=None, init=False)

    def run(self, task: Task, clients: Sequence[str]) -> Iterator[Update]:
        work = work_for(task.kind)
        if not isinstance(work, TrainingWork) or len(clients) < 2:
            yield from super().run(task, clients)
            return
        window = Window(self, task, work)
        for name in clients:
            window.add(name)
            if window.is_full:
                yield from window.answers()
                window = Window(self, task, work)
        yield from window.answers()

    def trainer(self, runtime: ClientRuntime) -> StackedTrainer:
        """Return the trainer for a runtime. A smaller model has its own, and only the last one is kept."""
        if self._trainer is None or self._trainer.runtime is not runtime:
            self._trainer = None  # free its memory first
            gc.collect()
            gc.freeze()  # else each round's thousands of tensors make Python look at all modules for garbage
            self._trainer = StackedTrainer(runtime, self.max_clients, self.graphs)
        return self._trainer


class Window:
    """The clients in training at once: those that can train have plans, the others have failed."""

    def __init__(self, worker: StackedWorker, task: Task, work: TrainingWork) -> None:
        self.worker, self.task, self.work = worker, task, work
        self.names: list[str] = []
        self.failed: dict[str, Update] = {}
        self.entered: dict[str, Entered | PlainTask] = {}
        self.plans: dict[str, Plan] = {}

    def add(self, name: str) -> None:
        self.worker.utterances(name)  # an unknown client is an error, not a failure
        self.names.append(name)

        def plan() -> Update:
            entered = self.worker.enter(self.task, name)
            wanted = self.work.plan(entered.task, entered.client)
            steps = list(entered.client.steps(wanted.local, wanted.seed))
            self.entered[name], self.plans[name] = entered, Plan(entered.client, steps, wanted)
            return Update.nothing()

        planned = named_failure(name, plan)
        if planned.failures:
            self.failed[name] = planned

    @property
    def is_full(self) -> bool:
        footprint = self.footprint
        return footprint is not None and len(self.names) >= footprint.max_in_training(self.worker.max_clients)

    @cached_property
    def trainer(self) -> StackedTrainer:
        return self.worker.trainer(next(iter(self.plans.values())).client.runtime)

    @property
    def footprint(self) -> Footprint | None:
        """The memory that a client takes; None if no client has a plan, or if the model cannot be stacked."""
        if not self.plans:
            return None
        wanted = next(iter(self.plans.values())).wanted
        footprint = self.trainer.footprint(wanted.start)
        kept = wanted.local.optimizer.num_moments + (not wanted.local.is_exact)  # the start of each client
        return footprint and replace(footprint, num_moments=kept)

    def answers(self) -> Iterator[Update]:
        """Train the clients and yield every client's update, in order."""
        trained = self._trained()
        for name in self.names:
            yield self.failed[name] if name in self.failed else self._finished(name, trained)

    def _trained(self) -> dict[str, Trained]:
        """Train all clients at once; return nothing if that is impossible."""
        footprint, plans = self.footprint, list(self.plans.values())
        if footprint is None or any(plan.wanted.local != plans[0].wanted.local for plan in plans):
            return {}
        return dict(zip(self.plans, self.trainer.train(plans, footprint), strict=False))

    def _finished(self, name: str, trained: Mapping[str, Trained]) -> Update:
        if name not in trained:
            (update,) = self.worker.run(self.task, [name])  # alone
            return update
        entered = self.entered[name]

        def answer() -> Update:
            reply = self.work.answer(entered.task, entered.client, trained[name])
            return self.worker.finish(self.task, name, entered, reply)

        return named_failure(name, answer)


@dataclass
class StackedTrainer:
    """Trains clients of one runtime at once; holds memory and graphs for its model."""

    runtime: ClientRuntime
    max_clients: int
    graphs: bool
    _stack: Stack | None = field(default=None, init=False)
    _footprint: Footprint | None = field(default=None, init=False)
    _can_stack: bool = field(default=True, init=False)

    def footprint(self, start: Tensors) -> Footprint | None:
        """Return the footprint; None if this model cannot be stacked.

        Measured once, always on the same batch: which clients are trained together must not vary.
        """
        if self._footprint is None and self._can_stack:
            try:
                self._footprint = measure_footprint(self.runtime, start)
            except Exception as error:  # vmap raises many kinds of errors for models that it cannot run
                self._can_stack, reason = False, f"{type(error).__name__}: {error}"
                log.warning("clients are trained one after another, not stacked: %s", reason)
        return self._footprint

    def train(self, plans: Sequence[Plan], footprint: Footprint) -> list[Trained]:
        """Take the steps of all plans; fewer clients at once if memory is short. Return [] if that fails."""
        max_clients = self.max_clients
        while max_clients > 0:
            together = list(launches(plans, footprint, max_clients))
            try:
                return self._launch(plans, together)
            except torch.OutOfMemoryError:
                largest = max(len(launch.members) for launch in together)
                log.warning("%d clients at once do not fit the GPU's memory: half of them", largest)
                max_clients = largest // 2
            except Exception as error:  # a client is at fault: alone, it will be found and named
                log.warning("%d clients are trained one after another: %s", len(plans), error)
                max_clients = 0
            self._stack = None
        return []

    def _launch(self, plans: Sequence[Plan], together: Sequence[Launch]) -> list[Trained]:
        start, local = plans[0].wanted.start, plans[0].wanted.local
        if self._stack is None or not self._stack.serves(start, len(plans)):
            self._stack = None  # free its memory first
            self._stack = Stack(self.runtime, start, len(plans), self.graphs)
        stack = self._stack
        stack.restart([plan.wanted for plan in plans], [chosen_by(p.client, p.wanted) for p in plans])
        self.runtime.model.train()
        totals = torch.zeros(len(plans), device=self.runtime.device, dtype=torch.float64)
        for batch in stacked_batches(self.runtime, plans, together):
            losses = stack.step(batch, local).masked_fill(batch.share == 0, 0.0)
            totals[batch.members] += losses.sum(dim=1)
        rows = stack.deltas()
        stacked = stack.layout.split(rows)
        num_entries = sum(delta[0].numel() for delta in stacked.values())
        # Before the device is read, which waits for all steps.
        own = zip(*(delta.unbind() for delta in stacked.values()), strict=True)
        deltas = [dict(zip(stacked, tensors, strict=True)) for tensors in own]
        sums = torch.stack([torch.linalg.vector_norm(rows, ord=order, dim=1) for order in (2, 1)]).tolist()
        trained = []
        for row, (plan, total) in enumerate(zip(plans, totals.tolist(), strict=True)):
            loss = total / sum(len(step.indices) for step in plan.steps)
            stats = delta_stats(sums[0][row], sums[1][row], num_entries)
            delta = MeasuredDelta(deltas[row], stats, rows[row], stack.layout)
            stats = {**stats, **memory_stats(plan.client, plan.wanted)}
            trained.append(Trained(delta, report(plan.client, loss, len(plan.steps), **stats)))
        return trained


def stacked_batches(
    runtime: ClientRuntime, plans: Sequence[Plan], together: Sequence[Launch]
) -> Iterator[StackedBatch]:
    """Yield one batch for each launch: the batches of its clients, padded to one shape."""
    tables = []
    for launch in together:
        steps = [plans[member].steps[launch.number] for member in launch.members.tolist()]
        indices = np.full((len(steps), max(len(step.indices) for step in steps)), -1, dtype=np.int64)
        for row, step in zip(indices, steps, strict=True):
            row[: len(step.indices)] = step.indices
        tables.append((indices, [step.noise for step in steps], launch.members))
    transcripts = {index: texts for plan in plans for index, texts in plan.client.labels.texts.items()}
    batches = runtime.feed.one_by_one(indices.reshape(-1) for indices, _, _ in tables)
    for (indices, noise, members), fed in zip(tables, batches, strict=True):
        batch = runtime.with_labels(fed, transcripts)
        keys = runtime.keys(noise, indices).flatten()
        real = runtime.to_device(torch.from_numpy(indices >= 0))
        share = (real / real.sum(dim=1, keepdim=True)).to(batch.features.dtype)
        rows = runtime.to_device(torch.from_numpy(members))
        yield StackedBatch(runtime.augmented(batch, keys), keys, share, rows)
