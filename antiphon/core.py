"""The vocabulary: everything else in the package is written in these names.

An algorithm makes a `Task`, a pool carries it to clients, their `Update`s are added up as they
arrive, and the algorithm turns the sum into the next state. A whole toy algorithm:

>>> class Average:
...     def init(self, params):
...         return ServerState(round=0, params=params)
...     def round(self, state, cohort, pool):
...         update = pool.reduce(Task("train", state.params), cohort, weigh=lambda report: 0.0)
...         params = {name: p - update.mean[name] for name, p in state.params.items()}
...         return ServerState(state.round + 1, params), {}
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, cast, runtime_checkable

import torch
from torch import Tensor

Tensors = dict[str, Tensor]
Scalar = float | int | str | bool | None
Metrics = Mapping[str, float]


class Stopped(Exception):
    """The run stops here, cleanly; the message says why."""


def size_in_bytes(tensors: Tensors) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def norms_of(tensors: list[Tensor] | tuple[Tensor, ...]) -> list[float]:
    """The l2 norm of each tensor, in one transfer: an `.item()` each would stop a GPU hundreds of times."""
    norms: list[float] = torch.stack(torch._foreach_norm(tensors)).tolist()
    return norms


def distances_of(point: Tensors, others: Sequence[Tensors]) -> list[float]:
    """The l2 distance of each of `others` to a point, over all tensors together; read in one transfer."""
    if not point:
        return [0.0] * len(others)
    found = []
    for other in others:
        if other.keys() != point.keys():
            raise ValueError(
                f"the point and an update hold different tensors: {sorted(other.keys() ^ point.keys())[:5]}"
            )
        gaps = torch._foreach_sub([other[name] for name in point], list(point.values()))
        found.append(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gaps))))
    distances: list[float] = torch.stack(found).tolist() if found else []
    return distances


@dataclass(frozen=True)
class Task:
    """What the server sends to a client. Data only: no code crosses the wire."""

    kind: str
    tensors: Tensors = field(default_factory=dict)
    config: Mapping[str, Scalar] = field(default_factory=dict)


@dataclass(frozen=True)
class Report:
    """What a client tells about its work: numbers only, nothing that was said."""

    client: str
    stats: Mapping[str, float]


@dataclass(frozen=True)
class Failure:
    """A client left out of a round, and why."""

    client: str
    reason: str


@dataclass(frozen=True)
class Update:
    """A weighted mean that knows its own log-weight; `+` is associative.

    The weight of client k in the sum is exp(l_k) / Σ_j exp(l_j), for log-weights of any size, so
    `+` *is* streamed softmax weighting. `Update.nothing` is its identity: it may carry failures.

    >>> a = Update({"w": torch.tensor([1.0])}, log_weight=0.0)
    >>> b = Update({"w": torch.tensor([4.0])}, log_weight=math.log(2.0))
    >>> (a + b).mean["w"]
    tensor([3.])
    """

    mean: Tensors
    log_weight: float = 0.0
    reports: tuple[Report, ...] = ()
    failures: tuple[Failure, ...] = ()

    @classmethod
    def nothing(cls, *failures: Failure) -> Update:
        """The identity of `+`: no tensors, no weight, perhaps some failures."""
        return cls({}, -math.inf, (), failures)

    @property
    def is_empty(self) -> bool:
        return self.log_weight == -math.inf

    def __add__(self, other: Update) -> Update:
        return Sum().add(self).add(other).total()

    def weighted(self, log_weight: float) -> Update:
        return Update(self.mean, log_weight, self.reports, self.failures)

    def weighed(self, weigh: Weigh) -> Update:
        """This one client's update with the weight it deserves; a failure if that is not a number."""
        if self.is_empty:
            return self
        (report,) = self.reports
        log_weight = weigh(report)
        if math.isfinite(log_weight):
            return self.weighted(log_weight)
        return Update.nothing(Failure(report.client, f"its weight is not finite (log-weight {log_weight})"))


