"""Federated Marginal Personalization, the server's part: how often all clients together say each word.

Z. Liu and F. Peng, "Federated Marginal Personalization for ASR Rescoring", 2020, §2.3 (and §4: `release`).

| symbol | here |
| --- | --- |
| q̄(w) | state.params["marginal"] [words] float64; u(w) before the first round |
| q_i(w) | an update's mean: the client's words, normalised, not smoothed |
| c_i | exp of its log-weight, which comes from the report's "pseudo_count" |

`Update.+` computes eq. 6: q̄ = Σ c_i q_i / Σ c_i, and mean · exp(log-weight) = Σ c_i q_i are the pooled
counts.

Deviations. Smoothing with u happens where q̄ is used (`decoding.adaptation`): eq. 6 is linear, so the
result is the same. Beyond the paper: `decay` keeps a share of the counts of earlier rounds, for runs in which
only some clients are drawn in each. A round without any reports changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from antiphon.core import ALGORITHMS, Metrics, Pool, Report, ServerState, Task, Tensors, Unusable, Update
from antiphon.privacy.release import Release

MARGINAL = "marginal"  # the kind of task, and the name of its tensor
PSEUDO_COUNT = "pseudo_count"


@dataclass(frozen=True)
class FmpState(ServerState):
    """mass: the pseudo-count of q̄; 0 while q̄ is the background.

    released: the memory of the release: noised counts and the privacy spent on them.
    """

    mass: float = 0.0
    released: Any = None


@ALGORITHMS.register
@dataclass(frozen=True)
class Fmp:
    """q̄ is the pooled unigram of the clients of the round.

    differences: clients send q_i − q̄ instead of q_i; the outcome is the same.
    decay: the factor on the counts of earlier rounds before new ones are added; 0: they are forgotten.
    """

    differences: bool = False
    decay: float = 0.0
    release: Release | None = None
    unbounded: ClassVar[str] = "its counts have caps and noise of their own: see its release"

    def __post_init__(self) -> None:
        if not 0 <= self.decay <= 1:
            raise ValueError(f"decay must be between 0 (forget) and 1 (keep everything), got {self.decay}")
        if self.decay and self.release is not None:
            raise ValueError(
                "decay would keep noised counts and add others to them: use one of decay and release"
            )

    def init(self, params: Tensors) -> FmpState:
        """params: {"marginal": u [words]}."""
        if params.keys() != {MARGINAL} or params[MARGINAL].dim() != 1:
            raise ValueError(f"FMP starts from one vector called {MARGINAL!r}, not from {sorted(params)}")
        return FmpState(round=0, params={MARGINAL: params[MARGINAL].double()})

    def round(self, state: FmpState, cohort: Sequence[str], pool: Pool) -> tuple[FmpState, Metrics]:
        before = state.params[MARGINAL]
        tensors = {MARGINAL: before} if self.differences else {}  # clients that send q itself need nothing
        task = Task(MARGINAL, tensors, {"differences": self.differences}, answers_like={MARGINAL: before})
        update = pool.reduce(task, cohort, by_pseudo_count)
        counts, num_clients = self._pooled(update, before), len(update.reports)
        if self.release is not None:  # also of an empty round: that it was empty is private
            released = self.release(counts, state.round, state.released)
            state = replace(self._with(state, released.counts), released=released.memory)
            return state, {"mass": state.mass, "num_clients": num_clients, **released.metrics}
        if update.is_empty:
            return replace(state, round=state.round + 1), {"mass": state.mass, "num_clients": 0}
        counts = counts + self.decay * state.mass * before
        return self._with(state, counts), {"mass": float(counts.sum()), "num_clients": num_clients}

    def _pooled(self, update: Update, before: Tensor) -> Tensor:
        """Return Σ c_i q_i."""
        if update.is_empty:
            return torch.zeros_like(before)
        mean = update.mean[MARGINAL] + before if self.differences else update.mean[MARGINAL]
        return mean * math.exp(update.log_weight)

    def _with(self, state: FmpState, counts: Tensor) -> FmpState:
        mass = float(counts.sum())
        if mass <= 0:  # noise may have left nothing
            return replace(state, round=state.round + 1)
        return replace(state, round=state.round + 1, params={MARGINAL: counts / mass}, mass=mass)


def by_pseudo_count(report: Report) -> float:
    """Return log c_i: clients are weighted by how much they said (eq. 6)."""
    count = report.stats.get(PSEUDO_COUNT, 0.0)
    if not count > 0:
        raise Unusable(f"its {PSEUDO_COUNT} is {count:g}, not above 0")
    return math.log(count)


def background_params(probabilities: Tensor | Sequence[float]) -> Tensors:
    """Return the parameters for `Fmp.init`: the background u."""
    return {MARGINAL: torch.as_tensor(probabilities, dtype=torch.float64)}
