"""Choices of other people: a module that antiphon knows nothing about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from antiphon.core import Metrics, Pool, Report, ServerState, Task, Tensors
from antiphon.server.weighting import Uniform, Weighting
from antiphon.tasks.local_training import LocalTraining


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
class NoRound:
    """Not an algorithm: it has no `round`."""

    def init(self, params: Tensors) -> ServerState:
        return ServerState(0, params)


class Plain:
    """Not a configuration: it has the methods, but it is no dataclass."""

    def init(self, params: Tensors) -> Any: ...
    def round(self, state: Any, cohort: Sequence[str], pool: Pool) -> Any: ...


def work(task: Task, client: Any) -> Any:
    """Client work that nobody registered."""
    raise NotImplementedError
