"""Two processes in a test of one: for the time of a call, a fork takes the same steps beside this process.

A fork knows the worker, the weighting and whatever else the test made, so tests need not be written for two.
A pool of `Twins` forks for every task, unless two processes take the steps of the whole test already.
"""

from __future__ import annotations

import hashlib
import os
import socket
import tempfile
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from antiphon.core import Collected, Failure, Report, Stopped, Task, Tensors, Update, Weigh, Worker
from antiphon.pools.links import Links, ends_of, make_pairs
from antiphon.pools.torch_group import PeerLost, TorchGroup

T = TypeVar("T")
HAVE_LINKS = True  # as processes of `--workers`; else gloo carries everything
_groups: list[TorchGroup] = []  # the group of this process, while there is one


def side_by_side(
    action: Callable[[TorchGroup], T], size: int = 2, ordered: bool = False, dispatch: bool = False
) -> T:
    """What `action` returns or raises here; in the forks it must come to the same, to the last bit."""
    with tempfile.TemporaryDirectory() as folder:
        meeting = Meeting(Path(folder) / "meeting", size, make_pairs(size) if HAVE_LINKS else [])
        outcome = "something else"
        forks = [_fork(rank, action, ordered, dispatch, meeting) for rank in range(1, size)]
        try:
            value = _as_rank(0, action, ordered, dispatch, meeting)
            outcome = fingerprint(value)
        except (Stopped, ValueError, PeerLost) as error:
            outcome = kind_of(error)
            raise
        finally:
            for rank, fork in enumerate(forks, 1):
                os.waitpid(fork, 0)
                verdict = meeting.path.with_name(str(rank))
                if verdict.exists():  # or it ended without a word, as a test may want it to
                    other = verdict.read_text()
                    assert other == outcome, f"process {rank}: {other}\nthis one: {outcome}"
    return value


@dataclass(frozen=True)
class Meeting:
    """Where some processes meet: a file, and pairs of sockets."""

    path: Path
    size: int
    pairs: list[tuple[socket.socket, socket.socket]]

    def links(self, rank: int) -> Links | None:
        """Return the links of a process, which closes all that belong to others."""
        own = ends_of(rank, self.pairs) if self.pairs else []
        for end in chain(*self.pairs):
            if end not in own:
                end.close()
        return Links(rank, own) if own else None


def _fork(
    rank: int, action: Callable[[TorchGroup], Any], ordered: bool, dispatch: bool, meeting: Meeting
) -> int:
    fork = os.fork()
    if fork > 0:
        return fork
    try:
        verdict = meeting.path.with_name(str(rank))
        try:
            verdict.write_text(fingerprint(_as_rank(rank, action, ordered, dispatch, meeting)))
        except (Stopped, ValueError) as error:
            verdict.write_text(kind_of(error))
        except BaseException:
            verdict.write_text(traceback.format_exc())
    finally:
        os._exit(0)


def _as_rank(
    rank: int, action: Callable[[TorchGroup], T], ordered: bool, dispatch: bool, meeting: Meeting
) -> T:
    links = meeting.links(rank)
    store = dist.FileStore(str(meeting.path), meeting.size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=meeting.size)
    try:
        counter = store if dispatch else None
        _groups.append(TorchGroup(torch.device("cpu"), ordered, counter=counter, links=links))
        return action(_groups[-1])
    finally:
        _groups.clear()
        dist.destroy_process_group()
        for end in links.ends if links else ():
            end.close()


def kind_of(error: Exception) -> str:
    return "stopped" if isinstance(error, Stopped) else "refused"


def fingerprint(value: Any) -> str:
    """Every bit of an update, or of anything else that can be shown."""
    if not isinstance(value, Update):
        return repr(value)
    digest = hashlib.sha256()
    for name, tensor in value.mean.items():
        digest.update(name.encode() + tensor.numpy().tobytes())
    return f"{digest.hexdigest()} {value.log_weight} {value.reports} {value.failures}"


@dataclass(frozen=True)
class Twins:
    """A pool of two processes, or more."""

    worker: Worker
    size: int = 2
    ordered: bool = False
    seconds: Callable[[str], float] = len
    dispatch: bool = False

    def reduce(self, task: Task, cohort: Sequence[str], weigh: Weigh) -> Update:
        def work(group: TorchGroup) -> Update:
            return group.pool(self.worker, self.seconds).reduce(task, cohort, weigh)

        if _groups:
            return agreed(self.group, work(self.group))
        return side_by_side(work, self.size, self.ordered, self.dispatch)

    @property
    def group(self) -> TorchGroup:
        """The group in which the test runs; it must be the one that this pool would start."""
        assert (_groups[-1].size, _groups[-1].ordered, self.dispatch) == (self.size, self.ordered, False)
        return _groups[-1]

    def collect(self, task: Task, cohort: Sequence[str]) -> Collected:
        if _groups:
            return AgreedCollected(
                self.group, self.group.pool(self.worker, self.seconds).collect(task, cohort)
            )

        def work(group: TorchGroup) -> tuple[tuple[Report, ...], tuple[Failure, ...]]:
            held = group.pool(self.worker, self.seconds).collect(task, cohort)
            return tuple(held.reports), tuple(held.failures)

        held = side_by_side(work, self.size, self.ordered, self.dispatch)
        return TwinsCollected(self, task, cohort, *held)


def agreed(group: TorchGroup, value: T) -> T:
    """Check that all processes have come to the same value, to the last bit."""
    assert len(set(group.all_gather(lambda: fingerprint(value)))) == 1, "the processes disagree"
    return value


@dataclass(frozen=True)
class AgreedCollected:
    """Updates in the processes of a group, which must agree on what comes of them."""

    group: TorchGroup
    held: Collected

    @property
    def reports(self) -> Sequence[Report]:
        return agreed(self.group, self.held.reports)

    @property
    def failures(self) -> Sequence[Failure]:
        return agreed(self.group, self.held.failures)

    def combine(self, log_weights: Sequence[float]) -> Update:
        return agreed(self.group, self.held.combine(log_weights))

    def distances(self, point: Tensors) -> Sequence[float]:
        return agreed(self.group, self.held.distances(point))


@dataclass(frozen=True)
class TwinsCollected:
    """Collects again for every new set of weights: the fork that held the updates is gone."""

    twins: Twins
    task: Task
    cohort: Sequence[str]
    reports: tuple[Report, ...]
    failures: tuple[Failure, ...]
    combined: dict[tuple[float, ...], Update] = field(default_factory=dict)

    def combine(self, log_weights: Sequence[float]) -> Update:
        def work(group: TorchGroup) -> Update:
            pool = group.pool(self.twins.worker, self.twins.seconds)
            return pool.collect(self.task, self.cohort).combine(log_weights)

        key = tuple(log_weights)
        if key not in self.combined:
            self.combined[key] = side_by_side(work, self.twins.size, self.twins.ordered, self.twins.dispatch)
        return self.combined[key]

    def distances(self, point: Tensors) -> list[float]:
        def work(group: TorchGroup) -> list[float]:
            pool = group.pool(self.twins.worker, self.twins.seconds)
            return list(pool.collect(self.task, self.cohort).distances(point))

        return side_by_side(work, self.twins.size, self.twins.ordered, self.twins.dispatch)
