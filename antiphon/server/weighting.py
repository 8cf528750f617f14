"""Weightings: from a client's report to its log-weight.

`Update.+` makes α_k = exp(l_k) / Σ_j exp(l_j) of log-weights l_k, in a stream and without overflow.
Weightings read these keys of reports: "num_utterances", "loss" (mean training loss per token, in nats),
"norm" (L2 norm of the client's delta).

>>> from antiphon.core import Report
>>> ByExamples()(Report("speaker/84", {"num_utterances": 1}))
0.0
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Protocol

from antiphon.core import Report, Unusable
from antiphon.registry import Registry
from antiphon.server.run_context import RunContext

# 0 compared with any real weight, but finite: clients that all have it still have a mean.
NEGLIGIBLE = -1e30


class Weighting(Protocol):
    """A frozen dataclass that turns a client's report into a log-weight, or raises `Unusable`."""

    def __call__(self, report: Report) -> float: ...


WEIGHTINGS = Registry("antiphon.weightings", kind=Weighting, default="uniform")


@WEIGHTINGS.register
@dataclass(frozen=True)
class Uniform:
    """Equal weights: α_k = 1/N."""

    def __call__(self, report: Report) -> float:
        return 0.0


@WEIGHTINGS.register
@dataclass(frozen=True)
class ByExamples:
    """FedAvg (McMahan et al. 2017): α_k = n_k / n, with n_k the client's utterances.

    A server cannot count the utterances of its clients. `max_utterances` limits what a client gains from a
    number that is too large.
    """

    max_utterances: int = 0  # a larger number counts as this; 0: the largest client that the server knows of

    def __post_init__(self) -> None:
        if self.max_utterances < 0:
            raise ValueError(f"max_utterances must not be negative, not {self.max_utterances}")

    def prepare(self, context: RunContext) -> ByExamples:
        is_known = context.largest_client and not self.max_utterances
        return replace(self, max_utterances=context.largest_client) if is_known else self

    def __call__(self, report: Report) -> float:
        num_utterances = min(_stat(report, "num_utterances"), self.max_utterances or math.inf)
        if num_utterances <= 0:
            raise Unusable(f"client {report.client!r} trained on {num_utterances:g} utterances")
        return math.log(num_utterances)


@WEIGHTINGS.register
@dataclass(frozen=True)
class SoftmaxLoss:
    """DGA's softmax flavour (Dimitriadis et al. 2021, arXiv:2106.07578, eq. 6).

    α_k = exp(−β L_k) / Σ_j exp(−β L_j): clients that the model fits badly get smaller weights. `beta` is the
    paper's (inverse) temperature: 0 is uniform. The default does no harm in docs/table1.md. L_k is the loss
    per *token*, so that long sentences do not reduce a weight. The numerator in FTL (2020) §3.3 lacks the
    minus sign, which would favour the worst clients.

    A server cannot measure the losses of its clients. `min_loss` limits what a client gains from a loss that
    is too small.
    """

    beta: float = 0.3
    min_loss: float = 0.0  # a smaller loss counts as this

    def __call__(self, report: Report) -> float:
        return -self.beta * max(_stat(report, "loss"), self.min_loss)


@WEIGHTINGS.register
@dataclass(frozen=True)
class ByNorm:
    """Weighting by update norm, from the variance argument of DGA (2021), Appendix A.

    α_k ∝ 1 / ‖Δ_k‖^power. The appendix follows Alain et al. (2016): the estimate of a mean gradient has the
    least variance if samples are drawn with probability q ∝ ‖g‖ and weighted by 1/q. So weights are ∝ 1/‖Δ_k‖
    (power 1, the default): all clients have the same influence, whatever the size of their updates. If ‖Δ_k‖²
    is the variance of Δ_k, the mean of least variance has weights ∝ 1/‖Δ_k‖² (power 2). The appendix then
    assumes that ‖Δ_k‖ grows with the loss, which leads to `SoftmaxLoss`.

    A client that did not move gets a negligible weight, not an infinite one.
    """

    power: float = 1.0

    def __call__(self, report: Report) -> float:
        norm = _stat(report, "norm")
        if norm < 0:
            raise Unusable(f"client {report.client!r} reports a negative norm: {norm:g}")
        return -self.power * math.log(norm) if norm > 0 else NEGLIGIBLE


def _stat(report: Report, key: str) -> float:
    if key not in report.stats:
        raise Unusable(
            f"client {report.client!r} did not report {key!r}, which its weight depends on;"
            f" it reported: {', '.join(sorted(report.stats)) or 'nothing'}"
        )
    value = report.stats[key]
    if not math.isfinite(value):
        raise Unusable(f"client {report.client!r} reported {key!r} = {value}: no weight follows from it")
    return value
