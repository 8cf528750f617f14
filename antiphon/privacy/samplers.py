"""Random integers for privacy: exact samplers over uniform bits, and the sources of these bits.

Canonne, Kamath, Steinke, "The Discrete Gaussian for Differential Privacy", NeurIPS 2020, algorithms 1-3.

Adding a floating-point Laplace or Gaussian variable to a count is not private: the set of possible results
depends on the count, so a single result can reveal it (Mironov, "On significance of the least significant
bits for differential privacy", CCS 2012). Here all numbers are integers: counts (steps of a grid, see
`mechanisms`), noise, which has exactly the stated probability, and the comparisons that accept or reject a
proposal. The noise of all words of a vocabulary is drawn at once.

| symbol | here                                                              |
| ------ | ----------------------------------------------------------------- |
| t      | scale of the discrete Laplace: P(x) ∝ exp(−|x|/t)                 |
| σ      | scale of the discrete Gaussian: P(x) ∝ exp(−x²/2σ²)               |
| γ      | numerators / denominator                                          |

Deviations. Scales are integers: a scale is rounded up to a whole number of steps, which never weakens
privacy. The Gaussian's proposal has scale σ instead of ⌊σ⌋+1: the proof allows any scale, and this one keeps
the fractions small. The time of a draw is not constant: it depends on the drawn values.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from antiphon.seeding import derive

Words = Callable[[int], np.ndarray]  # a number -> that many independent uniform 64-bit words
LARGEST_SCALE = 2**24  # with a larger scale the squares below could overflow 64 bits


@dataclass(frozen=True)
class Secure:
    """Bits of the operating system's cryptographic generator, different each time: for production."""

    def words(self, round: int) -> Words:
        return lambda number: np.frombuffer(bytearray(os.urandom(8 * number)), dtype=np.uint64)


@dataclass(frozen=True)
class Seeded:
    """Bits that depend on seed and round: for experiments. With the seed anyone can subtract the noise."""

    seed: int = 0

    def words(self, round: int) -> Words:
        generator = np.random.default_rng(derive(self.seed, "privacy", round))
        return lambda number: generator.integers(0, 2**64, number, dtype=np.uint64)


Randomness = Secure | Seeded  # a source of uniform bits for the noise of a round


def uniform_below(words: Words, bound: int, number: int) -> np.ndarray:
    """Draw uniform integers of [0, bound). Words above the last whole multiple of `bound` are drawn again."""
    last = np.uint64(2**64 // bound * bound - 1)
    drawn = words(number)
    while (over := drawn > last).any():
        drawn[over] = words(int(over.sum()))
    return (drawn % np.uint64(bound)).astype(np.int64)


def bernoulli_exp(words: Words, numerators: np.ndarray, denominator: int) -> np.ndarray:
    """Draw booleans, each true with probability exp(−numerator/denominator), for numerators of at least 0."""
    success = np.ones(len(numerators), dtype=bool)
    wholes, rests = np.divmod(numerators, denominator)
    turn = 0
    while (active := np.flatnonzero(success & (wholes > turn))).size:  # exp(−1) for each whole
        success[active] = _bernoulli_exp_fraction(words, np.ones(active.size, dtype=np.int64), 1)
        turn += 1
    active = np.flatnonzero(success)
    success[active] = _bernoulli_exp_fraction(words, rests[active], denominator)
    return success


def _bernoulli_exp_fraction(words: Words, numerators: np.ndarray, denominator: int) -> np.ndarray:
    """Do the same for γ ≤ 1: is the first k at which a draw of probability γ/k fails odd (algorithm 1)?"""
    odd = np.zeros(len(numerators), dtype=bool)
    active, k = np.arange(len(numerators)), 1
    while active.size:
        passed = uniform_below(words, denominator * k, active.size) < numerators[active]
        odd[active[~passed]] = k % 2 == 1
        active, k = active[passed], k + 1
    return odd


def discrete_laplace(words: Words, scale: int, number: int) -> np.ndarray:
    """Draw independent integers with P(x) ∝ exp(−|x|/scale) (algorithm 2). [number]"""
    _check(scale)

    def propose(size: int) -> tuple[np.ndarray, np.ndarray]:
        low = uniform_below(words, scale, size)
        negative = uniform_below(words, 2, size) == 1
        accepted = bernoulli_exp(words, low, scale)
        sizes = low + scale * _geometric(words, size)
        accepted &= ~(negative & (sizes == 0))  # otherwise zero would be twice as probable as it should be
        return np.where(negative, -sizes, sizes), accepted

    return _first_accepted(propose, number)


def discrete_gaussian(words: Words, scale: int, number: int) -> np.ndarray:
    """Draw independent integers with P(x) ∝ exp(−x²/2·scale²) (algorithm 3). [number]"""
    _check(scale)

    def propose(size: int) -> tuple[np.ndarray, np.ndarray]:
        proposed = discrete_laplace(words, scale, size)
        return proposed, bernoulli_exp(words, (np.abs(proposed) - scale) ** 2, 2 * scale**2)

    return _first_accepted(propose, number)


def _first_accepted(propose: Callable[[int], tuple[np.ndarray, np.ndarray]], number: int) -> np.ndarray:
    """Return the first `number` accepted values of independent proposals; about half are accepted."""
    values = [np.zeros(0, dtype=np.int64)]
    while (missing := number - sum(map(len, values))) > 0:
        proposed, accepted = propose(2 * missing + 16)
        values.append(proposed[accepted][:missing])
    return np.concatenate(values)


def _geometric(words: Words, number: int) -> np.ndarray:
    """Count, `number` times, the successes in a row of draws of probability exp(−1)."""
    successes = np.zeros(number, dtype=np.int64)
    active = np.arange(number)
    while active.size:
        active = active[_bernoulli_exp_fraction(words, np.ones(active.size, dtype=np.int64), 1)]
        successes[active] += 1
    return successes


def _check(scale: int) -> None:
    if not 1 <= scale <= LARGEST_SCALE:
        raise ValueError(
            f"noise must have 1 to {LARGEST_SCALE} steps, not {scale}: choose a coarser or finer step"
        )