class Sum:
    """Adds updates in place: two sets of tensors in memory, whatever the number of clients.

    The first update's tensors are copied before anything is added to them, so no update that was
    handed in ever changes.
    """

    def __init__(self) -> None:
        self.mean: Tensors = {}
        self.log_weight = -math.inf
        self.reports: list[Report] = []
        self.failures: list[Failure] = []
        self._owned = False

    def add(self, update: Update) -> Sum:
        self.reports.extend(update.reports)
        self.failures.extend(update.failures)
        if update.is_empty:
            return self
        if self.log_weight == -math.inf:
            self.mean, self.log_weight, self._owned = dict(update.mean), update.log_weight, False
            return self
        if update.mean.keys() != self.mean.keys():
            raise ValueError(
                f"updates hold different tensors: {sorted(update.mean.keys() ^ self.mean.keys())[:5]}"
            )
        if self.mean:
            self._lerp(update)
        high, low = max(self.log_weight, update.log_weight), min(self.log_weight, update.log_weight)
        self.log_weight = high + math.log1p(math.exp(low - high))
        return self

    def _lerp(self, update: Update) -> None:
        if not self._owned:
            self.mean = {name: tensor.clone() for name, tensor in self.mean.items()}
            self._owned = True
        mine, theirs = list(self.mean.values()), [update.mean[name] for name in self.mean]
        for name, old, new in zip(self.mean, mine, theirs, strict=True):
            if old.shape != new.shape:
                shapes = f"{tuple(new.shape)} and {tuple(old.shape)}"
                raise ValueError(f"updates hold {name!r} in different shapes: {shapes}")
        # The newcomer's share exp(l) / (exp(l) + exp(L)) as a sigmoid: no overflow at any loss.
        share = 1 / (1 + math.exp(min(self.log_weight - update.log_weight, 700.0)))
        with torch.no_grad():
            torch._foreach_lerp_(mine, theirs, share)

    def total(self) -> Update:
        self._owned = False  # what is handed out must not change if more is added
        return Update(self.mean, self.log_weight, tuple(self.reports), tuple(self.failures))


def add_up(updates: Iterable[Update]) -> Update:
    """The sum of many updates, in the order given."""
    total = Sum()
    for update in updates:
        total.add(update)
    return total.total()


Weigh = Callable[[Report], float]  # Report -> log-weight


class Collected(Protocol):
    """Updates that stay where they were trained until weights for them are known."""

    @property
    def reports(self) -> Sequence[Report]: ...
    @property
    def failures(self) -> Sequence[Failure]: ...
    def combine(self, log_weights: Sequence[float]) -> Update: ...
    def distances(self, point: Tensors) -> Sequence[float]:
        """The l2 distance of each update to a point, in the order of `reports`."""


class Pool(Protocol):
    """Carries a task to clients. `reduce` streams: its memory does not grow with the cohort."""

    def reduce(self, task: Task, cohort: Sequence[str], weigh: Weigh) -> Update: ...
    def collect(self, task: Task, cohort: Sequence[str]) -> Collected: ...


class Worker(Protocol):
    """Does a task for clients: one update each, in the order given, empty for one that failed."""

    def run(self, task: Task, clients: Sequence[str]) -> Iterator[Update]: ...


@dataclass(frozen=True)
class ServerState:
    """What a run is, between two rounds: algorithms extend it with fields of their own.

    Fields hold numbers, strings, None, tensors, and dicts or tuples of these; nothing else can be saved.
    """

    round: int
    params: Tensors
    opt: Any = None
    seed: int = 0

    @property
    def model(self) -> Tensors:
        """The parameters of the model as a client would get it now."""
        return self.params

    @property
    def shape(self) -> str:
        """What that model is of the one the run began with, as `antiphon.kept` writes it; "": all of it."""
        return ""

    @property
    def is_result(self) -> bool:
        """Whether the run may end with this model."""
        return True


State = TypeVar("State", bound=ServerState)
AnyAlgorithm = TypeVar("AnyAlgorithm")


class Algorithm(Protocol[State]):
    """State in, state out: a round changes nothing it was given, so resuming is free."""

    def init(self, params: Tensors) -> State: ...
    def round(self, state: State, cohort: Sequence[str], pool: Pool) -> tuple[State, Metrics]: ...


@runtime_checkable
class Validating(Protocol):
    """An algorithm that measures models in its rounds: it is told on which clients before a run begins."""

    def with_validation(self, clients: Sequence[str]) -> Algorithm[Any]: ...


def with_validation(algorithm: AnyAlgorithm, clients: Sequence[str]) -> AnyAlgorithm:
    """The algorithm, told on which clients to measure models if it does so."""
    if not isinstance(algorithm, Validating):
        return algorithm
    return cast(AnyAlgorithm, algorithm.with_validation(clients))


@runtime_checkable
class Structured(Protocol):
    """An algorithm that takes models apart: before a run begins it is told their layers (`prunable`)."""

    def with_structure(self, structure: Sequence[Any]) -> Algorithm[Any]: ...
