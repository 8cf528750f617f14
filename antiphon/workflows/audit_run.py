"""Audit a private run: compare what it claims with what an attacker finds of its canaries."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from antiphon.privacy.canary_scores import log_ratios, measure_shift, read_rounds
from antiphon.privacy.one_run_audit import audited_epsilon
from antiphon.privacy.update_accounting import GaussianCost, epsilon_of


@dataclass(frozen=True)
class EpsilonRange:
    """An estimate of ε, and the limits that it is above and below, each with the confidence of a test."""

    estimate: float
    low: float
    high: float


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
    cosine: EpsilonRange | None  # by the cosine test (Andrew et al. 2023); None with secret samples

    @property
    def is_refuted(self) -> bool:
        return max(self.at_least, self.cosine.low if self.cosine else 0.0) > self.claimed

    @property
    def verdict(self) -> str:
        if self.is_refuted:
            return "REFUTED: the run leaks more than it claims"
        return "not refuted: no test finds more than the claim (this is no proof)"

    def rows(self) -> list[tuple[str, float]]:
        """What each ε of the audit means, and its value."""
        each = f"{50 * (1 + self.confidence):g} %"
        rows = [("claimed", self.claimed), (f"at least, from one run ({each})", self.at_least)]
        if self.cosine is not None:
            rows += [
                ("estimated, by cosines", self.cosine.estimate),
                (f"at least, by cosines ({each})", self.cosine.low),
                (f"at most, by cosines ({each})", self.cosine.high),
            ]
        return rows


def audit(run: str | Path, *, confidence: float = 0.95) -> RunAudit:
    """Compare the ε that a private run claims with what an attacker finds of its canaries.

    Args:
        run: The folder of a run with `private.canaries`, such as out/fedavg. It need not be finished.
        confidence: A run that keeps its claim is not refuted with at least this probability.

    Example:
        found = antiphon.audit("out/fedavg")
        print(found.claimed, found.at_least, found.verdict)
    """
    if not 0.5 < confidence < 1:
        raise ValueError(f"confidence must be between 0.5 and 1, not {confidence}")
    rounds = read_rounds(Path(run))
    last = rounds[-1]
    seen = np.array([found.seen for found in rounds])
    turns, included = np.array([found.turns for found in rounds]), np.array(last.included)
    each = (1 + confidence) / 2
    ratios = log_ratios(seen, turns, last.coefficients, last.deviation, last.rate)
    at_least = audited_epsilon(ratios, included, last.delta, each)
    cosine = None
    if not last.rate:
        shift = measure_shift(seen, turns, included, last.coefficients, each)
        limits = (shift.estimate, shift.low, shift.high)
        cosine = EpsilonRange(*(epsilon_of((GaussianCost(max(0.0, one)),), last.delta) for one in limits))
    return RunAudit(last.epsilon, last.delta, len(rounds), len(included), confidence, at_least, cosine)
