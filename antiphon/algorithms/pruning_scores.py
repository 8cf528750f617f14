"""How much a slice of weights matters, and how many of its kind each matrix keeps.

R. Lin et al., "Federated Pruning", Interspeech 2022, §2.2 (scores) and §2.4 (adaptive per-layer sparsity).

| paper                              | here                                                            |
| ---------------------------------- | --------------------------------------------------------------- |
| importance score                   | `Score`: l1 or l2 norm of a slice of weights, of momentum, of both |
| momentum of gradient               | moving average of the aggregated Δ, kept by `pruning`           |
| ‖w_i‖, TargetSparsity, LayerDensity| mean|w| of a matrix, `sparsity`, `Allocation.densities`         |

Deviation. Eq. 1 as printed makes the densities *sum* to 1 − S. Meant is that the model keeps 1 − S of its
weights: density_i = min(1, c · mean|w_i|) with c solved so that Σ n_i · density_i = (1 − S) · Σ n_i.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from antiphon.algorithms.pruning_slices import Slices
from antiphon.core import Tensors


@dataclass(frozen=True)
class ByWeight:
    """How large the weights are: known from the first round on, and the same for slices that rest."""

    norm: int = 1
    needs_momentum: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check_norm(self.norm)

    def __call__(self, slices: Slices, params: Tensors, momentum: Tensors) -> Tensor:
        return torch.linalg.vector_norm(slices.of(params), self.norm, dim=1)


@dataclass(frozen=True)
class ByMomentum:
    """How large the momentum of the aggregated Δ is: what clients still want to change."""

    norm: int = 1
    needs_momentum: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_norm(self.norm)

    def __call__(self, slices: Slices, params: Tensors, momentum: Tensors) -> Tensor:
        return torch.linalg.vector_norm(slices.of(momentum), self.norm, dim=1)


@dataclass(frozen=True)
class ByProduct:
    """How large weight times momentum is, entry by entry."""

    norm: int = 1
    needs_momentum: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_norm(self.norm)

    def __call__(self, slices: Slices, params: Tensors, momentum: Tensors) -> Tensor:
        return torch.linalg.vector_norm(slices.of(params) * slices.of(momentum), self.norm, dim=1)


Score = ByWeight | ByMomentum | ByProduct


def _check_norm(norm: int) -> None:
    if norm not in (1, 2):
        raise ValueError(f"a score is an l1 or l2 norm: norm must be 1 or 2, not {norm}")


# --- How much each matrix keeps -------------------------------------------------------------------


@dataclass(frozen=True)
class Unified:
    """Every matrix keeps the same share."""

    def densities(self, slices: Sequence[Slices], params: Tensors, sparsity: float) -> list[float]:
        return [1.0 - sparsity] * len(slices)


@dataclass(frozen=True)
class Adaptive:
    """A matrix of larger weights keeps more: min(1, c · mean|w|), 1 − sparsity of all weights together."""

    def densities(self, slices: Sequence[Slices], params: Tensors, sparsity: float) -> list[float]:
        return _shared(slices, mean_sizes(slices, params), sparsity)


@dataclass(frozen=True)
class AdaptiveGrowth:
    """As `Adaptive`, by how much larger weights are than when they were drawn. Not of the paper.

    Weights of a matrix with many inputs are drawn smaller: `Adaptive` takes its outputs for that alone. In
    docs/pruning.md this way does better than `Unified`, and `Adaptive` does not.
    """

    def densities(self, slices: Sequence[Slices], params: Tensors, sparsity: float) -> list[float]:
        sizes = zip(slices, mean_sizes(slices, params), strict=True)
        return _shared(slices, [size / own.drawn for own, size in sizes], sparsity)


Allocation = Unified | Adaptive | AdaptiveGrowth


def mean_sizes(slices: Sequence[Slices], params: Tensors) -> list[float]:
    """mean|w| of each."""
    return [float(size) for size in torch.stack([own.of(params).abs().mean() for own in slices]).double()]


def _shared(slices: Sequence[Slices], merits: Sequence[float], sparsity: float) -> list[float]:
    densities = solve_densities(merits, [own.num_weights for own in slices], 1.0 - sparsity)
    # However small its weights, a matrix is left with one slice.
    return [max(density, 1 / own.size) for own, density in zip(slices, densities, strict=True)]


def solve_densities(means: Sequence[float], sizes: Sequence[int], density: float) -> list[float]:
    """min(1, c · mean_i), with c such that they keep `density` of all weights.

    >>> solve_densities([1.0, 3.0], [10, 10], 0.5)
    [0.25, 0.75]
    >>> solve_densities([1.0, 3.0], [10, 10], 0.75)
    [0.5, 1.0]
    """
    if not any(means):
        return [density] * len(means)
    budget, found = density * sum(sizes), [0.0] * len(means)
    order = sorted(range(len(means)), key=lambda i: -means[i])
    while order:  # the largest first: once it is not full, none after it is
        scale = budget / (sum(means[i] * sizes[i] for i in order) or 1.0)
        first = order[0]
        if scale * means[first] < 1:
            for i in order:
                found[i] = scale * means[i]
            break
        found[first] = 1.0
        budget -= sizes[first]
        order.pop(0)
    return found


def num_kept(slices: Slices, density: float, multiple: int = 1) -> int:
    """How many slices are kept, in multiples of a number; refuses to leave none."""
    removed = round((1.0 - density) * slices.size)
    if removed >= slices.size:
        raise ValueError(
            f"{slices.name} would lose every unit ({slices.size} of {slices.size}): choose a lower sparsity"
        )
    nearest = max(1, round((slices.size - removed) / multiple)) * multiple
    return min(nearest, slices.size)


def keep_best(scores: Tensor, count: int) -> Tensor:
    """A bool for each slice, true for the `count` of highest score; of equal ones, the first."""
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
    """The masks of all slices: GetImportanceScore and GenerateMask of Algorithm 1."""
    densities = allocation.densities(slices, params, sparsity)
    return [
        keep_best(score(own, params, momentum), num_kept(own, density, multiple))
        for own, density in zip(slices, densities, strict=True)
    ]
