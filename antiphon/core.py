"""The vocabulary of the package: task, update, pool, worker, state, algorithm.

An algorithm makes a `Task`, a pool carries it to clients, their `Update`s are added up as they arrive, and
the algorithm turns the sum into the next state. A complete toy algorithm:

>>> class Average:
...     def init(self, params):
...         return ServerState(round=0, params=params)
...     def round(self, state, cohort, pool):
...         update = pool.reduce(Task("train", state.params), cohort, weigh=lambda report: 0.0)
...         params = {name: p - update.mean[name] for name, p in state.params.items()}
...         return replace(state, round=state.round + 1, params=params), {}
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, ClassVar, Protocol, TypeVar

import torch
from torch import Tensor

from antiphon.registry import Registry

Tensors = dict[str, Tensor]  # "part/name", such as "control/encoder.weight", is shaped like parameter "name"
Scalar = float | int | str | bool | None
Metrics = Mapping[str, float]


class Stopped(Exception):
    """Ends a run cleanly. The message says why."""


class Diverged(Stopped):
    """A step of the server made parameters that no client can use."""


class Unusable(ValueError):
    """A client has nothing to work on, or its report gives it no weight.

    The run continues without it; the journal gives the reason.
    """


def lives_with_server(client: str) -> bool:
    """Return whether a client is the server's own data: nothing travels to it, and it never drops out."""
    return client.startswith(("server/", "valid/"))


def size_in_bytes(tensors: Tensors) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


@dataclass(frozen=True)
class Task:
    """What the server sends to a client. Data only: no code is sent.

    A client trains the parameters named in `tensors`. Three keys of `config` are reserved: "round" and "call"
    number the tasks of a run (the engine writes them), "views" names views (`antiphon.tasks.views`).
    """

    kind: str  # the name of a client's work
    tensors: Tensors = field(default_factory=dict)
    config: Mapping[str, Scalar] = field(default_factory=dict)
    # Tensors like those of an answer, for work that does not declare them itself. They are not sent.
    answers_like: Tensors | None = None
    # Client -> simulated times at which it got the task and at which its answer arrives, if it began in an
    # earlier round. They are not sent. None: the task is sent now.
    times: Mapping[str, tuple[float, float]] | None = None

    @property
    def num_bytes(self) -> int:
        """The bytes that travel: tensors, and the configuration as JSON."""
        return size_in_bytes(self.tensors) + len(json.dumps(dict(self.config)).encode())

    @property
    def moment(self) -> tuple[int, int]:
        """The round and the number of the call within it. Orders all tasks of a run."""
        return int(self.config.get("round") or 0), int(self.config.get("call") or 0)


@dataclass(frozen=True)
class Report:
    """What a client reports about its work: numbers only, never what was said.

    Pools and workers add `bytes_up`, the size of the answer that arrived, and `state_bytes`, the size of the
    state that the client keeps for later rounds (0: none).
    """

    client: str
    stats: Mapping[str, float]
    bytes_up: int = 0
    state_bytes: int = 0


@dataclass(frozen=True)
class Failure:
    """A client that is left out of a round, and the reason."""

    client: str
    reason: str


@dataclass(frozen=True)
class Update:
    """A weighted mean with its log-weight; `+` is associative.

    The weight of client k in the sum is exp(l_k) / Σ_j exp(l_j), for log-weights of any size, so `+` computes
    softmax weights as updates arrive. `Update.nothing` is its identity; it may carry failures.

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
        """Return the identity of `+`: no tensors, no weight, perhaps some failures."""
        return cls({}, -math.inf, (), failures)

    @property
    def is_empty(self) -> bool:
        return self.log_weight == -math.inf

    def __add__(self, other: Update) -> Update:
        return RunningMean().add(self).add(other).total()

    def with_log_weight(self, log_weight: float) -> Update:
        return replace(self, log_weight=log_weight)

    def weighted_by(self, weigh: Weigh) -> Update:
        """Return one client's update with its log-weight; a failure if there is no finite one."""
        if self.is_empty:
            return self
        (report,) = self.reports
        try:
            log_weight = weigh(report)
        except Unusable as error:
            return Update.nothing(Failure(report.client, str(error)))
        if math.isfinite(log_weight):
            return self.with_log_weight(log_weight)
        return Update.nothing(Failure(report.client, f"its weight is not finite (log-weight {log_weight})"))


class RunningMean:
    """Adds updates in place: two sets of tensors in memory, whatever the number of clients.

    It copies the tensors of the first update before it adds others to them, so no update ever changes.
    """

    def __init__(self) -> None:
        self.mean: Tensors = {}
        self.log_weight = -math.inf
        self.reports: list[Report] = []
        self.failures: list[Failure] = []
        self._owned = False

    def add(self, update: Update) -> RunningMean:
        self.reports.extend(update.reports)
        self.failures.extend(update.failures)
        if update.is_empty:
            return self
        if self.log_weight == -math.inf:
            self.mean, self.log_weight, self._owned = update.mean.copy(), update.log_weight, False
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
            clones = getattr(self.mean, "clones", None)  # of tensors that lie in one: `tasks.local_training`
            self.mean = clones() if clones else {name: tensor.clone() for name, tensor in self.mean.items()}
            self._owned = True
        # The new update's share exp(l) / (exp(l) + exp(L)) as a sigmoid: no overflow at any loss.
        share = 1 / (1 + math.exp(min(self.log_weight - update.log_weight, 700.0)))
        if (blend := getattr(self.mean, "blend", None)) and blend(update.mean, share):
            return
        means, others = list(self.mean.values()), [update.mean[name] for name in self.mean]
        if odd := [name for name, mean in self.mean.items() if mean.shape != update.mean[name].shape]:
            shapes = " and ".join(str(tuple(t[odd[0]].shape)) for t in (update.mean, self.mean))
            raise ValueError(f"updates hold {odd[0]!r} in different shapes: {shapes}")
        with torch.no_grad():
            torch._foreach_lerp_(means, others, share)

    def total(self) -> Update:
        self._owned = False  # the returned tensors must not change if more updates are added
        return Update(self.mean, self.log_weight, tuple(self.reports), tuple(self.failures))


