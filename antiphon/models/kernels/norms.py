"""GPU kernels (Triton) of LayerNorm for many clients, and its gradient, with what lies around it.

SiLU may follow; the gradient of a residual branch joins the one that went past it. See `kernels.rows`.

Kernel arguments have no annotations: Triton would read them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from antiphon.models.kernels.rows import SUMMED, by_client, ceil_div, tile

WARPS = 4  # of a program that writes sums


@triton.jit(do_not_specialize=["num_rows"])
def _norm(  # type: ignore[no-untyped-def]
    values,
    weight,
    between_weights,
    bias,
    between_biases,
    out,
    means,
    scales,
    num_rows,
    dim,
    eps,
    rows: tl.constexpr,
    width: tl.constexpr,
):
    client, row = tl.program_id(1).to(tl.int64), tl.program_id(0) * rows + tl.arange(0, rows)
    channel = tl.arange(0, width)
    inside, has_channel = row < num_rows, channel < dim
    row = client * num_rows + row
    place, mask = row[:, None] * dim + channel[None, :], inside[:, None] & has_channel[None, :]
    value = tl.load(values + place, mask=mask, other=0.0).to(tl.float32)
    mean = tl.sum(value, axis=1) / dim
    value = tl.where(mask, value - mean[:, None], 0.0)
    scale = 1 / tl.sqrt(tl.sum(value * value, axis=1) / dim + eps)
    factor = tl.load(weight + client * between_weights + channel, mask=has_channel, other=0.0)
    added = tl.load(bias + client * between_biases + channel, mask=has_channel, other=0.0)
    tl.store(out + place, value * scale[:, None] * factor[None, :] + added[None, :], mask=mask)
    tl.store(means + row, mean, mask=inside)
    tl.store(scales + row, scale, mask=inside)


def norm(values: Tensor, weight: Tensor, bias: Tensor, eps: float, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """LayerNorm of rows [S · R, dim] by parameters [S, dim]; also the rows' means and 1 / deviations."""
    dim, num_clients = values.shape[1], weight.shape[0]
    num_rows, rows, width = values.shape[0] // num_clients, *tile(dim)
    out = torch.empty_like(values, dtype=dtype)
    means, scales = values.new_empty(2, values.shape[0], dtype=torch.float32)
    _norm[(ceil_div(num_rows, rows), num_clients)](
        values, *by_client(weight), *by_client(bias), out, means, scales, num_rows, dim, eps, rows, width
    )
    return out, means, scales


@triton.jit(do_not_specialize=["num_rows"])
def _norm_gradient(  # type: ignore[no-untyped-def]
    upstream,
    values,
    means,
    scales,
    weight,
    between_weights,
    bias,
    between_biases,
    past,
    out,
    sums,
    num_rows,
    dim,
    is_activated: tl.constexpr,
    has_past: tl.constexpr,
    num_sums: tl.constexpr,
    rows: tl.constexpr,
    steps: tl.constexpr,
    width: tl.constexpr,
):
    # SiLU may follow the LayerNorm. `past` is the gradient that went past both.
    client, block = tl.program_id(1).to(tl.int64), tl.program_id(0)
    channel = tl.arange(0, width)
    has_channel = channel < dim
    factor = tl.load(weight + client * between_weights + channel, mask=has_channel, other=0.0)
    added = tl.load(bias + client * between_biases + channel, mask=has_channel, other=0.0)
    # Summed over rows once, at the end.
    d_weight = tl.zeros((rows, width), dtype=tl.float32)
    d_bias = tl.zeros((rows, width), dtype=tl.float32)
    if num_sums == 3:
        total = tl.zeros((rows, width), dtype=tl.float32)
    for step in range(steps):
        row = (block * steps + step) * rows + tl.arange(0, rows)
        inside = row < num_rows
        row = client * num_rows + row
        place, mask = row[:, None] * dim + channel[None, :], inside[:, None] & has_channel[None, :]
        mean = tl.load(means + row, mask=inside, other=0.0)
        scale = tl.load(scales + row, mask=inside, other=0.0)
        value = tl.load(values + place, mask=mask, other=0.0).to(tl.float32)
        value = tl.where(mask, (value - mean[:, None]) * scale[:, None], 0.0)
        d_out = tl.load(upstream + place, mask=mask, other=0.0).to(tl.float32)
        if is_activated:
            normed = value * factor[None, :] + added[None, :]
            gate = tl.sigmoid(normed)
            d_out = d_out * gate * (1 + normed * (1 - gate))
        d_weight += d_out * value
        d_bias += d_out
        d_out = d_out * factor[None, :]
        along = tl.sum(d_out * value, axis=1) / dim
        level = tl.sum(d_out, axis=1) / dim
        d_value = tl.where(mask, (d_out - level[:, None] - value * along[:, None]) * scale[:, None], 0.0)
        if num_sums == 3:
            total += d_value
        if has_past:
            d_value += tl.load(past + place, mask=mask, other=0.0).to(tl.float32)
        tl.store(out + place, d_value, mask=mask)
    sums += ((client * num_sums) * tl.num_programs(0) + block) * dim + channel
    tl.store(sums, tl.sum(d_weight, axis=0), mask=has_channel)
    tl.store(sums + tl.num_programs(0) * dim, tl.sum(d_bias, axis=0), mask=has_channel)
    if num_sums == 3:
        tl.store(sums + 2 * tl.num_programs(0) * dim, tl.sum(total, axis=0), mask=has_channel)


def norm_gradient(
    upstream: Tensor,
    normed: tuple[Tensor, Tensor, Tensor],
    weight: Tensor,
    bias: Tensor,
    past: Tensor | None = None,
    activated: bool = False,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor]:
    """The gradient of rows, and sums [S, 2 or 3, blocks, dim] for weights and biases.

    `normed` holds the rows and their means and inverse deviations. `activated`: SiLU follows, and the third
    sum is that of the gradient of the rows.
    """
    values, means, scales = normed
    dim, num_clients = values.shape[1], weight.shape[0]
    num_rows, rows, width = values.shape[0] // num_clients, *tile(dim)
    steps = max(1, SUMMED // rows)
    blocks, num_sums = ceil_div(num_rows, rows * steps), 3 if activated else 2
    out = torch.empty_like(values, dtype=dtype)
    sums = values.new_empty(num_clients, num_sums, blocks, dim, dtype=torch.float32)
    _norm_gradient[(blocks, num_clients)](
        *(upstream, values, means, scales, *by_client(weight), *by_client(bias)),
        *(upstream if past is None else past, out, sums),
        *(num_rows, dim, activated, past is not None, num_sums, rows, steps, width),
        num_warps=WARPS,
    )
    return out, sums
