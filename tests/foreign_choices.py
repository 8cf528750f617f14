"""Choices of other people: a module that antiphon knows nothing about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from antiphon.core import Metrics, Pool, Report, ServerState, Task, Tensors
from antiphon.server.weighting import Uniform, Weighting
from antiphon.tasks.local_training import LocalTraining

if TYPE_CHECKING:
    from decimal import Decimal


@dataclass(frozen=True)
class Halving:
    """An algorithm of a stranger: half of the mean update is applied."""

    local: LocalTraining = LocalTraining()
    weighting: Weighting = Uniform()
    share: float = 0.5
    renamed: ClassVar = {"fraction": "share"}

    def init(self, params: Tensors) -> ServerState:
        return ServerState(0, params)

    def round(self, state: ServerState, cohort: Sequence[str], pool: Pool) -> tuple[ServerState, Metrics]:
        task = Task("train", state.params, self.local.task_config(state))
        delta = pool.reduce(task, cohort, self.weighting).mean
        params = {name: p - self.share * delta[name] for name, p in state.params.items()}
        return ServerState(state.round + 1, params, seed=state.seed), {}


@dataclass(frozen=True)
class BySeconds:
    """A weighting of a stranger."""

    power: float = 1.0

    def __call__(self, report: Report) -> float:
        return self.power * report.stats["seconds"]


@dataclass(frozen=True)
class Quartering(Halving):
    """An algorithm that a test registers: a process that does not run the test does not know its name."""

    share: float = 0.25


@dataclass
class Thawed:
    """Not a configuration: its fields can change."""

    def init(self, params: Tensors) -> Any: ...
    def round(self, state: Any, cohort: Sequence[str], pool: Pool) -> Any: ...


@dataclass(frozen=True)
class Alternating:
    """A schedule of a stranger."""

    low: float = 0.5

    def __call__(self, round: int) -> float:
        return self.low if round % 2 else 1.0


@dataclass(frozen=True)
class Signs:
    """A clipping of a stranger."""

    size: float = 1e-3

    def __call__(self, params: Tensors, delta: Tensors) -> Tensors:
        return {name: self.size * d.sign() for name, d in delta.items()}


@dataclass(frozen=True)
class EvenAndOdd:
    """A partition of a stranger."""

    def __call__(self, store: Any, indices: np.ndarray, seed: int) -> dict[str, np.ndarray]:
        return {"even": indices[::2], "odd": indices[1::2]}


@dataclass(frozen=True)
class Averages:
    """An encoder of a stranger."""

    dim: int = 4

    def build(self, input_dim: int) -> Any: ...


@dataclass(frozen=True)
class NoRound:
    """Not an algorithm: it has no `round`."""

    def init(self, params: Tensors) -> ServerState:
        return ServerState(0, params)


@dataclass(frozen=True)
class ShortRound:
    """Not an algorithm: its `round` takes a state and nothing else."""

    def init(self, params: Tensors) -> Any: ...
    def round(self, state: Any) -> Any: ...


@dataclass(frozen=True)
class NoCall:
    """Not a weighting: nothing can be asked of it."""

    power: float = 1.0


@dataclass(frozen=True)
class OnlyForTypeCheckers(Halving):
    """Not a configuration: nobody can say what its field takes."""

    when: Decimal | None = None


@dataclass(frozen=True)
class WithFolder(Halving):
    """Not a configuration: a path cannot be written."""

    folder: Path = Path("models")


class Plain:
    """Not a configuration: it has the methods, but it is no dataclass."""

    def init(self, params: Tensors) -> Any: ...
    def round(self, state: Any, cohort: Sequence[str], pool: Pool) -> Any: ...


def work(task: Task, client: Any) -> Any:
    """Client work that nobody registered."""
    raise NotImplementedError
