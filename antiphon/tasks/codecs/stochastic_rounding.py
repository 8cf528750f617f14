"""Stochastic rounding to a few bits: every entry is rounded up or down by chance, right on average.

D. Alistarh, D. Grubic, J. Li, R. Tomioka, M. Vojnovic, "QSGD: Communication-Efficient SGD via Gradient
Quantization and Encoding", NeurIPS 2017, arXiv:1610.02132, §3.1 and §4 (buckets).

| paper     | here                                                                                  |
| --------- | ------------------------------------------------------------------------------------- |
| s         | levels above 0: 2^(bits − 1) − 1                                                      |
| d, bucket | `bucket`: entries with a scale of their own                                           |
| ξ_i(v, s) | `rounded`: ⌊a⌋ or ⌊a⌋ + 1, for a = v_i / step; E[ξ_i] = a                             |

Deviations. The scale of a bucket is its largest magnitude, not its l2 norm, as in the paper's experiments.
The levels are entropy-coded with all other parts of a message (`tasks.packing`), not by Elias codes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from antiphon.tasks.codec import CODECS, Layout, Parts, random_numbers


def rounded(values: Tensor, chance: Tensor) -> Tensor:
    """Round up where `chance`, uniform in [0, 1), reaches what is left to the next whole number.

    >>> rounded(torch.tensor([0.25, 0.25, -0.25]), torch.tensor([0.7, 0.8, 0.1]))
    tensor([ 0.,  1., -1.])
    """
    return torch.floor(values + chance)


@CODECS.register
@dataclass(frozen=True)
class StochasticRounding:
    """Rounds entries to `bits` bits, unbiased: 8 for int8, 4 for int4. Codes of 3 bits are two in a byte."""

    bits: int = 8
    bucket: int = 512  # entries with a scale of their own: fewer are more exact, and take more bytes
    needs_memory: ClassVar[bool] = False
    suits_models: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.bits not in (2, 3, 4, 8):
            reason = "one bit has no level for 0, and without a memory its error stays. " * (self.bits == 1)
            raise ValueError(f"stochastic_rounding: {reason}bits are 2, 3, 4 or 8, not {self.bits}")
        if self.bucket < 1:
            raise ValueError(f"stochastic_rounding: a bucket has at least 1 entry, not {self.bucket}")

    @property
    def num_levels(self) -> int:
        """Levels above 0."""
        return int(2 ** (self.bits - 1) - 1)

    def layout(self, shape: Sequence[int]) -> Layout:
        size = math.prod(shape)
        return ("<f4", -(-size // self.bucket)), ("u1", -(-size // (8 // self.bits)))

    def encode(self, tensor: Tensor, seed: int, kept: Tensor | None) -> tuple[Parts, Tensor | None]:
        flat = tensor.double().flatten()
        width = max(1, min(self.bucket, len(flat)))
        rows = torch.nn.functional.pad(flat, (0, -len(flat) % width)).view(-1, width)
        steps = (rows.abs().amax(dim=1) / self.num_levels).float()
        scaled = rows / steps.double().clamp(min=torch.finfo(torch.float64).tiny)[:, None]
        chance = torch.rand(rows.shape, generator=random_numbers(seed), dtype=torch.float64)
        levels = rounded(scaled, chance).clamp(-self.num_levels, self.num_levels)
        codes = (levels + self.num_levels).to(torch.uint8).flatten()[: len(flat)]
        return (steps.numpy(), self._joined(codes.numpy())), None

    def decode(self, parts: Parts, shape: Sequence[int], seed: int) -> Tensor:
        steps, size = torch.from_numpy(parts[0]), math.prod(shape)
        codes = self._split(parts[1])[:size]
        if size and int(codes.max()) > 2 * self.num_levels:
            raise ValueError(f"a level above {self.num_levels}")
        levels = torch.from_numpy(codes).double() - self.num_levels
        return (levels * steps.double().repeat_interleave(self.bucket)[:size]).float().view(tuple(shape))

    def _joined(self, codes: np.ndarray) -> np.ndarray:
        """Return codes with several in one byte, the first in the highest bits."""
        per_byte = 8 // self.bits
        padded = np.pad(codes, (0, -len(codes) % per_byte)).reshape(-1, per_byte)
        joined = np.zeros(len(padded), dtype=np.uint8)
        for place in range(per_byte):
            joined |= padded[:, place] << np.uint8(8 - self.bits * (place + 1))
        return joined

    def _split(self, joined: np.ndarray) -> np.ndarray:
        """Invert `_joined`; the last codes may be padding."""
        shifts = np.arange(8 - self.bits, -1, -self.bits, dtype=np.uint8)
        return ((joined[:, None] >> shifts) & np.uint8(2**self.bits - 1)).reshape(-1)
