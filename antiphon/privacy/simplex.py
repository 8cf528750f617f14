"""From noised counts, some of them negative, to a distribution: post-processing, which costs no privacy.

Duchi, Shalev-Shwartz, Singer, Chandra, "Efficient projections onto the l1-ball for learning in high
dimensions", ICML 2008, fig. 1: the nearest distribution in l2. To set negative counts to zero instead would
keep half of the noise on words that were never said: with a large vocabulary that half is most of the mass.
"""

from __future__ import annotations

import torch
from torch import Tensor


def project(values: Tensor) -> Tensor:
    """The point of the simplex nearest to `values`. [words] -> [words]

    >>> project(torch.tensor([0.6, 0.6, -0.2]))
    tensor([0.5000, 0.5000, 0.0000])
    """
    high_first = values.sort(descending=True).values
    excess = (high_first.cumsum(0) - 1) / torch.arange(1, len(values) + 1, dtype=values.dtype)
    support = int((high_first > excess).sum())  # true for a prefix: ρ of the paper
    return (values - excess[support - 1]).clamp(min=0)


def distribution_of(counts: Tensor, background: Tensor) -> Tensor:
    """The nearest distribution to counts / total (eq. 8); the background if the counts leave nothing."""
    total = counts.sum()
    return project(counts / total) if total > 0 else background
