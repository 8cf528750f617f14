"""Several processes: each trains its share of the cohort, one all-reduce adds the shares up.

Every process runs the same algorithm and gets the same Update, with reports and failures in cohort order, so
all of them compute the same next state (SPMD). Means agree with `LocalPool` up to rounding, since every
process adds up its own share. An `ordered` pool adds updates one by one in cohort order and agrees to the
last bit, but keeps its updates in memory and sends every one to all processes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from antiphon.core import Failure, Report, RunningMean, Task, Tensors, Update, Weigh, Worker, add_up
from antiphon.pools.local import arrived, distances_of

Layout = list[list[Any]]  # [name, shape, dtype, type of device] of every tensor of an update


class Collectives(Protocol):
    """The operations on all processes that a pool needs."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def device(self) -> torch.device: ...
    def all_gather(self, action: Callable[[], Any]) -> list[Any]: ...
    def all_reduce(self, flat: Tensor) -> None: ...
    def broadcast(self, flat: Tensor, source: int) -> None: ...


def share_out(seconds: Sequence[float], num_shares: int) -> list[list[int]]:
    """Assign positions to shares of about equal seconds: the longest first, to the least loaded share.

    >>> share_out([5.0, 1.0, 4.0, 3.0, 3.0], 2)
    [[0, 4], [1, 2, 3]]
    """
    shares: list[list[int]] = [[] for _ in range(num_shares)]
    loads = [0.0] * num_shares
    for position in sorted(range(len(seconds)), key=lambda p: (-seconds[p], p)):
        least = min(range(num_shares), key=lambda share: (loads[share], share))
        shares[least].append(position)
        loads[least] += seconds[position]
    return [sorted(share) for share in shares]


@dataclass(frozen=True)
class Answers:
    """A cohort's answers without their tensors, in cohort order; every process has all of them."""

    updates: tuple[Update, ...]  # without tensors
    owners: tuple[int, ...]  # the processes that have the tensors
    layout: Layout

    @property
    def total(self) -> Update:
        return add_up(self.updates)

    def weighted(self, log_weights: Sequence[float]) -> Answers:
        """Return the answers with other weights, one for each client that answered."""
        weights = iter(log_weights)
        updates = [u if u.is_empty else replace(u, log_weight=next(weights)) for u in self.updates]
        return replace(self, updates=tuple(updates))

    def shares(self, size: int) -> list[float]:
        """Return each process's share of the mean; the shares add up to 1."""
        top = max((u.log_weight for u in self.updates), default=-math.inf)
        weights = [0.0] * size
        for update, owner in zip(self.updates, self.owners, strict=True):
            weights[owner] += 0.0 if update.is_empty else math.exp(update.log_weight - top)
        return [weight / (sum(weights) or 1.0) for weight in weights]


@dataclass(frozen=True)
class DistributedPool:
    """Divides a cohort among the workers of all processes, by seconds of audio."""

    worker: Worker
    group: Collectives
    seconds: Callable[[str], float]
    ordered: bool = False

    def reduce(self, task: Task, cohort: Sequence[str], weigh: Weigh) -> Update:
        updates: dict[int, Update] = {}  # position in the cohort -> this process's update, in an ordered pool
        share = RunningMean()

        def train() -> dict[str, Any]:
            notes = []
            for position, update in self.train(task, cohort, self._share(cohort)):
                weighted = update.weighted_by(weigh)
                notes.append(note_of(position, weighted))
                if self.ordered:
                    updates[position] = weighted
                else:
                    share.add(weighted)
            return {"notes": notes, "layout": layout_of([share.total(), *updates.values()])}

        answers = self.gather(train, len(cohort))
        return self.fold(answers, updates) if self.ordered else self.merge(answers, share.mean)

    def collect(self, task: Task, cohort: Sequence[str]) -> DistributedUpdates:
        updates: dict[int, Update] = {}

        def train() -> dict[str, Any]:
            updates.update(self.train(task, cohort, self._share(cohort)))
            notes = [note_of(position, update) for position, update in updates.items()]
            return {"notes": notes, "layout": layout_of(updates.values())}

        return DistributedUpdates(self, self.gather(train, len(cohort)), updates)

    def _share(self, cohort: Sequence[str]) -> list[int]:
        """Return the positions of this process's share of the cohort."""
        return share_out([self.seconds(client) for client in cohort], self.group.size)[self.group.rank]

    def train(self, task: Task, cohort: Sequence[str], positions: Sequence[int]) -> zip[tuple[int, Update]]:
        """Train clients at some positions of the cohort; return the answers with their positions."""
        clients = [cohort[position] for position in positions]
        updates = map(arrived(task), self.worker.run(task, clients), clients)
        return zip(positions, updates, strict=True)

    def gather(self, train: Callable[[], dict[str, Any]], num_clients: int) -> Answers:
        """Train on all processes, and gather the answers without their tensors."""
        answers: dict[int, tuple[int, Update]] = {}
        layouts = []
        for owner, message in enumerate(self.group.all_gather(train)):
            answers |= {note["position"]: (owner, _update_of(note)) for note in message["notes"]}
            layouts += [message["layout"]] if message["layout"] is not None else []
        if sorted(answers) != list(range(num_clients)):
            raise ValueError("processes divided a cohort differently: do all of them see the same corpus?")
        first = layouts[0] if layouts else []
        for layout in layouts:
            if layout != first:
                names = {e[0] for e in [*layout, *first] if e not in layout or e not in first}
                raise ValueError(f"updates of two processes hold different tensors: {sorted(names)[:5]}")
        owners, updates = zip(*(answers[p] for p in range(num_clients)), strict=True) if answers else ((), ())
        return Answers(updates, owners, first)

    def merge(self, answers: Answers, local_mean: Tensors) -> Update:
        """Add up the means of all processes, with one all-reduce for each dtype."""
        shares = answers.shares(self.group.size)
        contributing = [rank for rank, share in enumerate(shares) if share > 0]
        if not contributing:
            return answers.total
        mean: Tensors = {}
        for entries in _by_dtype(answers.layout):
            flat = self._flat(entries, local_mean)
            if len(contributing) == 1:  # nothing to add, so no rounding
                self.group.broadcast(flat, contributing[0])
            else:
                self.group.all_reduce(flat.mul_(shares[self.group.rank]))
            mean |= _cut(flat, entries)
        return replace(answers.total, mean={name: mean[name] for name, *_ in answers.layout})

    def fold(self, answers: Answers, local: Mapping[int, Update]) -> Update:
        """Add updates one by one in cohort order; each is sent to all by the process that has it."""
        total = RunningMean()
        for position, (update, owner) in enumerate(zip(answers.updates, answers.owners, strict=True)):
            mean: Tensors = {}
            for entries in () if update.is_empty else _by_dtype(answers.layout):
                flat = self._flat(entries, local[position].mean if owner == self.group.rank else {})
                self.group.broadcast(flat, owner)
                mean |= _cut(flat, entries)
            ordered = {name: mean[name] for name, *_ in answers.layout} if mean else {}
            total.add(replace(update, mean=ordered))
        return total.total()

    def _flat(self, entries: Layout, tensors: Tensors) -> Tensor:
        """Return the tensors one after another in a new buffer; zeros if there are none."""
        if tensors:
            return torch.cat([tensors[name].detach().reshape(-1) for name, *_ in entries])
        _, _, dtype, kind = entries[0]
        device = self.group.device if kind == self.group.device.type else torch.device(kind)
        count = sum(math.prod(shape) for _, shape, *_ in entries)
        return torch.zeros(count, dtype=getattr(torch, dtype), device=device)


