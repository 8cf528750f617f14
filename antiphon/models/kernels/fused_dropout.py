"""The hashed dropout of `noise` in one GPU kernel (Triton) and one pass over memory."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _mixed(bits, first: tl.constexpr, second: tl.constexpr):  # type: ignore[no-untyped-def]
    bits = (bits ^ ((bits >> 16) & 0xFFFF)) * first
    bits = (bits ^ ((bits >> 13) & 0x7FFFF)) * second
    return bits ^ ((bits >> 16) & 0xFFFF)


@triton.jit(do_not_specialize=["num_frames", "site"])
def _drop(  # type: ignore[no-untyped-def]
    values,  # no annotations: Triton would read them
    keys,
    out,
    num_frames,
    dim,
    site,
    threshold,
    scale,
    first: tl.constexpr,
    second: tl.constexpr,
    golden: tl.constexpr,
    width: tl.constexpr,
):
    row = tl.program_id(0)
    key = _mixed(tl.load(keys + row // num_frames) + site, first, second)
    key = _mixed(key + (row % num_frames + 1) * first, first, second)
    channel = tl.arange(0, width)
    bits = _mixed((channel + 1) * golden, first, second)
    keeps = (key ^ bits) * (key | 1) >= threshold
    place = row.to(tl.int64) * dim + channel
    value = tl.load(values + place, mask=(channel < dim) & keeps, other=0.0)
    tl.store(out + place, value * scale, mask=channel < dim)


def drop(values: Tensor, keys: Tensor, site: int, rate: float, constants: tuple[int, int, int]) -> Tensor:
    """Apply dropout to values [..., T, dim] or [..., dim] of utterances with keys [...]."""
    values, keys = values.contiguous(), keys.contiguous()
    out, dim = torch.empty_like(values), values.shape[-1]
    num_rows = values.numel() // dim
    first, second, golden = constants
    _drop[(num_rows,)](
        *(values, keys, out, num_rows // keys.numel(), dim),
        *(site, int(rate * 2**32) - 2**31, 1 / (1 - rate)),
        **{"first": first, "second": second, "golden": golden},
        width=triton.next_power_of_2(dim),
    )
    return out
