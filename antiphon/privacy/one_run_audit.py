"""A lower bound on ε from one run with canaries: what a mechanism leaks, measured.

T. Steinke, M. Nasr, M. Jagielski, "Privacy Auditing with One (1) Training Run", NeurIPS 2023,
arXiv:2305.08846: corollary 5.4, and the p-value of appendix D.

| paper | here                                                                                              |
| ----- | ------------------------------------------------------------------------------------------------- |
| m     | canaries; each is in the run with probability ½, independently                                    |
| r     | guesses: those with the largest scores are guessed in, those with the smallest out                |
| v     | guesses that are right                                                                            |
| β     | 1 − `confidence`: the probability that a private mechanism gets a bound above its ε               |

Deviations. Several numbers of guesses are tried, each at its share of β, because the best one is not known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

SHARES = (0.01, 0.03, 0.1, 0.3, 1.0)  # of the canaries that are guessed
LARGEST = 50.0  # no larger bound is looked for


def p_value(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """Return how probable this many right guesses are, at most, if the mechanism is (ε, δ)-private."""
    mass = _binomial(guesses, 1 / (1 + math.exp(-epsilon)))
    below = np.cumsum(mass[:right][::-1])  # P[right > Binomial ≥ right − i], for i from 1
    worst = float((below / np.arange(1, right + 1)).max()) if right else 0.0
    return min(1.0, float(mass[right:].sum()) + 2 * canaries * delta * worst)


def _binomial(number: int, probability: float) -> np.ndarray:
    """Return the probability of each number of successes. [number + 1]"""
    logs = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, number + 1)))))  # log k!
    counts = np.arange(number + 1)
    log_ways = logs[-1] - logs - logs[::-1]
    log_mass = log_ways + counts * math.log(probability) + (number - counts) * math.log1p(-probability)
    return np.exp(log_mass)


def epsilon_lower_bound(
    canaries: int, guesses: int, right: int, delta: float, confidence: float = 0.95
) -> float:
    """Return an ε that the mechanism exceeds with this confidence, at a δ.

    >>> round(epsilon_lower_bound(1000, 100, 75, 1e-4), 3)  # the example of appendix D
    0.673
    """
    low, high = 0.0, LARGEST
    if p_value(canaries, guesses, right, low, delta) >= 1 - confidence:
        return 0.0
    for _ in range(40):
        middle = (low + high) / 2
        is_refuted = p_value(canaries, guesses, right, middle, delta) < 1 - confidence
        low, high = (middle, high) if is_refuted else (low, middle)
    return low


def audited_epsilon(
    scores: np.ndarray,
    included: np.ndarray,
    delta: float,
    confidence: float = 0.95,
    shares: Sequence[float] = SHARES,
) -> float:
    """Return the largest lower bound on ε over several numbers of guesses.

    scores: large if a canary seems to be in the run. included: whether it is. Both [canaries].
    """
    order, number = np.argsort(-scores, kind="stable"), len(scores)
    bounds = []
    for share in shares:
        half = max(1, round(share * number / 2))
        right = int(included[order[:half]].sum() + (~included[order[-half:]]).sum())
        each = 1 - (1 - confidence) / len(shares)
        bounds.append(epsilon_lower_bound(number, 2 * half, right, delta, each))
    return max(bounds)
