"""The geometric median of the clients' updates instead of their mean: a few bad updates cannot move it far.

Pillutla, Kakade and Harchaoui, "Robust Aggregation for Federated Learning" (RFA), IEEE Transactions on
Signal Processing 2022, arXiv:1912.13445: Algorithm 2, the smoothed Weiszfeld algorithm.

| symbol                        | here                                                          |
| ----------------------------- | ------------------------------------------------------------- |
| α_k                           | weights of `inner.weighting`                                  |
| v ↦ Σ_k α_k ‖v − Δ_k‖         | the objective of the median (their eq. 3, on updates)         |
| ν                             | smoothing: smaller distances count as this                    |
| β_k = α_k / max(ν, ‖v − Δ_k‖) | log-weights of the next mean (their eq. 6)                    |
| R                             | iterations                                                    |

If bad clients have less than half of the weight, they cannot move the median further than a bound set by the
good ones; a single client can move the mean anywhere. Each iteration needs the mean of the updates and
distances to it, which are measured where the updates are (`Collected.distances`): no update has to leave its
process.

Deviations. The median is that of Δ_k, not of w_k, which is the same, as all clients start from w. The
server's optimiser takes it like any aggregate. Each iteration leaves about f / (1 − f) of the error if bad
clients have the share f of the weight, so the first v matters. It is not the mean, which one huge update can
move anywhere, but the mean of updates cut to their median norm (β_k with v = 0 and the median distance for
ν). The paper has three iterations; more cost little where updates do not travel.
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
    collects: ClassVar[bool] = True  # it needs single updates, which secure aggregation hides
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
        collected = pool.collect(task, cohort)
        log_weights = [self.inner.weighting(report) for report in collected.reports]
        start = {name: torch.zeros_like(tensor) for name, tensor in task.tensors.items()}
        centre = geometric_median(collected, log_weights, start, self.iterations, self.smoothing)
        return self.inner.step(state, centre.mean)


def geometric_median(
    collected: Collected, log_weights: Sequence[float], start: Tensors, iterations: int, smoothing: float
) -> Update:
    """Return the point with the least weighted sum of distances to the updates."""
    distances = collected.distances(start)
    usual = max(smoothing, median(distances or [0.0]))
    point = collected.combine(_reweighted(log_weights, distances, usual))
    for _ in range(iterations):
        point = collected.combine(_reweighted(log_weights, collected.distances(point.mean), smoothing))
    return point


def _reweighted(log_weights: Sequence[float], distances: Sequence[float], least: float) -> list[float]:
    """Return the logarithms of weights over distances; a distance below `least` counts as `least`."""
    return [w - math.log(max(least, d)) for w, d in zip(log_weights, distances, strict=True)]
