"""Random integers for privacy: exact samplers over uniform bits, and where the bits come from.

Canonne, Kamath, Steinke, "The Discrete Gaussian for Differential Privacy", NeurIPS 2020, algorithms 1-3.

Adding a floating-point Laplace or Gaussian variable to a count is not private: which doubles can come out
depends on the count, so a single output can give it away (Mironov, "On significance of the least
significant bits for differential privacy", CCS 2012). Here nothing is a float: counts are integers (steps of
a grid, see `mechanisms`), noise is an integer with exactly the stated probability, and every acceptance is
decided by comparing integers. All words of a vocabulary are drawn at once.

| symbol | here                                                              |
| ------ | ----------------------------------------------------------------- |
| t      | scale of the discrete Laplace: P(x) ∝ exp(−|x|/t)                 |
| σ      | scale of the discrete Gaussian: P(x) ∝ exp(−x²/2σ²)               |
| γ      | numerators / denominator                                          |

Deviations. Scales are integers: a scale is rounded up to a whole number of steps, which never weakens
privacy. The Gaussian's proposal has scale σ instead of ⌊σ⌋+1: any scale will do for the proof, and this one
keeps the fractions small. Not promised: constant time. How long a draw takes depends on what is drawn.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from antiphon.seeding import derive

Words = Callable[[int], np.ndarray]  # how many -> that many independent uniform 64-bit words
LARGEST_SCALE = 2**24  # beyond it the squares below could overflow 64 bits


class Randomness(Protocol):
    """A source of uniform bits for the noise of a round."""

    def words(self, round: int) -> Words: ...


@dataclass(frozen=True)
class Secure:
    """Bits of the operating system's cryptographic generator: for production. Never the same twice."""

    def words(self, round: int) -> Words:
        return lambda number: np.frombuffer(bytearray(os.urandom(8 * number)), dtype=np.uint64)


@dataclass(frozen=True)
class Seeded:
    """Bits decided by seed and round: for experiments. Who knows the seed can subtract the noise."""

    seed: int = 0

    def words(self, round: int) -> Words:
        generator = np.random.default_rng(derive(self.seed, "privacy", round))
        return lambda number: generator.integers(0, 2**64, number, dtype=np.uint64)


def uniform_below(words: Words, bound: int, number: int) -> np.ndarray:
    """Integers of [0, bound), all equally probable: words in the last, incomplete stretch are drawn again."""
    last = np.uint64(2**64 // bound * bound - 1)
    drawn = words(number)
    while (over := drawn > last).any():
        drawn[over] = words(int(over.sum()))
    return (drawn % np.uint64(bound)).astype(np.int64)


def bernoulli_exp(words: Words, numerators: np.ndarray, denominator: int) -> np.ndarray:
    """True with probability exp(−numerator/denominator) each, for numerators of at least 0."""
    alive = np.ones(len(numerators), dtype=bool)
    wholes, rests = np.divmod(numerators, denominator)
    turn = 0
    while (going := np.flatnonzero(alive & (wholes > turn))).size:  # exp(−1) for each whole
        alive[going] = _bernoulli_exp_fraction(words, np.ones(going.size, dtype=np.int64), 1)
        turn += 1
    left = np.flatnonzero(alive)
    alive[left] = _bernoulli_exp_fraction(words, rests[left], denominator)
    return alive


def _bernoulli_exp_fraction(words: Words, numerators: np.ndarray, denominator: int) -> np.ndarray:
    """The same for γ ≤ 1: the first k at which a draw of probability γ/k fails is odd (algorithm 1)."""
    odd = np.zeros(len(numerators), dtype=bool)
    going, k = np.arange(len(numerators)), 1
    while going.size:
        passed = uniform_below(words, denominator * k, going.size) < numerators[going]
        odd[going[~passed]] = k % 2 == 1
        going, k = going[passed], k + 1
    return odd


def discrete_laplace(words: Words, scale: int, number: int) -> np.ndarray:
    """Integers with P(x) ∝ exp(−|x|/scale), independent (algorithm 2). [number]"""
    _check(scale)

    def propose(size: int) -> tuple[np.ndarray, np.ndarray]:
        low = uniform_below(words, scale, size)
        negative = uniform_below(words, 2, size) == 1
        kept = bernoulli_exp(words, low, scale)
        sizes = low + scale * _geometric(words, size)
        kept &= ~(negative & (sizes == 0))  # or zero would be twice as probable as it should be
        return np.where(negative, -sizes, sizes), kept

    return _first_kept(propose, number)


def discrete_gaussian(words: Words, scale: int, number: int) -> np.ndarray:
    """Integers with P(x) ∝ exp(−x²/2·scale²), independent (algorithm 3). [number]"""
    _check(scale)

    def propose(size: int) -> tuple[np.ndarray, np.ndarray]:
        proposed = discrete_laplace(words, scale, size)
        return proposed, bernoulli_exp(words, (np.abs(proposed) - scale) ** 2, 2 * scale**2)

    return _first_kept(propose, number)


def _first_kept(propose: Callable[[int], tuple[np.ndarray, np.ndarray]], number: int) -> np.ndarray:
    """The first `number` of independent proposals that are kept: about half of them are."""
    found: list[np.ndarray] = []
    missing = number
    while missing > 0:
        proposed, kept = propose(2 * missing + 16)
        found.append(proposed[kept][:missing])
        missing -= len(found[-1])
    return np.concatenate([np.zeros(0, dtype=np.int64), *found])


def _geometric(words: Words, number: int) -> np.ndarray:
    """How often in a row a draw of probability exp(−1) succeeds."""
    successes = np.zeros(number, dtype=np.int64)
    going = np.arange(number)
    while going.size:
        passed = _bernoulli_exp_fraction(words, np.ones(going.size, dtype=np.int64), 1)
        successes[going[passed]] += 1
        going = going[passed]
    return successes


def _check(scale: int) -> None:
    if not 1 <= scale <= LARGEST_SCALE:
        raise ValueError(
            f"noise of {scale} steps: it must be 1 to {LARGEST_SCALE} steps; choose a coarser or finer step"
        )
