"""From noised counts, some of them negative, to a distribution: post-processing, which costs no privacy.

Project   Duchi, Shalev-Shwartz, Singer, Chandra, "Efficient projections onto the l1-ball for learning in
          high dimensions", ICML 2008, fig. 1: the nearest distribution in l2.
Clamp     negative counts are set to zero. Keeps half of the noise on words that were never said: with a large
          vocabulary that half is most of the mass.
Shrink    the background where a count cannot be told from it, the count elsewhere: Wald's test for each word.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Denoise(Protocol):
    """A distribution from noised counts. `noise`: standard deviation of the noise, in counts."""

    def __call__(self, counts: Tensor, background: Tensor, noise: float) -> Tensor: ...


def project(values: Tensor) -> Tensor:
    """The point of the simplex nearest to `values`. [words] -> [words]

    >>> project(torch.tensor([0.6, 0.6, -0.2]))
    tensor([0.5000, 0.5000, 0.0000])
    """
    high_first = values.sort(descending=True).values
    excess = (high_first.cumsum(0) - 1) / torch.arange(1, len(values) + 1, dtype=values.dtype)
    support = int((high_first > excess).sum())  # true for a prefix: ρ of the paper
    return (values - excess[support - 1]).clamp(min=0)


@dataclass(frozen=True)
class Project:
    """The nearest distribution to counts / total; the background if the noise left no total."""

    def __call__(self, counts: Tensor, background: Tensor, noise: float) -> Tensor:
        total = counts.sum()
        return project(counts / total) if total > 0 else background


@dataclass(frozen=True)
class Clamp:
    """Negative counts become zero; the background if nothing is left."""

    def __call__(self, counts: Tensor, background: Tensor, noise: float) -> Tensor:
        clamped = counts.clamp(min=0)
        total = clamped.sum()
        return clamped / total if total > 0 else background


@dataclass(frozen=True)
class Shrink:
    """A word keeps its noised count only if that is `threshold` deviations of noise off its background.

    The total is estimated on the `head` words most frequent in the background, where noise is small beside
    counts: their sum, divided by the share that the background gives them. Words that keep nothing of their
    own have the background's odds among themselves.
    """

    threshold: float = 3.0
    head: int = 100

    def __call__(self, counts: Tensor, background: Tensor, noise: float) -> Tensor:
        head = background.topk(min(self.head, len(background))).indices
        total = counts[head].sum() / background[head].sum()
        if total <= 0:
            return background
        expected = total * background
        own = (counts - expected).abs() > self.threshold * noise
        kept = torch.where(own, counts.clamp(min=0), expected)
        return kept / kept.sum()
