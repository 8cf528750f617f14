"""Dropout by hashing in one pass over memory, for GPUs (Triton): the same as `noise` computes in five."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _kept(  # type: ignore[no-untyped-def]
    values,  # Triton reads annotations: only its own may stand here
    rows,
    out,
    dim,
    threshold,
    scale,
    first: tl.constexpr,
    second: tl.constexpr,
    golden: tl.constexpr,
    width: tl.constexpr,
):
    row = tl.program_id(0)
    channel = tl.arange(0, width)
    bits = (channel + 1) * golden
    bits = (bits ^ ((bits >> 16) & 0xFFFF)) * first
    bits = (bits ^ ((bits >> 13) & 0x7FFFF)) * second
    bits = bits ^ ((bits >> 16) & 0xFFFF)
    key = tl.load(rows + row)
    keeps = (key ^ bits) * (key | 1) >= threshold
    place = row.to(tl.int64) * dim + channel
    value = tl.load(values + place, mask=(channel < dim) & keeps, other=0.0)
    tl.store(out + place, value * scale, mask=channel < dim)


def kept(values: Tensor, rows: Tensor, rate: float, constants: tuple[int, int, int]) -> Tensor:
    """Values [..., dim] and row bits [...]: see `noise.Kept`."""
    values, rows = values.contiguous(), rows.contiguous()
    out, dim = torch.empty_like(values), values.shape[-1]
    first, second, golden = constants
    _kept[(rows.numel(),)](
        *(values, rows, out, dim, int(rate * 2**32) - 2**31, 1 / (1 - rate)),
        first=first,
        second=second,
        golden=golden,
        width=triton.next_power_of_2(dim),
    )
    return out