@dataclass(frozen=True)
class DistributedUpdates:
    """Updates that stay in the processes where they were trained until weights for them are known."""

    pool: DistributedPool
    answers: Answers
    local: Mapping[int, Update]  # position in the cohort -> this process's update

    @property
    def reports(self) -> tuple[Report, ...]:
        return self.answers.total.reports

    @property
    def failures(self) -> tuple[Failure, ...]:
        return self.answers.total.failures

    def combine(self, log_weights: Sequence[float]) -> Update:
        if len(log_weights) != len(self.reports):
            raise ValueError(f"{len(log_weights)} weights for {len(self.reports)} updates")
        answers = self.answers.weighted(log_weights)
        answers = replace(answers, updates=tuple(replace(u, failures=()) for u in answers.updates))
        if self.pool.ordered:
            return self.pool.fold(answers, self.local)
        mean = add_up(replace(answers.updates[p], mean=update.mean) for p, update in self.local.items()).mean
        return self.pool.merge(answers, mean)

    def distances(self, point: Tensors) -> list[float]:
        """Measure where the updates are; only distances travel."""

        def measure() -> list[list[float]]:
            means = {position: u.mean for position, u in self.local.items() if not u.is_empty}
            return [list(pair) for pair in zip(means, distances_of(point, list(means.values())), strict=True)]

        messages = self.pool.group.all_gather(measure)
        return [distance for _, distance in sorted(pair for pairs in messages for pair in pairs)]


# --- Messages, and tensors in one buffer ----------------------------------------------------------


def note_of(position: int, update: Update) -> dict[str, Any]:
    return {
        "position": position,
        "log_weight": update.log_weight,
        "reports": [[r.client, dict(r.stats), r.bytes_up, r.state_bytes] for r in update.reports],
        "failures": [[failure.client, failure.reason] for failure in update.failures],
    }


def _update_of(note: Mapping[str, Any]) -> Update:
    reports = tuple(Report(*report) for report in note["reports"])
    failures = tuple(Failure(client, reason) for client, reason in note["failures"])
    return Update({}, note["log_weight"], reports, failures)


def layout_of(updates: Any) -> Layout | None:
    """Return the layout of the first update that is not empty."""
    for update in updates:
        if not update.is_empty:
            return [
                [name, list(t.shape), str(t.dtype).removeprefix("torch."), t.device.type]
                for name, t in update.mean.items()
            ]
    return None


def _by_dtype(layout: Layout) -> list[Layout]:
    kinds = dict.fromkeys((dtype, device) for _, _, dtype, device in layout)
    return [[entry for entry in layout if (entry[2], entry[3]) == kind] for kind in kinds]


def _cut(flat: Tensor, entries: Layout) -> Tensors:
    pieces = flat.split([math.prod(shape) for _, shape, *_ in entries])
    return {name: piece.view(shape) for (name, shape, *_), piece in zip(entries, pieces, strict=True)}