def add_up(updates: Iterable[Update]) -> Update:
    """Return the sum of updates, added in this order."""
    total = RunningMean()
    for update in updates:
        total.add(update)
    return total.total()


Weigh = Callable[[Report], float]  # Report -> log-weight


class Collected(Protocol):
    """Updates that stay where they were trained until their weights are known."""

    @property
    def reports(self) -> Sequence[Report]: ...
    @property
    def failures(self) -> Sequence[Failure]: ...
    def combine(self, log_weights: Sequence[float]) -> Update: ...
    def distances(self, point: Tensors) -> Sequence[float]:
        """Return the l2 distance of each update to a point, in the order of `reports`."""


class Pool(Protocol):
    """Carries a task to clients. `reduce` streams: its memory does not grow with the cohort.

    Optional: `arrival(task, client, sent) -> float`, when a client's answer arrives by a simulated clock.
    """

    def reduce(self, task: Task, cohort: Sequence[str], weigh: Weigh) -> Update: ...
    def collect(self, task: Task, cohort: Sequence[str]) -> Collected: ...


class Worker(Protocol):
    """Does a task for clients: yields one update for each, in order, empty for a client that failed."""

    def run(self, task: Task, clients: Sequence[str]) -> Iterator[Update]: ...


@dataclass(frozen=True)
class ServerState:
    """The state of a run between two rounds. Algorithms add fields of their own.

    Fields hold numbers, strings, None, tensors, and dicts or tuples of these; nothing else can be saved.
    """

    round: int
    params: Tensors
    opt: Any = None
    seed: int = 0
    renamed: ClassVar[Mapping[str, str]] = {}  # names of fields in older checkpoints -> present names

    def with_params(self, params: Tensors) -> Any:
        """Return the state with other parameters."""
        return replace(self, params=params)

    def with_seed(self, seed: int) -> Any:
        """Return the state of a run with this seed."""
        return replace(self, seed=seed)

    @property
    def model(self) -> Tensors:
        """The parameters of the model that clients would get now."""
        return self.params

    @property
    def submodel(self) -> str:
        """The units of the starting model that `model` still has (`Submodel.write`); "": all of them."""
        return ""

    @property
    def is_result(self) -> bool:
        """Whether this model can be the result of the run."""
        return True


@dataclass(frozen=True)
class WrapperState:
    """The state of an algorithm that wraps another: the whole inner state, and fields of its own.

    It has no parameters of its own: it reads and writes those of the inner state.
    """

    inner: Any
    renamed: ClassVar[Mapping[str, str]] = {}
    round: ClassVar[Any] = property(attrgetter("inner.round"))
    seed: ClassVar[Any] = property(attrgetter("inner.seed"))
    params: ClassVar[Any] = property(attrgetter("inner.params"))
    model: ClassVar[Any] = property(attrgetter("inner.model"))
    submodel: ClassVar[Any] = property(attrgetter("inner.submodel"))
    is_result: ClassVar[Any] = property(attrgetter("inner.is_result"))

    def with_params(self, params: Tensors) -> Any:
        return replace(self, inner=self.inner.with_params(params))

    def with_seed(self, seed: int) -> Any:
        return replace(self, inner=self.inner.with_seed(seed))


State = TypeVar("State", bound=ServerState | WrapperState)


class Algorithm(Protocol[State]):
    """A pure function from state to state: a round changes none of its arguments, so a run can be resumed.

    An algorithm is a frozen dataclass of settings. A wrapper has a field `inner: Algorithm`. Optional:

    - `prepare(context: RunContext) -> Algorithm` takes what is known before a run begins;
    - `check_run(run)` refuses settings of a run that do not fit, when an experiment is read;
    - `check_place(is_away)` refuses settings that do not fit clients here, or on other machines;
    - `personal(pool) -> Pool` returns a pool through which each client evaluates its own model;
    - `draw(clients, size, seed, round) -> cohort` draws the clients of a round, in place of the engine;
    - `effect` and `refuses` say which wrappers it cannot enclose (see `check_order`);
    - `trains_on_server`, `labels_speech`, `is_for_whole_models`: see `Central`, `SelfTrained`, `DgaRl`;
    - `collects = True` says that it calls `pool.collect`, which secure aggregation refuses;
    - `unbounded` says why `Private` cannot bound what one client changes in a round;
    - `is_asynchronous = True` says that its clients begin and end in different rounds, which needs a clock.
    """

    def init(self, params: Tensors) -> State: ...
    def round(self, state: State, cohort: Sequence[str], pool: Pool) -> tuple[State, Metrics]: ...


ALGORITHMS = Registry("antiphon.algorithms", kind=Algorithm, homes=["antiphon.algorithms"], default="fed_avg")
