"""The geometric median of the clients' updates instead of their mean: a few bad ones cannot move it far.

Pillutla, Kakade and Harchaoui, "Robust Aggregation for Federated Learning" (RFA), IEEE Transactions on
Signal Processing 2022, arXiv:1912.13445: Algorithm 2, the smoothed Weiszfeld algorithm.

| symbol                        | here                                                          |
| ----------------------------- | ------------------------------------------------------------- |
| α_k                           | weights of `inner.weighting`                                  |
| v ↦ Σ_k α_k ‖v − Δ_k‖         | what the median minimises (their eq. 3, on updates)           |
| ν                             | smoothing: the least distance a client is taken to have       |
| β_k = α_k / max(ν, ‖v − Δ_k‖) | log-weights of the next mean (their eq. 6)                    |
| R                             | iterations                                                    |

As long as the bad clients hold less than half of the weight, no values of theirs take the median
further than a bound set by the good ones; the mean is taken anywhere by a single client. The mean of
updates is what each iteration needs, and distances to it, which are measured where the updates are
(`Collected.distances`): no client's update has to leave its process.

Deviations. The median is of Δ_k, not of w_k: the same, as all clients start from w. It then goes through
the server's optimiser like any aggregate. Each iteration leaves about f / (1 − f) of the error when bad
clients hold the share f of the weight, so the first v matters: not the mean, which a client with a huge
update takes anywhere, but the mean of updates cut to their median norm (β_k with Δ = 0 for v and the
median distance for ν). Three iterations are the paper's; more cost little where updates do not travel.

Not here: the coordinate-wise trimmed mean (Yin et al. 2018) needs every client's value of every entry in
one place, so each update would have to travel to every process. This median asks for distances only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import ClassVar

import torch

from antiphon.algorithms.fedavg import FedAvg, hierarchical
from antiphon.core import ALGORITHMS, Collected, Metrics, Pool, ServerState, Tensors, Update


@ALGORITHMS.register
@dataclass(frozen=True)
class GeometricMedian:
    """Federated averaging whose aggregate is the smoothed geometric median of the clients' updates."""

    inner: FedAvg = hierarchical()
    iterations: int = 8
    smoothing: float = 1e-6
    is_for_whole_models: ClassVar[bool] = True  # `antiphon prune` goes on with the inner algorithm

    def __post_init__(self) -> None:
        if self.iterations < 1:
            raise ValueError(f"iterations must be at least 1, not {self.iterations}")
        if not self.smoothing > 0:
            raise ValueError(f"smoothing must be above 0, not {self.smoothing}")

    def init(self, params: Tensors) -> ServerState:
        return self.inner.init(params)

    def round(self, state: ServerState, cohort: Sequence[str], pool: Pool) -> tuple[ServerState, Metrics]:
        task = self.inner.task(state)
        held = pool.collect(task, cohort)
        log_weights = [self.inner.weighting(report) for report in held.reports]
        start = {name: torch.zeros_like(tensor) for name, tensor in task.tensors.items()}
        centre = geometric_median(held, log_weights, start, self.iterations, self.smoothing)
        return self.inner.step(state, centre.mean)


def geometric_median(
    held: Collected, log_weights: Sequence[float], start: Tensors, iterations: int, smoothing: float
) -> Update:
    """The point with the least weighted sum of distances to the updates, as a weighted mean of them."""
    distances = held.distances(start)
    usual = max(smoothing, median(distances or [0.0]))
    point = held.combine(_nearer(log_weights, distances, usual))
    for _ in range(iterations):
        point = held.combine(_nearer(log_weights, held.distances(point.mean), smoothing))
    return point


def _nearer(log_weights: Sequence[float], distances: Sequence[float], least: float) -> list[float]:
    """Log-weights over distances, none of which counts as less than `least`."""
    return [w - math.log(max(least, d)) for w, d in zip(log_weights, distances, strict=True)]
