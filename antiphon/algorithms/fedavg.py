"""Federated averaging, and the algorithms that are federated averaging with other settings.

FedSGD, FedAvg    McMahan et al., "Communication-Efficient Learning of Deep Networks from
                  Decentralized Data", AISTATS 2017.
hierarchical      Dimitriadis et al., "A Federated Approach in Training Acoustic Models" (the FTL
                  platform), Interspeech 2020, §3; with adaptive servers, Reddi et al., ICLR 2021.
BMUF              Chen and Huo, "Scalable training of deep learning machines by incremental block
                  training with ... blockwise model-update filtering", ICASSP 2016.
DGA softmax       Dimitriadis et al., "Dynamic Gradient Aggregation for Federated Domain
                  Adaptation", 2021, §3, eq. 6.
subspace          the same, §4: only some parameters are trained, and only those travel.

| symbol            | here                                                          |
| ----------------- | ------------------------------------------------------------- |
| w                 | state.params                                                  |
| Δ_k = w − w_k     | an update's mean: old minus new                               |
| α_k               | softmax of the log-weights that `weighting` gives to reports  |
| η (client, server)| local.lr · client_schedule, server.lr · server_schedule       |

Deviations. FTL eq. 7 and 8 together move the model away from its clients: here Δ is old − new and the server
subtracts it. The softmax numerator in FTL §3.3 lacks a minus sign: see `SoftmaxLoss`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TypeVar

from antiphon.core import ALGORITHMS, Metrics, Pool, ServerState, Task, Tensors
from antiphon.server.clipping import Clipping, Unclipped
from antiphon.server.optimizers import Adam, ServerOptimizer, Sgd
from antiphon.server.schedules import Constant, Schedule
from antiphon.server.weighting import ByExamples, SoftmaxLoss, Uniform, Weighting
from antiphon.tasks.local_training import LocalTraining

AnyServerState = TypeVar("AnyServerState", bound=ServerState)


@ALGORITHMS.register
@dataclass(frozen=True)
class FedAvg:
    """Clients train from w; the server's optimiser uses the weighted mean of their Δ as a gradient."""

    local: LocalTraining = LocalTraining()
    client_schedule: Schedule = Constant()
    weighting: Weighting = ByExamples()
    server: ServerOptimizer = Sgd()
    server_schedule: Schedule = Constant()
    clipping: Clipping = Unclipped()  # of the aggregate, layer by layer
    trainable: tuple[str, ...] = ("*",)  # patterns of parameter names; the others stay and never travel

    def init(self, params: Tensors) -> ServerState:
        select(params, self.trainable)
        return ServerState(round=0, params=params)

    def round(self, state: ServerState, cohort: Sequence[str], pool: Pool) -> tuple[ServerState, Metrics]:
        delta = pool.reduce(self.task(state), cohort, self.weighting).mean  # DGA eq. 2–3
        return self.step(state, delta)

    def task(self, state: ServerState) -> Task:
        """Return the task of a round."""
        scale = self.client_schedule(state.round)
        return Task("train", select(state.params, self.trainable), self.local.task_config(state, scale))

    def step(self, state: AnyServerState, delta: Tensors) -> tuple[AnyServerState, Metrics]:
        """Return the state after a round with the aggregate `delta` (DGA eq. 4), and metrics."""
        scale = self.server_schedule(state.round)
        clipped = delta if self.clipping == Unclipped() else self.clipping(state.params, delta)
        params, opt = self.server(state.params, clipped, state.opt, scale)
        metrics = {
            "client_lr": self.local.lr * self.client_schedule(state.round),
            "server_lr": self.server.lr * scale,
        }
        return replace(state, round=state.round + 1, params=params, opt=opt), metrics


def select(params: Tensors, patterns: Sequence[str], setting: str = "trainable") -> Tensors:
    """Return the parameters whose names match a pattern such as `encoder.*`; every pattern must match one."""
    for pattern in patterns:
        if not any(matches(name, [pattern]) for name in params):
            tops = sorted({name.split(".")[0] for name in params})
            raise ValueError(
                f"{setting}: no parameter matches {pattern!r}; names begin with {', '.join(tops)}"
            )
    return {name: p for name, p in params.items() if matches(name, patterns)}


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Return whether a name matches one of some patterns such as `encoder.*`."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def fedsgd(server: ServerOptimizer = Sgd(lr=0.1)) -> FedAvg:
    """One step on all data of a client: Δ_k is its gradient, and the server takes a step of central SGD."""
    return FedAvg(LocalTraining(lr=1.0, steps=1, batch_seconds=0.0, clip_norm=0.0), server=server)


def fedavg(local: LocalTraining = LocalTraining()) -> FedAvg:
    """Server SGD with learning rate 1; clients weighted by their numbers of utterances."""
    return FedAvg(local)


def hierarchical(local: LocalTraining = LocalTraining(), server: ServerOptimizer = Adam()) -> FedAvg:
    """SGD on the clients, another optimiser on the server, equal weights."""
    return FedAvg(local, weighting=Uniform(), server=server)


def bmuf(local: LocalTraining = LocalTraining(), block_momentum: float = 0.9) -> FedAvg:
    """Block momentum on the server, for fixed i.i.d. parts of the data, all of them in every round."""
    return FedAvg(local, weighting=Uniform(), server=Sgd(lr=1.0, momentum=block_momentum))


def dga(
    local: LocalTraining = LocalTraining(), beta: float = 0.3, server: ServerOptimizer = Adam()
) -> FedAvg:
    """Hierarchical optimisation with softmax weights: a client with a high loss counts for less."""
    return FedAvg(local, weighting=SoftmaxLoss(beta), server=server)
