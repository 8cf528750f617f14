"""GPU kernels (Triton) of what a Conformer block does to rows: biases, SiLU, dropout, residual sums.

Rows are frames, [S · R, dim] of S clients with R rows each; parameters are [S, dim]. PyTorch makes one pass
over memory for each operation; here there is one for all that lies between two matrix products, forward and
backward. A program has a block of one client's rows. Sums over rows (gradients of biases) are written for
each block, [S, blocks, dim], and added up in a fixed order: there are no atomic additions, and results are
the same in every run.

Kernel arguments have no annotations: Triton would read them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

ELEMENTS = 2048  # of a program's tile
COLUMNS = 256  # of a tile, where a program need not have the whole row
SUMMED = 32  # rows of a program that writes sums
WARPS = 4  # of such a program

VARYING = ["num_rows", "num_frames", "site"]  # from batch to batch: compiled once for all


@dataclass(frozen=True)
class Drop:
    """Hashed dropout of one site (`models.noise`): keys of the utterances [S · B] and frames of each."""

    keys: Tensor
    num_frames: int
    site: int
    rate: float
    constants: tuple[int, int, int]

    @property
    def arguments(self) -> tuple[object, ...]:
        threshold = int(self.rate * 2**32) - 2**31
        return self.keys, self.num_frames, self.site, threshold, 1 / (1 - self.rate), *self.constants


@triton.jit
def _mixed(bits, first: tl.constexpr, second: tl.constexpr):  # type: ignore[no-untyped-def]
    bits = (bits ^ ((bits >> 16) & 0xFFFF)) * first
    bits = (bits ^ ((bits >> 13) & 0x7FFFF)) * second
    return bits ^ ((bits >> 16) & 0xFFFF)


@triton.jit
def _stays(  # type: ignore[no-untyped-def]
    keys, row, inside, channel, num_frames, site, threshold, first, second, golden
):
    # Which values of a client's rows and channels dropout leaves; `keys` begins at the client's own.
    key = tl.load(keys + row // num_frames, mask=inside, other=0)
    key = _mixed(key + site, first, second)
    key = _mixed(key + (row % num_frames + 1) * first, first, second)
    bits = _mixed((channel + 1) * golden, first, second)
    return (key[:, None] ^ bits[None, :]) * (key | 1)[:, None] >= threshold


@triton.jit(do_not_specialize=VARYING)
def _activate(  # type: ignore[no-untyped-def]
    values,
    bias,
    between_biases,
    out,
    num_rows,
    dim,
    keys,
    num_frames,
    site,
    threshold,
    scale,
    first: tl.constexpr,
    second: tl.constexpr,
    golden: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
):
    client, row = tl.program_id(2).to(tl.int64), tl.program_id(0) * rows + tl.arange(0, rows)
    keys += client * (num_rows // num_frames)
    channel = tl.program_id(1) * columns + tl.arange(0, columns)
    inside, has_channel = row < num_rows, channel < dim
    place = (client * num_rows + row)[:, None] * dim + channel[None, :]
    mask = inside[:, None] & has_channel[None, :]
    stays = _stays(keys, row, inside, channel, num_frames, site, threshold, first, second, golden)
    value = tl.load(values + place, mask=mask, other=0.0).to(tl.float32)
    value += tl.load(bias + client * between_biases + channel, mask=has_channel, other=0.0)[None, :]
    tl.store(out + place, tl.where(stays, value * tl.sigmoid(value) * scale, 0.0), mask=mask)


def activate(values: Tensor, bias: Tensor, drop: Drop) -> Tensor:
    """Dropout of SiLU of rows plus biases."""
    out, (dim, num_clients) = torch.empty_like(values), (values.shape[1], bias.shape[0])
    num_rows, rows, columns = values.shape[0] // num_clients, *tile(min(dim, COLUMNS))
    grid = (ceil_div(num_rows, rows), ceil_div(dim, columns), num_clients)
    _activate[grid](values, *by_client(bias), out, num_rows, dim, *drop.arguments, rows, columns)
    return out


@triton.jit(do_not_specialize=VARYING)
def _add(  # type: ignore[no-untyped-def]
    values,
    bias,
    between_biases,
    past,
    out,
    num_rows,
    dim,
    share,
    keys,
    num_frames,
    site,
    threshold,
    scale,
    first: tl.constexpr,
    second: tl.constexpr,
    golden: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
):
    client, row = tl.program_id(2).to(tl.int64), tl.program_id(0) * rows + tl.arange(0, rows)
    keys += client * (num_rows // num_frames)
    channel = tl.program_id(1) * columns + tl.arange(0, columns)
    inside, has_channel = row < num_rows, channel < dim
    place = (client * num_rows + row)[:, None] * dim + channel[None, :]
    mask = inside[:, None] & has_channel[None, :]
    stays = _stays(keys, row, inside, channel, num_frames, site, threshold, first, second, golden)
    value = tl.load(values + place, mask=mask, other=0.0).to(tl.float32)
    value += tl.load(bias + client * between_biases + channel, mask=has_channel, other=0.0)[None, :]
    before = tl.load(past + place, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + place, before + tl.where(stays, value * (scale * share), 0.0), mask=mask)


def add(values: Tensor, bias: Tensor, past: Tensor, share: float, drop: Drop) -> Tensor:
    """`past` plus a share of the dropout of rows plus biases: the end of a branch of a residual network."""
    out, (dim, num_clients) = torch.empty_like(past), (values.shape[1], bias.shape[0])
    num_rows, rows, columns = values.shape[0] // num_clients, *tile(min(dim, COLUMNS))
    grid = (ceil_div(num_rows, rows), ceil_div(dim, columns), num_clients)
    _add[grid](values, *by_client(bias), past, out, num_rows, dim, share, *drop.arguments, rows, columns)
    return out


@triton.jit(do_not_specialize=VARYING)
def _row_gradient(  # type: ignore[no-untyped-def]
    upstream,
    values,
    bias,
    between_biases,
    out,
    sums,
    num_rows,
    dim,
    share,
    keys,
    num_frames,
    site,
    threshold,
    scale,
    first: tl.constexpr,
    second: tl.constexpr,
    golden: tl.constexpr,
    is_activated: tl.constexpr,
    rows: tl.constexpr,
    steps: tl.constexpr,
    columns: tl.constexpr,
):
    client, block = tl.program_id(2).to(tl.int64), tl.program_id(0)
    keys += client * (num_rows // num_frames)
    channel = tl.program_id(1) * columns + tl.arange(0, columns)
    has_channel = channel < dim
    if is_activated:
        added = tl.load(bias + client * between_biases + channel, mask=has_channel, other=0.0)
    total = tl.zeros((rows, columns), dtype=tl.float32)  # summed over rows once, at the end
    for step in range(steps):
        row = (block * steps + step) * rows + tl.arange(0, rows)
        inside = row < num_rows
        place = (client * num_rows + row)[:, None] * dim + channel[None, :]
        mask = inside[:, None] & has_channel[None, :]
        stays = _stays(keys, row, inside, channel, num_frames, site, threshold, first, second, golden)
        d_out = tl.load(upstream + place, mask=mask, other=0.0).to(tl.float32)
        d_out = tl.where(stays, d_out * (scale * share), 0.0)
        if is_activated:
            value = tl.load(values + place, mask=mask, other=0.0).to(tl.float32) + added[None, :]
            gate = tl.sigmoid(value)
            d_out = d_out * gate * (1 + value * (1 - gate))
        total += d_out
        tl.store(out + place, d_out, mask=mask)
    sums += (client * tl.num_programs(0) + block) * dim + channel
    tl.store(sums, tl.sum(total, axis=0), mask=has_channel)


def activate_gradient(upstream: Tensor, values: Tensor, bias: Tensor, drop: Drop) -> tuple[Tensor, Tensor]:
    """The gradient of rows by that of `activate`, and its sums [S, blocks, dim] for the biases."""
    return _gradient(upstream, values, bias, 1.0, drop, True, values.dtype)


def add_gradient(
    upstream: Tensor, num_clients: int, share: float, drop: Drop, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """The gradient of rows by that of `add`, and its sums [S, blocks, dim] for the biases."""
    no_bias = upstream.new_empty(num_clients, 1)
    return _gradient(upstream, upstream, no_bias, share, drop, False, dtype)


def _gradient(
    upstream: Tensor,
    values: Tensor,
    bias: Tensor,
    share: float,
    drop: Drop,
    activated: bool,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    out, (dim, num_clients) = torch.empty_like(upstream, dtype=dtype), (upstream.shape[1], bias.shape[0])
    num_rows, rows, columns = upstream.shape[0] // num_clients, *tile(min(dim, COLUMNS))
    steps = max(1, SUMMED // rows)
    blocks = ceil_div(num_rows, rows * steps)
    sums = upstream.new_empty(num_clients, blocks, dim, dtype=torch.float32)
    _row_gradient[(blocks, ceil_div(dim, columns), num_clients)](
        *(upstream, values, *by_client(bias), out, sums, num_rows, dim, share, *drop.arguments),
        *(activated, rows, steps, columns),
        num_warps=WARPS,
    )
    return out, sums


@triton.jit(do_not_specialize=["num_blocks"])
def _add_up(sums, out, num_blocks, between_sums, size, between, columns: tl.constexpr):  # type: ignore[no-untyped-def]
    client = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0) * columns + tl.arange(0, columns)
    total = tl.zeros((columns,), dtype=tl.float32)
    sums += client * between_sums + column
    for _ in range(num_blocks):
        total += tl.load(sums, mask=column < size, other=0.0)
        sums += size
    tl.store(out + client * between + column, total, mask=column < size)


def add_up(sums: Tensor, out: Tensor) -> None:
    """Write the sum of blocks [S, blocks, ...] to memory [S, ...], any distance apart."""
    num_clients, num_blocks = sums.shape[:2]
    size = sums.shape[2:].numel()
    grid = (ceil_div(size, COLUMNS), num_clients)
    _add_up[grid](sums, out, num_blocks, sums.stride(0), size, out.stride(0), COLUMNS)


def by_client(parameters: Tensor) -> tuple[Tensor, int]:
    """Parameters of clients [S, ...], and how far apart these are; those of one client lie side by side."""
    size = 1
    for length, step in zip(reversed(parameters.shape[1:]), reversed(parameters.stride()[1:]), strict=True):
        if length > 1 and step != size:
            parameters = parameters.contiguous()
            break
        size *= length
    return parameters, parameters.stride(0)


def ceil_div(number: int, size: int) -> int:
    """How many blocks of this size hold a number of things. Triton's own takes 20 times as long."""
    return -(-number // size)


def power_of_two(number: int) -> int:
    """The least power of two that is not less."""
    return 1 << (number - 1).bit_length()


def tile(dim: int) -> tuple[int, int]:
    """Rows and columns of a tile over `dim` columns, both powers of two."""
    width = power_of_two(dim)
    return max(1, min(SUMMED, ELEMENTS // width)), width
