"""The verdict on a private run: what its canaries show, beside the ε that it claims.

Two tests (`one_run_audit`, `canary_scores`). The bound from one run assumes nothing, and the attacker does
not know secret samples. The cosine test takes noise to be normal. With secret samples, its auditor has the
key and knows the turns. The test measures the noise of one turn and the rate of turns, and computes ε from
these two as the run does from its settings.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from antiphon.privacy.canary_scores import Limits, log_ratios, measure_rate, measure_shift
from antiphon.privacy.one_run_audit import audited_epsilon
from antiphon.privacy.update_accounting import Cost, GaussianCost, SampledCost, epsilon_of


@dataclass(frozen=True)
class SeenCanaries:
    """What the releases of a run show of its canaries, and what an auditor knows of its noise."""

    seen: np.ndarray  # how much of a canary is in a released sum: 1 if it took part, and noise. [rounds, K]
    turns: np.ndarray  # whether it is its turn, in the run or not. [rounds, K]
    included: np.ndarray  # whether it is in the run. [K]
    coefficients: tuple[float, ...]  # of C
    deviation: float  # of the independent noise, in bounds
    rate: float  # of Poisson sampling; 0: turns are known


@dataclass(frozen=True)
class RunAudit:
    """What a run claims, and what its canaries show.

    Each of the two tests has the confidence (1 + `confidence`) / 2, so a run that keeps its claim is refuted
    with a probability of at most 1 − `confidence`.
    """

    claimed: float  # ε after the last round
    delta: float
    rounds: int
    canaries: int
    confidence: float
    at_least: float  # by one run (Steinke et al. 2023)
    cosine: Limits  # ε by the cosine test (Andrew et al. 2023)

    @property
    def lower_bound(self) -> float:
        """What ε is at least, by the better one of the two tests."""
        return max(self.at_least, self.cosine.low)

    @property
    def is_refuted(self) -> bool:
        return self.lower_bound > self.claimed

    @property
    def verdict(self) -> str:
        if self.is_refuted:
            return "REFUTED: the run leaks more than it claims"
        return "not refuted: no test finds more than the claim (this is no proof)"

    def rows(self) -> list[tuple[str, float]]:
        """What each ε of the audit means, and its value."""
        each = f"{50 * (1 + self.confidence):g} %"
        return [
            ("claimed", self.claimed),
            (f"at least, from one run ({each})", self.at_least),
            ("estimated, by cosines", self.cosine.estimate),
            (f"at least, by cosines ({each})", self.cosine.low),
            (f"at most, by cosines ({each})", self.cosine.high),
        ]


def audit_canaries(canaries: SeenCanaries, claimed: float, delta: float, confidence: float) -> RunAudit:
    """Compare a claim with what canaries show."""
    if not 0.5 < confidence < 1:
        raise ValueError(f"confidence must be between 0.5 and 1, not {confidence}")
    rounds, number = canaries.seen.shape
    each = (1 + confidence) / 2
    ratios = log_ratios(
        canaries.seen, canaries.turns, canaries.coefficients, canaries.deviation, canaries.rate
    )
    at_least = audited_epsilon(ratios, canaries.included, delta, each)
    costs = _sampled_costs(canaries, each) if canaries.rate else _shifted_costs(canaries, each)
    cosine = Limits(*(epsilon_of((cost,), delta) for cost in costs))
    return RunAudit(claimed, delta, rounds, number, confidence, at_least, cosine)


def _shifted_costs(canaries: SeenCanaries, confidence: float) -> list[Cost]:
    """Return the cost by the estimate of the cosine test, and by its limits."""
    found = measure_shift(canaries.seen, canaries.turns, canaries.included, canaries.coefficients, confidence)
    return [GaussianCost(max(0.0, shift)) for shift in (found.estimate, found.low, found.high)]


def _sampled_costs(canaries: SeenCanaries, confidence: float) -> list[Cost]:
    """Return the same costs with secret samples."""
    both = (1 + confidence) / 2  # that of each, so that shift and rate together have the confidence
    coefficients, rounds = canaries.coefficients, len(canaries.seen)
    shift = measure_shift(canaries.seen, canaries.turns, canaries.included, coefficients, both, length=1.0)
    rate = measure_rate(canaries.turns, both)
    pairs = [(shift.estimate, rate.estimate), (shift.low, rate.low), (shift.high, rate.high)]
    return [
        SampledCost(share, 1 / moved, rounds) if min(moved, share) > 0 else GaussianCost(0.0)
        for moved, share in pairs
    ]
