"""Small floats: numbers with a sign, a few bits of exponent and a few of mantissa, and a linear transform.

T.-J. Yang, Y. Xiao, G. Motta, F. Beaufays, R. Mathews, M. Chen, "Online Model Compression for Federated
Learning with Large Models", ICASSP 2023, arXiv:2205.03494. Clients that also store parameters in this way
are `tasks.client_storage`.

| paper                            | here                                                                |
| -------------------------------- | ------------------------------------------------------------------- |
| S1EyMz                           | 1 bit of sign, `exponent` = y, `mantissa` = z                       |
| V, Ṽ                             | `rows`; `rounded`, in units of a power of two                       |
| s, b of V̄ = s Ṽ + b              | `fitted`: least squares, min Σ (V_i − s Ṽ_i − b)²                   |
| s                                | (n Σ V_i Ṽ_i − Σ V_i Σ Ṽ_i) / (n Σ Ṽ_i² − (Σ Ṽ_i)²)                 |
| b                                | (Σ V_i − s Σ Ṽ_i) / n                                               |

Numbers are rounded to the nearest, as in the paper; ties go to even mantissas. The smallest exponent holds
the numbers near 0, as in IEEE 754, and no code stands for infinity.

Deviations. The largest exponent is that of the variable's largest entry: the s of the transform, which comes
after rounding, cannot keep small weights from becoming 0. Only matrices are small floats; other tensors
are sent as they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from antiphon.tasks.codec import CODECS, Layout, Parts

SMALLEST = -100  # exponents of a variable below this count as this: its entries become 0


def is_short(shape: Sequence[int]) -> bool:
    """Return whether tensors of this shape are weight matrices."""
    return len(shape) > 1


def in_units(rows: Tensor) -> Tensor:
    """Return rows [n, size] divided by powers of two, so that the largest magnitude is in [1, 2).

    >>> in_units(torch.tensor([[6.0, -1.0], [0.1, 0.0]]))
    tensor([[ 1.5000, -0.2500],
            [ 1.6000,  0.0000]])
    """
    top = torch.frexp(rows.abs().amax(dim=1, keepdim=True)).exponent - 1
    return torch.ldexp(rows, -top.clamp(min=SMALLEST))


def rounded(units: Tensor, exponent: int, mantissa: int) -> Tensor:
    """Round numbers below 2 in magnitude to the nearest small floats, whose largest exponent is 0.

    >>> rounded(torch.tensor([1.3, -0.55, 0.2, 1.99]), exponent=2, mantissa=1)
    tensor([ 1.5000, -0.5000,  0.2500,  1.5000])
    """
    exponents = _exponents(units, exponent) - mantissa
    nearest = torch.ldexp(torch.round(torch.ldexp(units, -exponents)), exponents)
    largest = 2 - 2.0**-mantissa
    return nearest.clamp(-largest, largest)


def _exponents(units: Tensor, exponent: int) -> Tensor:
    """Return the exponents that small floats have for these numbers: 0 for the largest ones."""
    lowest = 2 - 2**exponent
    return (torch.frexp(units).exponent - 1).masked_fill(units == 0, lowest).clamp(lowest, 0)


def fitted(rows: Tensor, found: Tensor) -> tuple[Tensor, Tensor]:
    """Return s and b [n, 1] that bring `found` nearest to `rows`; s is 1 where all `found` are equal."""
    size = rows.shape[1]

    def total(values: Tensor) -> Tensor:
        return values.sum(dim=1, keepdim=True, dtype=torch.float64)

    first, second = total(rows), total(found)
    both, square = total(rows * found), total(found * found)
    spread = size * square - second * second
    is_flat = spread <= 1e-9 * size * square
    scale = (size * both - first * second) / spread.masked_fill(is_flat, 1.0)
    scale = scale.masked_fill(is_flat, 1.0).float()
    return scale, ((first - scale * second) / size).float()


def restored(rows: Tensor, exponent: int, mantissa: int) -> Tensor:
    """Return what is read of tensors [n, size] that were stored as small floats: s Ṽ + b, row by row."""
    found = rounded(in_units(rows), exponent, mantissa)
    scale, bias = fitted(rows, found)
    return found.mul_(scale).add_(bias)


@CODECS.register
@dataclass(frozen=True)
class SmallFloats:
    """Sends matrices as floats of 1 + exponent + mantissa bits."""

    exponent: int = 3  # bits; 3 and 7: 11 bits as in the paper, 3 and 4: 8 bits, 2 and 3: 6 bits
    mantissa: int = 4  # bits
    needs_memory: ClassVar[bool] = False
    suits_models: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not (1 <= self.exponent <= 6 and 1 <= self.mantissa <= 10):
            raise ValueError(
                "small floats have 1 to 6 bits of exponent and 1 to 10 of mantissa, "
                f"not {self.exponent} and {self.mantissa}"
            )

    def num_bytes(self, shape: Sequence[int]) -> int:
        """Return the bytes of a tensor before entropy coding."""
        return sum(np.dtype(kind).itemsize * number for kind, number in self.layout(shape))

    def layout(self, shape: Sequence[int]) -> Layout:
        size = math.prod(shape)
        if not is_short(shape) or not size:
            return ("<f4", size), ("u1", 0), ("u1", 0)
        heads, tails = (-(-size * bits // 8) for bits in (1 + self.exponent, self.mantissa))
        return ("<f4", 2), ("u1", heads), ("u1", tails)

    def encode(self, tensor: Tensor, seed: int, kept: Tensor | None) -> tuple[Parts, Tensor | None]:
        flat = tensor.float().flatten()
        if not is_short(tensor.shape) or not len(flat):
            return (flat.numpy(), np.empty(0, np.uint8), np.empty(0, np.uint8)), None
        found = rounded(in_units(flat[None]), self.exponent, self.mantissa)
        scale, bias = fitted(flat[None], found)
        codes = self._codes(found[0])
        low = codes & (2**self.mantissa - 1)
        transform = torch.cat([scale, bias]).flatten().numpy()
        return (
            transform,
            joined(codes >> self.mantissa, 1 + self.exponent),
            joined(low, self.mantissa),
        ), None

    def decode(self, parts: Parts, shape: Sequence[int], seed: int) -> Tensor:
        numbers, size = torch.from_numpy(parts[0]), math.prod(shape)
        if not bool(torch.isfinite(numbers).all()):
            raise ValueError("a number is not finite")
        if not is_short(shape) or not size:
            return numbers.view(tuple(shape))
        high = split(parts[1], 1 + self.exponent, size)
        units = self._units(high << self.mantissa | split(parts[2], self.mantissa, size))
        return units.mul_(numbers[0]).add_(numbers[1]).view(tuple(shape))

    def _codes(self, units: Tensor) -> np.ndarray:
        """Return small floats as whole numbers: sign, exponent, mantissa, from the highest bit."""
        exponents = _exponents(units, self.exponent)
        whole = torch.ldexp(units.abs(), self.mantissa - exponents).to(torch.int32)  # with the leading 1
        fields = exponents - (2 - 2**self.exponent)  # 0 for the two smallest, which have the same exponent
        signs = torch.signbit(units).to(torch.int32) << (self.exponent + self.mantissa)
        codes: np.ndarray = (signs + (fields << self.mantissa) + whole).numpy().astype(np.uint32)
        return codes

    def _units(self, codes: np.ndarray) -> Tensor:
        """Invert `_codes`."""
        numbers = torch.from_numpy(codes.astype(np.int32))
        size = self.exponent + self.mantissa
        fields = (numbers >> self.mantissa) & (2**self.exponent - 1)
        low = numbers & (2**self.mantissa - 1)
        whole = low + (fields > 0).int() * 2**self.mantissa
        units = torch.ldexp(whole.float(), fields.clamp(min=1) + (1 - 2**self.exponent) - self.mantissa)
        return torch.where((numbers >> size) > 0, -units, units)


def joined(codes: np.ndarray, bits: int) -> np.ndarray:
    """Return codes of some bits one after another, without gaps.

    >>> joined(np.array([1, 2, 3], dtype=np.uint32), bits=3)  # 001 010 011, and zeros
    array([ 41, 128], dtype=uint8)
    """
    shifts = np.arange(bits - 1, -1, -1, dtype=np.uint32)
    return np.packbits((codes[:, None] >> shifts & 1).astype(np.uint8))


def split(data: np.ndarray, bits: int, size: int) -> np.ndarray:
    """Invert `joined`."""
    places = np.unpackbits(data, count=size * bits).reshape(size, bits)
    shifts = np.arange(bits - 1, -1, -1, dtype=np.uint32)
    codes: np.ndarray = (places.astype(np.uint32) << shifts).sum(axis=1, dtype=np.uint32)
    return codes
