"""Federated Marginal Personalization, the server's half: how often all clients together say each word.

Z. Liu and F. Peng, "Federated Marginal Personalization for ASR Rescoring", 2020, §2.3 (and §4: `release`).

| symbol | here |
| --- | --- |
| q̄(w) | state.params["marginal"] [words] float64; u(w) before the first round |
| q_i(w) | an update's mean: the client's words, normalised, not smoothed |
| c_i | exp of its log-weight, which comes from the report's "pseudo_count" |

Eq. 6 is what `Update.+` computes: q̄ = Σ c_i q_i / Σ c_i, and mean · exp(log-weight) = Σ c_i q_i are the
pooled counts. The clients of a round are those the engine draws: all of them, or a sample.

Deviations. Smoothing with u is left to where q̄ is used (`decoding.adaptation`): eq. 6 is linear, so it
comes to the same. Beyond the paper: `decay` keeps a fading memory of earlier rounds' counts, for when only
some clients are drawn in each. A round in which nobody had anything to report changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from antiphon.core import ALGORITHMS, Metrics, Pool, Report, ServerState, Task, Tensors, Update
from antiphon.privacy.release import Release

MARGINAL = "marginal"  # the kind of task, and the name of its tensor
PSEUDO_COUNT = "pseudo_count"


@dataclass(frozen=True)
class FmpState(ServerState):
    """mass: the pseudo-count that q̄ stands for; 0 while it is still the background.

    released: what the release remembers: noised counts and what was spent on them.
    """

    mass: float = 0.0
    released: Any = None


@ALGORITHMS.register
@dataclass(frozen=True)
class Fmp:
    """q̄ is the pooled unigram of the clients of the round.

    differences: clients send q_i − q̄ instead of q_i; the outcome is the same.
    decay: what the counts of the rounds before are multiplied with before new ones are added; 0: forgotten.
    """

    differences: bool = False
    decay: float = 0.0
    release: Release | None = None

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
        update = pool.reduce(self._task(before), cohort, by_pseudo_count)
        counts, num_clients = self._pooled(update, before), len(update.reports)
        if self.release is not None:  # of an empty round as well: that it was empty is nobody's business
            released = self.release(counts, state.round, state.released)
            state = replace(self._with(state, released.counts), released=released.memory)
            return state, {"mass": state.mass, "num_clients": num_clients, **released.metrics}
        if update.is_empty:
            return replace(state, round=state.round + 1), {"mass": state.mass, "num_clients": 0}
        counts = counts + self.decay * state.mass * before
        return self._with(state, counts), {"mass": float(counts.sum()), "num_clients": num_clients}

    def _pooled(self, update: Update, before: Tensor) -> Tensor:
        """Σ c_i q_i."""
        if update.is_empty:
            return torch.zeros_like(before)
        mean = update.mean[MARGINAL] + before if self.differences else update.mean[MARGINAL]
        return mean * math.exp(update.log_weight)

    def _task(self, before: Tensor) -> Task:
        tensors = {MARGINAL: before} if self.differences else {}  # clients that send all of q need nothing
        return Task(MARGINAL, tensors, {"differences": self.differences})

    def _with(self, state: FmpState, counts: Tensor) -> FmpState:
        mass = float(counts.sum())
        if mass <= 0:  # noise may have left nothing
            return replace(state, round=state.round + 1)
        return replace(state, round=state.round + 1, params={MARGINAL: counts / mass}, mass=mass)


def by_pseudo_count(report: Report) -> float:
    """log c_i, so that clients weigh by how much they said (eq. 6)."""
    return math.log(report.stats[PSEUDO_COUNT])


def background_params(probabilities: Tensor | Sequence[float]) -> Tensors:
    """What `Fmp.init` takes: the background u."""
    return {MARGINAL: torch.as_tensor(probabilities, dtype=torch.float64)}
