"""Random projection: a few random coordinates of a rotated tensor; the seed says which.

J. Konečný, H. B. McMahan, F. X. Yu, P. Richtárik, A. T. Suresh, D. Bacon, "Federated Learning: Strategies for
Improving Communication Efficiency", 2016, arXiv:1610.05492, §4: subsampling, and structured random rotations
(products of a Walsh–Hadamard matrix and a diagonal one of random signs).

| paper        | here                                                                              |
| ------------ | --------------------------------------------------------------------------------- |
| H, D         | `hadamard`, `signs`                                                               |
| subsampling  | `rows`: k of the d rotated entries, scaled by d / k when they arrive: unbiased    |

Deviations. Tensors are filled with zeros to a power of two before the rotation, so that d is a power of two.
Nothing is kept between rounds: E |x̂ − x|² = (d / k − 1) |x|² for a single client, which the mean over many
clients with different seeds makes smaller.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from antiphon.tasks.codec import CODECS, Layout, Parts, check_share, random_numbers, share_of


def hadamard(values: Tensor) -> Tensor:
    """Return H x for the orthonormal Walsh–Hadamard matrix H = Hᵀ = H⁻¹; the length is a power of two.

    >>> hadamard(torch.tensor([1.0, 0.0, 0.0, 1.0]))
    tensor([1., 0., 0., 1.])
    """
    size, half = len(values), 1
    while half < size:
        first, second = values.view(-1, 2, half).unbind(dim=1)
        values = torch.stack([first + second, first - second], dim=1).flatten()
        half *= 2
    return values / math.sqrt(size)


def project(values: Tensor, signs: Tensor, rows: Tensor) -> Tensor:
    """Return some rows of H D x."""
    return hadamard(values * signs)[rows]


def lift(sent: Tensor, signs: Tensor, rows: Tensor) -> Tensor:
    """Return d / k · D Hᵀ of the rows, with 0 for the others; its mean over all rows is x."""
    full = torch.zeros(len(signs), dtype=sent.dtype).index_copy(0, rows, sent)
    return signs * hadamard(full) * (len(signs) / max(1, len(rows)))


@CODECS.register
@dataclass(frozen=True)
class RandomProjection:
    """Sends random coordinates of the rotated tensor, unbiased, without a memory."""

    share: float = 0.25  # coordinates, as a share of the entries
    needs_memory: ClassVar[bool] = False
    suits_models: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_share(self.share, "random_projection")

    def layout(self, shape: Sequence[int]) -> Layout:
        return (("<f4", share_of(self.share, math.prod(shape))),)

    def encode(self, tensor: Tensor, seed: int, kept: Tensor | None) -> tuple[Parts, Tensor | None]:
        signs, rows = self._drawn(tensor.numel(), seed)
        flat = torch.nn.functional.pad(tensor.double().flatten(), (0, len(signs) - tensor.numel()))
        return (project(flat, signs, rows).float().numpy(),), None

    def decode(self, parts: Parts, shape: Sequence[int], seed: int) -> Tensor:
        size = math.prod(shape)
        signs, rows = self._drawn(size, seed)
        return lift(torch.from_numpy(parts[0]).double(), signs, rows)[:size].float().view(tuple(shape))

    def _drawn(self, size: int, seed: int) -> tuple[Tensor, Tensor]:
        """Return D and the rows, for a tensor of this size."""
        generator, padded = random_numbers(seed), 2 ** max(0, size - 1).bit_length()
        signs = torch.randint(0, 2, (padded,), generator=generator).double() * 2 - 1
        return signs, torch.randperm(padded, generator=generator)[: share_of(self.share, size)]
