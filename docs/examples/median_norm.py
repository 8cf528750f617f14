"""FedAvg whose server never takes a step much longer than it is used to.

Now and then a round goes wrong: a few clients with broken microphones, a cohort of the hardest
speakers, a client learning rate at its limit. Its aggregate Δ is then far longer than those before it,
and one such step can undo many good ones. Here the Δ of a round is clipped to `limit` times the median
norm of the last `window` rounds' Δ (before clipping, so that the median can follow a real change).
AutoClip (Seetharaman et al. 2020, arXiv:2007.14469) does the same to gradients.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from antiphon.core import Metrics, Pool, ServerState, Task, Tensors
from antiphon.server.optimizers import ServerOptimizer, Sgd
from antiphon.server.weighting import ByExamples, Weighting
from antiphon.tasks.local_training import LocalTraining


@dataclass(frozen=True)
class NormState(ServerState):
    """What a server knows between two rounds, and the norms of its last aggregates."""

    norms: tuple[float, ...] = ()


@dataclass(frozen=True)
class MedianNorm:
    """FedAvg with each round's aggregate clipped to a multiple of the running median norm."""

    local: LocalTraining = LocalTraining()
    weighting: Weighting = ByExamples()
    server: ServerOptimizer = Sgd()
    limit: float = 0.5  # times the median
    window: int = 15  # rounds the median is taken over

    def init(self, params: Tensors) -> NormState:
        return NormState(round=0, params=params)

    def round(self, state: NormState, cohort: Sequence[str], pool: Pool) -> tuple[NormState, Metrics]:
        task = Task("train", state.params, self.local.task_config(state))
        delta = pool.reduce(task, cohort, self.weighting).mean  # Σ α_k Δ_k over the clients that answered
        norm = math.sqrt(sum(float(d.double().square().sum()) for d in delta.values()))
        norms = (*state.norms, norm)[-self.window :]
        scale = min(1.0, self.limit * median(norms) / norm) if norm > 0 else 1.0
        clipped = {name: scale * d for name, d in delta.items()}
        params, opt = self.server(state.params, clipped, state.opt)
        metrics = {"client_lr": self.local.lr, "server_lr": self.server.lr, "norm": norm, "scale": scale}
        return NormState(state.round + 1, params, opt, state.seed, norms), metrics
