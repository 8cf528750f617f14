"""Several processes: each trains its share of the cohort, one all-reduce adds the shares up.

Every process runs the same algorithm and holds the same Update afterwards, reports and failures in
cohort order, so all of them compute the same next state (SPMD). Means agree with `LocalPool` to
rounding, since shares are folded apart; an `ordered` pool folds update by update in cohort order and
agrees to the last bit, but holds its share in memory and sends every update to everyone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from antiphon.core import (
    Failure,
    Report,
    RunningMean,
    Task,
    Tensors,
    Update,
    Weigh,
    Worker,
    add_up,
)
from antiphon.pools.local import arrived, distances_of

Layout = list[list[Any]]  # [name, shape, dtype, kind of device] of every tensor of an update


class Collectives(Protocol):
    """What a pool needs of the processes it runs in."""

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
    """Positions for each of `num_shares`, about as many seconds each: the longest first, to who has least.

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
    """What every process knows of a cohort's answers: all but their tensors. In cohort order."""

    updates: tuple[Update, ...]  # without tensors
    owners: tuple[int, ...]  # the process that holds the tensors
    layout: Layout

    @property
    def total(self) -> Update:
        return add_up(self.updates)

    def weighted(self, log_weights: Sequence[float]) -> Answers:
        """With other weights: one for each client that answered."""
        weights = iter(log_weights)
        updates = [u if u.is_empty else replace(u, log_weight=next(weights)) for u in self.updates]
        return replace(self, updates=tuple(updates))

    def shares(self, size: int) -> list[float]:
        """How much of the mean each process contributes: they add up to 1."""
        top = max((u.log_weight for u in self.updates), default=-math.inf)
        weights = [0.0] * size
        for update, owner in zip(self.updates, self.owners, strict=True):
            weights[owner] += 0.0 if update.is_empty else math.exp(update.log_weight - top)
        return [weight / (sum(weights) or 1.0) for weight in weights]


@dataclass(frozen=True)
class DistributedPool:
    """Shares a cohort out to the workers of all processes, by seconds of audio."""

    worker: Worker
    group: Collectives
    seconds: Callable[[str], float]
    ordered: bool = False

    def reduce(self, task: Task, cohort: Sequence[str], weigh: Weigh) -> Update:
        held: dict[int, Update] = {}
        share = RunningMean()

        def train() -> dict[str, Any]:
            notes = []
            for position, update in self._train(task, cohort):
                weighted = update.weighted_by(weigh)
                notes.append(_noted(position, weighted))
                if self.ordered:
                    held[position] = weighted
                else:
                    share.add(weighted)
            return {"notes": notes, "layout": _layout_of([share.total(), *held.values()])}

        answers = self._gather(train, len(cohort))
        return self.fold(answers, held) if self.ordered else self.merge(answers, share.mean)

    def collect(self, task: Task, cohort: Sequence[str]) -> DistributedUpdates:
        held: dict[int, Update] = {}

        def train() -> dict[str, Any]:
            held.update(self._train(task, cohort))
            notes = [_noted(position, update) for position, update in held.items()]
            return {"notes": notes, "layout": _layout_of(held.values())}

        return DistributedUpdates(self, self._gather(train, len(cohort)), held)

    def _train(self, task: Task, cohort: Sequence[str]) -> zip[tuple[int, Update]]:
        """The answers of this process's share, with their places in the cohort."""
        seconds = [self.seconds(client) for client in cohort]
        mine = share_out(seconds, self.group.size)[self.group.rank]
        updates = map(arrived(task), self.worker.run(task, [cohort[p] for p in mine]))
        return zip(mine, updates, strict=True)

    def _gather(self, train: Callable[[], dict[str, Any]], num_clients: int) -> Answers:
        """Trains everywhere, and tells everyone what came of it."""
        found: dict[int, tuple[int, Update]] = {}
        layouts = []
        for owner, told in enumerate(self.group.all_gather(train)):
            found |= {note["position"]: (owner, _update_of(note)) for note in told["notes"]}
            layouts += [told["layout"]] if told["layout"] is not None else []
        if sorted(found) != list(range(num_clients)):
            raise ValueError(
                "the processes shared a cohort out differently: do all of them see the same corpus?"
            )
        for layout in layouts:
            if layout != layouts[0]:
                odd = [
                    entry[0] for entry in [*layout, *layouts[0]] if (entry in layout) != (entry in layouts[0])
                ]
                raise ValueError(f"updates of two processes hold different tensors: {sorted(set(odd))[:5]}")
        in_order = [found[position] for position in range(num_clients)]
        updates, owners = tuple(update for _, update in in_order), tuple(owner for owner, _ in in_order)
        return Answers(updates, owners, layouts[0] if layouts else [])

    def merge(self, answers: Answers, mine: Tensors) -> Update:
        """Shares that were folded where they were trained, in one all-reduce for each dtype."""
        shares = answers.shares(self.group.size)
        contributing = [rank for rank, share in enumerate(shares) if share > 0]
        if not contributing:
            return answers.total
        mean: Tensors = {}
        for entries in _by_dtype(answers.layout):
            flat = self._flat(entries, mine)
            if len(contributing) == 1:  # nothing to add, and so no bit to lose
                self.group.broadcast(flat, contributing[0])
            else:
                self.group.all_reduce(flat.mul_(shares[self.group.rank]))
            mean |= _cut(flat, entries)
        return replace(answers.total, mean={name: mean[name] for name, *_ in answers.layout})

    def fold(self, answers: Answers, held: Mapping[int, Update]) -> Update:
        """Updates one after another in cohort order, each sent to everyone by its process."""
        total = RunningMean()
        for position, (update, owner) in enumerate(zip(answers.updates, answers.owners, strict=True)):
            mean: Tensors = {}
            for entries in () if update.is_empty else _by_dtype(answers.layout):
                own = held[position].mean if owner == self.group.rank else {}
                flat = self._flat(entries, own)
                self.group.broadcast(flat, owner)
                mean |= _cut(flat, entries)
            ordered = {name: mean[name] for name, *_ in answers.layout} if mean else {}
            total.add(replace(update, mean=ordered))
        return total.total()

    def _flat(self, entries: Layout, tensors: Tensors) -> Tensor:
        """The tensors one after another in a new buffer; zeros if there are none."""
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
    held: Mapping[int, Update]  # place in the cohort -> this process's updates

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
            return self.pool.fold(answers, self.held)
        mine = add_up(
            replace(answers.updates[place], mean=update.mean) for place, update in self.held.items()
        )
        return self.pool.merge(answers, mine.mean)

    def distances(self, point: Tensors) -> list[float]:
        """Measured where the updates are; only the distances travel."""

        def measure() -> list[list[float]]:
            mine = {place: update for place, update in self.held.items() if not update.is_empty}
            found = distances_of(point, [update.mean for update in mine.values()])
            return [[place, distance] for place, distance in zip(mine, found, strict=True)]

        told = self.pool.group.all_gather(measure)
        return [distance for _, distance in sorted(pair for pairs in told for pair in pairs)]


# --- Messages, and tensors in one buffer ----------------------------------------------------------


def _noted(position: int, update: Update) -> dict[str, Any]:
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


def _layout_of(updates: Any) -> Layout | None:
    """Of the first update that is not empty."""
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
