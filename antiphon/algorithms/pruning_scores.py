"""The importance of slices of weights, and how many of them each matrix keeps.

R. Lin et al., "Federated Pruning", Interspeech 2022, §2.2 (scores) and §2.4 (adaptive per-layer sparsity).

| paper                              | here                                                            |
| ---------------------------------- | --------------------------------------------------------------- |
| importance score                   | `Score`: l1 or l2 norm of a slice of weights, of momentum, of both |
| momentum of gradient magnitude     | moving average of |Δ| of the aggregate, kept by `pruning`       |
| layer i of L                       | a matrix, or a block of the model (`Adaptive.by_block`)         |
| ‖w_i‖, TargetSparsity, LayerDensity| mean|w| of a layer, `sparsity`, `Allocation.densities`          |

Deviations.
- A layer of eq. 1 is one matrix by default, with queries, keys and values apart. The paper's own layers are
  more likely blocks: its model has "17 512-dimensional conformer encoder layers" (§3.1). See `by_block`.
- Eq. 1 as printed makes the densities *sum* to 1 − S. We take it to mean that the model keeps 1 − S of its
  weights: density_i = min(1, c · mean|w_i|) with c solved so that Σ n_i · density_i = (1 − S) · Σ n_i.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from antiphon.algorithms.pruning_slices import Slices
from antiphon.core import Tensors


@dataclass(frozen=True)
class _Score:
    """The l1 or l2 norm of each slice of the product of some tensors."""

    norm: int = 1
    factors: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        if self.norm not in (1, 2):
            raise ValueError(f"a score is an l1 or l2 norm: norm must be 1 or 2, not {self.norm}")

    @property
    def needs_momentum(self) -> bool:
        return "momentum" in self.factors

    def __call__(self, slices: Slices, params: Tensors, momentum: Tensors) -> Tensor:
        tensors = {"weight": params, "momentum": momentum}
        product = math.prod(slices.of(tensors[factor]) for factor in self.factors)
        return torch.linalg.vector_norm(product, self.norm, dim=1)


class ByWeight(_Score):
    """The size of the weights: known from the first round, and constant for slices that are removed."""

    factors = ("weight",)


class ByMomentum(_Score):
    """The momentum of |Δ|, the size of the aggregate: how much clients still change the weights."""

    factors = ("momentum",)


class ByProduct(_Score):
    """The size of weight times momentum, entry by entry."""

    factors = ("weight", "momentum")


Score = ByWeight | ByMomentum | ByProduct


# --- How much each matrix keeps -------------------------------------------------------------------


@dataclass(frozen=True)
class Unified:
    """Every matrix keeps the same share."""

    def densities(self, slices: Sequence[Slices], params: Tensors, sparsity: float) -> list[float]:
        return [1.0 - sparsity] * len(slices)


@dataclass(frozen=True)
class Adaptive:
    """A layer of larger weights keeps more: min(1, c · mean|w|), 1 − sparsity of all weights together."""

    by_block: bool = False  # a layer is a block of the model, such as a Conformer layer; otherwise one matrix

    def densities(self, slices: Sequence[Slices], params: Tensors, sparsity: float) -> list[float]:
        sizes = mean_sizes(slices, params)
        return _shared(slices, block_means(slices, sizes) if self.by_block else sizes, sparsity)


@dataclass(frozen=True)
class AdaptiveGrowth:
    """As `Adaptive`, by the growth of the weights since they were drawn. Not in the paper.

    A matrix with many inputs starts with smaller weights; `Adaptive` prunes it more for that reason alone. In
    docs/pruning.md `AdaptiveGrowth` is better than `Unified`, and `Adaptive` by matrices is not.
    """

    def densities(self, slices: Sequence[Slices], params: Tensors, sparsity: float) -> list[float]:
        sizes = mean_sizes(slices, params)
        return _shared(slices, [size / s.drawn for s, size in zip(slices, sizes, strict=True)], sparsity)


Allocation = Unified | Adaptive | AdaptiveGrowth


def mean_sizes(slices: Sequence[Slices], params: Tensors) -> list[float]:
    """Return mean|w| of each group of slices."""
    return [float(size) for size in torch.stack([s.of(params).abs().mean() for s in slices]).double()]


def block_means(slices: Sequence[Slices], sizes: Sequence[float]) -> list[float]:
    """Return for each group of slices mean|w| over all weights of its block, given those of the groups."""
    counts: dict[str, int] = defaultdict(int)
    totals: dict[str, float] = defaultdict(float)
    for group, size in zip(slices, sizes, strict=True):
        counts[group.block] += group.num_weights
        totals[group.block] += size * group.num_weights
    return [totals[group.block] / counts[group.block] for group in slices]


def _shared(slices: Sequence[Slices], merits: Sequence[float], sparsity: float) -> list[float]:
    densities = solve_densities(merits, [s.num_weights for s in slices], 1.0 - sparsity)
    # Every matrix keeps at least one slice.
    return [max(density, 1 / s.size) for s, density in zip(slices, densities, strict=True)]


def solve_densities(means: Sequence[float], sizes: Sequence[int], density: float) -> list[float]:
    """Return min(1, c · mean_i), with c such that `density` of all weights is kept.

    >>> solve_densities([1.0, 3.0], [10, 10], 0.5)
    [0.25, 0.75]
    >>> solve_densities([1.0, 3.0], [10, 10], 0.75)
    [0.5, 1.0]
    """
    if not any(means):
        return [density] * len(means)
    budget, densities = density * sum(sizes), [0.0] * len(means)
    order = sorted(range(len(means)), key=lambda i: -means[i])
    while order:  # largest mean first: if it keeps less than all, so do the others
        scale = budget / (sum(means[i] * sizes[i] for i in order) or 1.0)
        first = order[0]
        if scale * means[first] < 1:
            for i in order:
                densities[i] = scale * means[i]
            break
        densities[first] = 1.0
        budget -= sizes[first]
        order.pop(0)
    return densities


def num_kept(slices: Slices, density: float, multiple: int = 1) -> int:
    """Return how many slices are kept, a multiple of `multiple`; ValueError if that is none."""
    removed = round((1.0 - density) * slices.size)
    if removed >= slices.size:
        raise ValueError(
            f"{slices.name} would lose every unit ({slices.size} of {slices.size}): choose a lower sparsity"
        )
    nearest = max(1, round((slices.size - removed) / multiple)) * multiple
    return min(nearest, slices.size)


def keep_best(scores: Tensor, count: int) -> Tensor:
    """Return a mask of the `count` slices with the highest scores; of equal scores, the first."""
    order = scores.cpu().argsort(descending=True, stable=True)
    mask = torch.zeros(len(scores), dtype=torch.bool)
    mask[order[:count]] = True
    return mask


def choose(
    slices: Sequence[Slices],
    params: Tensors,
    momentum: Tensors,
    score: Score,
    allocation: Allocation,
    sparsity: float,
    multiple: int = 1,
) -> list[Tensor]:
    """Return the masks of all slices: GetImportanceScore and GenerateMask of Algorithm 1."""
    densities = allocation.densities(slices, params, sparsity)
    return [
        keep_best(score(group, params, momentum), num_kept(group, density, multiple))
        for group, density in zip(slices, densities, strict=True)
    ]
