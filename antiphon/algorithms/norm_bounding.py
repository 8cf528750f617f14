"""Norm bounding: an update that is longer than a bound counts as one of this length.

Z. Sun, P. Kairouz, A. T. Suresh, H. B. McMahan, "Can You Really Backdoor Federated Learning?", 2019,
arXiv:1911.07963: §4, "Norm thresholding of updates".

| paper                                  | here                                                      |
| -------------------------------------- | --------------------------------------------------------- |
| M                                      | `bound`                                                   |
| Σ_k Δw_k / max(1, ‖Δw_k‖₂ / M)         | a mean with weights α_k min(1, M / ‖Δ_k‖), made shorter   |

It limits how far one client can move the model in a round, not in which direction. The norm is the server's
own measurement. The sum is made while updates arrive, so memory does not grow with the cohort.

Deviations. The paper sums the updates of the cohort and scales the sum; here the weights of
`inner.weighting` apply. The paper's second part, noise on the sum, is `private`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from antiphon.algorithms.fedavg import FedAvg, hierarchical
from antiphon.core import ALGORITHMS, Metrics, Pool, Report, ServerState, Tensors


@ALGORITHMS.register
@dataclass(frozen=True)
class NormBounding:
    """Federated averaging of updates that are cut to a norm."""

    inner: FedAvg = hierarchical()
    bound: float = 1.0  # largest norm of an update; `norm` in the journal shows what is usual
    is_for_whole_models: ClassVar[bool] = True  # `antiphon prune` goes on with the inner algorithm
    unbounded: ClassVar[str] = (
        "its weights depend on norms, which noise does not hide; private has a clipping"
    )

    def __post_init__(self) -> None:
        if not 0 < self.bound < math.inf:
            raise ValueError(f"bound is a norm above 0, not {self.bound:g}")

    def check_run(self, run: Any) -> None:
        """Refuse secure aggregation, under which the server cannot measure a norm."""
        if run.secure_aggregation:
            raise ValueError(
                "norm_bounding measures single updates, which secure_aggregation hides: use private, whose "
                "clients clip their updates themselves"
            )

    def init(self, params: Tensors) -> ServerState:
        return self.inner.init(params)

    def round(self, state: ServerState, cohort: Sequence[str], pool: Pool) -> tuple[ServerState, Metrics]:
        update = pool.reduce(self.inner.task(state), cohort, self.log_weight)
        weights = [self.inner.weighting(report) for report in update.reports]
        top = max(weights, default=0.0)
        total = top + math.log(math.fsum(math.exp(weight - top) for weight in weights) or 1.0)
        scale = math.exp(update.log_weight - total)  # Σ α_k min(1, M / ‖Δ_k‖)
        delta = {name: scale * tensor for name, tensor in update.mean.items()}
        state, metrics = self.inner.step(state, delta)
        num_cut = sum(self._cut(report) < 0 for report in update.reports)
        return state, {**metrics, "num_cut": num_cut}

    def log_weight(self, report: Report) -> float:
        """Return log α_k + log min(1, M / ‖Δ_k‖)."""
        return self.inner.weighting(report) + self._cut(report)

    def _cut(self, report: Report) -> float:
        norm = report.stats["norm"]
        return math.log(self.bound / norm) if norm > self.bound else 0.0
