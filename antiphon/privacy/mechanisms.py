"""Noise on counts, matched to how far one unit of data can move them; caps that bound how far that is.

Liu, Peng, "Federated Marginal Personalization for ASR Rescoring", 2020, §4, eq. 8-9, and what its future work
leaves open. Three units may be protected. Sensitivity is the distance between the pooled counts of
neighbours, with one unit added or removed:

| unit                     | sensitivity                                      | who sees to it           |
| ------------------------ | ------------------------------------------------ | ------------------------ |
| one word of an utterance | 1: the paper's claim, for a word said once in it | nobody: an assumption    |
| one utterance            | its words · Σ of the rank weights (l1)           | the longest utterance    |
| one client               | the cap: l1 for Laplace, l2 for Gaussian noise   | client: `CapL1`, `CapL2` |

A cap holds whatever was said, and however often. Utterance level holds only where counts come from first-pass
lists: lists re-ranked by a model that has learnt from earlier utterances carry those into later counts. And
only without a cap: scaling moves all words of a client when one is added.

All counts are multiples of `step`, a power of two, so that sums of them are exact and noise can be drawn over
integers (`samplers`). Clients round towards zero after capping, which never lengthens a vector. Rounding on
the server instead could add one step for every word of the vocabulary to the sensitivity.

Deviation. The paper says larger ε is stronger protection; it is weaker.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from antiphon.privacy.accounting import Budget, GaussianLoss, LaplaceLoss, Loss, Renyi
from antiphon.privacy.samplers import Words, discrete_gaussian, discrete_laplace

STEP = 2.0**-6  # of the grid of counts, in words
OFF_GRID = 0.25  # of a step: more than sums in floating point can be off, less than what rounding would hide


def utterance_sensitivity(longest: int, weights: Sequence[float], step: float = STEP) -> float:
    """The most that one utterance adds to the counts of its client (l1, so l2 as well), rounding included.

    longest: words of a hypothesis; weights: of the hypotheses of a list, by rank (eq. 3). A sum that is
    rounded moves by at most what is added to it, rounded up.

    >>> utterance_sensitivity(longest=10, weights=[1.0, 0.6065, 0.1353])
    17.5
    """
    return longest * sum(math.ceil(weight / step) * step for weight in weights)


# --- Caps: what a client does to its own counts before they leave it -------------------------------


class Cap(Protocol):
    """Counts that a client may send. The norm of the result is at most `limit`, whatever was said."""

    @property
    def limit(self) -> float: ...
    def __call__(self, counts: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class Rounded:
    """Counts rounded to the grid, and no cap: clients as a whole are not protected."""

    step: float = STEP
    limit: float = math.inf

    def __post_init__(self) -> None:
        _check_step(self.step)

    def __call__(self, counts: Tensor) -> Tensor:
        return to_grid(counts, self.step)


@dataclass(frozen=True)
class _ScalingCap:
    """Counts scaled down to a norm of at most `limit`, then rounded to the grid."""

    limit: float
    per_word: float = math.inf
    step: float = STEP
    order: ClassVar[int]

    def __post_init__(self) -> None:
        _check_step(self.step)
        if not math.isfinite(self.limit) or self.limit < self.step or self.per_word <= 0:
            raise ValueError(
                f"a cap needs a finite limit of at least a step ({self.step}) and a per_word above 0, "
                f"not {self.limit} and {self.per_word}"
            )

    def __call__(self, counts: Tensor) -> Tensor:
        counts = counts.clamp(max=self.per_word).to(torch.float64)
        if bool((counts < 0).any()) or not bool(counts.isfinite().all()):
            raise ValueError("counts to be capped must be finite and not negative")
        length = float(torch.linalg.vector_norm(counts, self.order))
        scaled = counts * min(1.0, self.limit / length) if length else counts
        gridded = to_grid(scaled, self.step)
        while float(torch.linalg.vector_norm(gridded, self.order)) > self.limit:  # the product was rounded up
            scaled = scaled * (1 - 1e-9)
            gridded = to_grid(scaled, self.step)
        return gridded


class CapL1(_ScalingCap):
    """Counts scaled down to a sum of at most `limit`: every word keeps its share. Then rounded to the grid.

    `per_word` first cuts each word's count down to that: what is said all the time leaves room for the rest.

    >>> CapL1(limit=3.0, step=0.5)(torch.tensor([1.0, 4.0, 1.0], dtype=torch.float64))
    tensor([0.5000, 2.0000, 0.5000], dtype=torch.float64)
    """

    order = 1


class CapL2(_ScalingCap):
    """Counts scaled down to an l2 norm of at most `limit`, then rounded to the grid; see `CapL1`."""

    order = 2


def to_grid(counts: Tensor, step: float = STEP) -> Tensor:
    """Rounded towards zero to multiples of `step`, in float64, which holds them exactly."""
    return torch.trunc(counts.to(torch.float64) / step) * step


# --- Noise: what the server adds to pooled counts --------------------------------------------------


class Mechanism(Protocol):
    """Adds noise to pooled counts; `loss` is what one release costs a unit of that sensitivity."""

    @property
    def deviation(self) -> float:
        """Standard deviation of the noise on a word, in counts."""

    @property
    def loss(self) -> Loss: ...
    def loss_at(self, sensitivity: float) -> Loss:
        """What the same noise costs units of another sensitivity."""

    def add(self, counts: Tensor, words: Words) -> Tensor: ...


@dataclass(frozen=True)
class Laplace:
    """Noise of scale sensitivity / epsilon (rounded up to steps): one release is (epsilon, 0)-DP. l1."""

    sensitivity: float
    epsilon: float
    step: float = STEP

    def __post_init__(self) -> None:
        _check_mechanism(self.sensitivity, self.epsilon, self.step)

    @property
    def scale(self) -> int:
        return _up(self.sensitivity / self.epsilon / self.step)

    @property
    def deviation(self) -> float:
        tail = math.exp(-1 / self.scale)
        return math.sqrt(2 * tail) / (1 - tail) * self.step

    @property
    def loss(self) -> LaplaceLoss:
        return self.loss_at(self.sensitivity)

    def loss_at(self, sensitivity: float) -> LaplaceLoss:
        return LaplaceLoss(_up(sensitivity / self.step), self.scale)

    def add(self, counts: Tensor, words: Words) -> Tensor:
        steps = _in_steps(counts, self.step)
        return _in_counts(steps + discrete_laplace(words, self.scale, len(steps)), self.step)


@dataclass(frozen=True)
class Gaussian:
    """Noise of `multiplier` times the l2 sensitivity (rounded up to steps)."""

    sensitivity: float
    multiplier: float
    step: float = STEP

    def __post_init__(self) -> None:
        _check_mechanism(self.sensitivity, self.multiplier, self.step)

    @property
    def scale(self) -> int:
        return _up(self.sensitivity * self.multiplier / self.step)

    @property
    def deviation(self) -> float:
        return self.scale * self.step  # a discrete Gaussian's is never above its scale

    @property
    def loss(self) -> GaussianLoss:
        return self.loss_at(self.sensitivity)

    def loss_at(self, sensitivity: float) -> GaussianLoss:
        return GaussianLoss(sensitivity / self.step, self.scale)

    def add(self, counts: Tensor, words: Words) -> Tensor:
        steps = _in_steps(counts, self.step)
        return _in_counts(steps + discrete_gaussian(words, self.scale, len(steps)), self.step)


def gaussian_for(sensitivity: float, budget: Budget, rounds: int = 1) -> Gaussian:
    """The least Gaussian noise of which `rounds` releases together fit in the budget (Rényi composition)."""
    if budget.delta == 0 or rounds < 1:
        raise ValueError(f"Gaussian noise needs a delta above 0 and a round, not {budget.delta} and {rounds}")

    def fits(scale: int) -> bool:
        loss = GaussianLoss(sensitivity / STEP, scale)
        return Renyi().epsilon([(loss, rounds)], budget.delta) <= budget.epsilon

    too_little, enough = 0, 1  # in steps: ε falls as they grow
    while not fits(enough):
        too_little, enough = enough, 2 * enough
    while enough - too_little > 1:
        middle = (too_little + enough) // 2
        too_little, enough = (too_little, middle) if fits(middle) else (middle, enough)
    return Gaussian(sensitivity, enough * STEP / sensitivity)


def _in_steps(counts: Tensor, step: float) -> np.ndarray:
    """Pooled counts as integers: exact sums of what clients rounded, but for floating point."""
    steps = counts.to(torch.float64) / step
    whole = steps.round()
    if bool(((steps - whole).abs() > OFF_GRID).any()):
        worst = int((steps - whole).abs().argmax())
        raise ValueError(
            f"pooled count {float(counts[worst])} of word {worst} is not a multiple of {step}: "
            "clients must cap or round their counts (CapL1, CapL2, to_grid) to the step of the noise"
        )
    return whole.to(torch.int64).numpy()


def _in_counts(steps: np.ndarray, step: float) -> Tensor:
    return torch.from_numpy(steps).to(torch.float64) * step


def _up(steps: float) -> int:
    """A whole number of steps, at least 1, not below `steps` but for what floating point added to it."""
    return max(1, math.ceil(steps * (1 - 1e-12)))


def _check_mechanism(sensitivity: float, strength: float, step: float) -> None:
    _check_step(step)
    if not (0 < sensitivity < math.inf and 0 < strength < math.inf):
        raise ValueError(
            "noise needs a sensitivity and an epsilon or multiplier above 0, "
            f"not {sensitivity} and {strength}"
        )


def _check_step(step: float) -> None:
    if step <= 0 or math.frexp(step)[0] != 0.5:
        raise ValueError(
            f"the step of counts must be a power of two, so that sums of it are exact, not {step}"
        )
