"""Noise on counts, as large as one unit of data can change them; caps that limit this change.

Liu, Peng, "Federated Marginal Personalization for ASR Rescoring", 2020, §4, eq. 8-9, and what its future work
leaves open. Three units may be protected. The sensitivity is the distance between the pooled counts of
neighbouring data, with one unit added or removed:

| unit                     | sensitivity                                      | bounded by               |
| ------------------------ | ------------------------------------------------ | ------------------------ |
| one word of an utterance | 1: the paper's claim, for a word said once in it | nothing: an assumption   |
| one utterance            | its words · Σ of the rank weights (l1)           | the longest utterance    |
| one client               | the cap: l1 for Laplace, l2 for Gaussian noise   | client: `CapL1`, `CapL2` |

A cap holds for any speech. Protection of one utterance holds only if counts come from first-pass lists. If a
model that has learnt from earlier utterances ranks lists again, these utterances change later counts. And it
holds only without a cap: if one word is added, scaling changes all words of its client.

All counts are multiples of `step`, a power of two, so that their sums are exact and noise can be drawn over
integers (`samplers`). Clients round towards zero after capping, which never makes a norm larger. Rounding on
the server could add one step for every word of the vocabulary to the sensitivity.

Deviation. The paper says that a larger ε protects more; it protects less.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from antiphon.privacy.accounting import Budget, GaussianLoss, LaplaceLoss, Loss, Renyi
from antiphon.privacy.samplers import Words, discrete_gaussian, discrete_laplace

STEP = 2.0**-6  # the step of the grid of counts, in words
OFF_GRID = 0.25  # of a step: larger than errors of floating-point sums, smaller than what rounding would hide


def utterance_sensitivity(longest: int, weights: Sequence[float], step: float = STEP) -> float:
    """Return the largest l1 (and l2) norm that one utterance adds to its client's counts, with rounding.

    longest: the words of the longest hypothesis. weights: the weights of hypotheses by rank (eq. 3).
    A rounded sum changes by at most the added value, rounded up.

    >>> utterance_sensitivity(longest=10, weights=[1.0, 0.6065, 0.1353])
    17.5
    """
    return longest * sum(math.ceil(weight / step) * step for weight in weights)


# --- Caps: applied by a client to its own counts before it sends them ------------------------------


@dataclass(frozen=True)
class Cap:
    """Scale counts down to a norm of at most `limit`, then round them to the grid."""

    limit: float
    step: float = STEP
    order: ClassVar[int] = 1

    def __post_init__(self) -> None:
        _check_step(self.step)
        if not self.limit >= self.step:
            raise ValueError(f"a cap needs a limit of at least a step ({self.step}), not {self.limit}")

    def __call__(self, counts: Tensor) -> Tensor:
        counts = counts.to(torch.float64)
        if bool((counts < 0).any()) or not bool(counts.isfinite().all()):
            raise ValueError("counts to be capped must be finite and not negative")
        norm = float(torch.linalg.vector_norm(counts, self.order))
        scaled = counts * min(1.0, self.limit / norm) if norm else counts
        rounded = to_grid(scaled, self.step)
        while float(torch.linalg.vector_norm(rounded, self.order)) > self.limit:  # the product was rounded up
            scaled = scaled * (1 - 1e-9)
            rounded = to_grid(scaled, self.step)
        return rounded


@dataclass(frozen=True)
class Rounded(Cap):
    """Round counts to the grid, without a cap: whole clients are not protected."""

    limit: float = math.inf


class CapL1(Cap):
    """Scale counts down to a sum of at most `limit`: every word keeps its share. Then round them to the grid.

    >>> CapL1(limit=3.0, step=0.5)(torch.tensor([1.0, 4.0, 1.0], dtype=torch.float64))
    tensor([0.5000, 2.0000, 0.5000], dtype=torch.float64)
    """


class CapL2(Cap):
    """Scale counts down to an l2 norm of at most `limit`, then round them to the grid; see `CapL1`."""

    order = 2


def to_grid(counts: Tensor, step: float = STEP) -> Tensor:
    """Round counts towards zero to multiples of `step`, in float64, which represents them exactly."""
    return torch.trunc(counts.to(torch.float64) / step) * step


# --- Noise: added by the server to pooled counts ---------------------------------------------------


class Mechanism:
    """Noise for pooled counts. A subclass has `scale` and `loss_at`, and draws the noise."""

    sensitivity: float
    step: float
    draw: ClassVar[Any]  # (words, scale, number) -> noise in steps

    def __post_init__(self) -> None:
        _check_step(self.step)
        if not all(0 < value < math.inf for value in vars(self).values()):
            raise ValueError(f"noise needs a sensitivity and an epsilon or multiplier above 0, not {self}")

    @property
    def scale(self) -> int:
        """The scale of the noise, in steps."""
        raise NotImplementedError

    @property
    def loss(self) -> Loss:
        """The privacy cost of one release for a unit of the mechanism's sensitivity."""
        return self.loss_at(self.sensitivity)

    def loss_at(self, sensitivity: float) -> Loss:
        """Return the cost of the same noise for units of another sensitivity."""
        raise NotImplementedError

    def add(self, counts: Tensor, words: Words) -> Tensor:
        steps = _in_steps(counts, self.step)
        noised = steps + self.draw(words, self.scale, len(steps))
        return torch.from_numpy(noised).to(torch.float64) * self.step


