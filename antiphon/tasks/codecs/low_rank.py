"""Low rank: a matrix is sent as a product of two thin ones.

T. Vogels, S. P. Karimireddy, M. Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed
Optimization", NeurIPS 2019, arXiv:1905.13727: Algorithm 1, with the error feedback of Algorithm 2 (the memory
is in `algorithms.compressed`).

| paper     | here                                                                                  |
| --------- | ------------------------------------------------------------------------------------- |
| M ∈ R^n×m | a tensor as a matrix: its first dimension, and all others                             |
| r         | `rank`                                                                                |
| Q         | at first from the seed; then the client's last Q, if it fits (warm start)             |
| P̂         | orthogonal basis of M Q, by QR in place of Gram–Schmidt                               |

Deviations. Clients take part in few rounds and cannot average P and Q among each other twice in one, so every
client sends factors of its own update. Vectors, and matrices that are shorter than their factors, are sent as
they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from antiphon.tasks.codec import CODECS, Layout, Parts, random_numbers


@CODECS.register
@dataclass(frozen=True)
class LowRank:
    """Sends matrices as factors of a low rank."""

    rank: int = 4
    needs_memory: ClassVar[bool] = True
    suits_models: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ValueError(f"low_rank needs a rank of at least 1, not {self.rank}")

    def layout(self, shape: Sequence[int]) -> Layout:
        rows, columns, rank = self._sizes(shape)
        if not rank:
            return ("<f4", 0), ("<f4", math.prod(shape))
        return ("<f4", rows * rank), ("<f4", columns * rank)

    def encode(self, tensor: Tensor, seed: int, kept: Tensor | None) -> tuple[Parts, Tensor | None]:
        rows, columns, rank = self._sizes(tensor.shape)
        if not rank:
            return (torch.empty(0).numpy(), tensor.float().flatten().numpy()), None
        matrix = tensor.double().reshape(rows, columns)
        if kept is None or kept.shape != (columns, rank):
            kept = torch.randn(columns, rank, generator=random_numbers(seed), dtype=torch.float64)
        basis = torch.linalg.qr(matrix @ kept.double()).Q.float()  # lines 3 to 5: P̂
        factor = (matrix.T @ basis.double()).float()  # line 6: Q
        return (basis.flatten().numpy(), factor.flatten().numpy()), factor

    def decode(self, parts: Parts, shape: Sequence[int], seed: int) -> Tensor:
        rows, columns, rank = self._sizes(shape)
        first, second = (torch.from_numpy(part) for part in parts)
        if not rank:
            return second.view(tuple(shape))
        product = first.double().view(rows, rank) @ second.double().view(columns, rank).T
        return product.float().view(tuple(shape))

    def _sizes(self, shape: Sequence[int]) -> tuple[int, int, int]:
        """Return rows, columns and rank; rank 0: the tensor is sent as it is."""
        rows = shape[0] if len(shape) > 1 else 1
        columns = math.prod(shape[1:]) if len(shape) > 1 else math.prod(shape)
        rank = min(self.rank, rows, columns)
        return rows, columns, rank if rank * (rows + columns) < rows * columns else 0