@dataclass(frozen=True)
class Laplace(Mechanism):
    """Noise of scale l1 sensitivity / epsilon, rounded up to steps: one release is (epsilon, 0)-DP."""

    sensitivity: float
    epsilon: float
    step: float = STEP
    draw = staticmethod(discrete_laplace)

    @property
    def scale(self) -> int:
        return _up(self.sensitivity / self.epsilon / self.step)

    def loss_at(self, sensitivity: float) -> LaplaceLoss:
        return LaplaceLoss(_up(sensitivity / self.step), self.scale)


@dataclass(frozen=True)
class Gaussian(Mechanism):
    """Noise of scale `multiplier` times the l2 sensitivity, rounded up to steps."""

    sensitivity: float
    multiplier: float
    step: float = STEP
    draw = staticmethod(discrete_gaussian)

    @property
    def scale(self) -> int:
        return _up(self.sensitivity * self.multiplier / self.step)

    def loss_at(self, sensitivity: float) -> GaussianLoss:
        return GaussianLoss(sensitivity / self.step, self.scale)


def gaussian_for(sensitivity: float, budget: Budget, rounds: int = 1) -> Gaussian:
    """Return the smallest Gaussian noise for `rounds` releases within the budget (Rényi composition)."""
    if budget.delta == 0 or rounds < 1:
        got = f"{budget.delta} and {rounds}"
        raise ValueError(f"Gaussian noise needs a delta above 0 and at least 1 round, not {got}")

    def fits(scale: int) -> bool:
        loss = GaussianLoss(sensitivity / STEP, scale)
        return Renyi().epsilon([(loss, rounds)], budget.delta) <= budget.epsilon

    too_little, enough = 0, 1  # scales in steps: ε falls as the scale grows
    while not fits(enough):
        too_little, enough = enough, 2 * enough
    while enough - too_little > 1:
        middle = (too_little + enough) // 2
        too_little, enough = (too_little, middle) if fits(middle) else (middle, enough)
    return Gaussian(sensitivity, enough * STEP / sensitivity)


def _in_steps(counts: Tensor, step: float) -> np.ndarray:
    """Return pooled counts as integers; they are sums of rounded counts, apart from floating-point errors."""
    steps = counts.to(torch.float64) / step
    whole = steps.round()
    if bool(((steps - whole).abs() > OFF_GRID).any()):
        worst = int((steps - whole).abs().argmax())
        raise ValueError(
            f"pooled count {float(counts[worst])} of word {worst} is not a multiple of {step}: "
            "clients must cap or round their counts (CapL1, CapL2, to_grid) to the step of the noise"
        )
    return whole.to(torch.int64).numpy()


def _up(steps: float) -> int:
    """Round up to a whole number of steps, at least 1, ignoring floating-point errors."""
    return max(1, math.ceil(steps * (1 - 1e-12)))


def _check_step(step: float) -> None:
    if step <= 0 or math.frexp(step)[0] != 0.5:
        raise ValueError(f"the step of counts must be a power of two, so that sums are exact, not {step}")
