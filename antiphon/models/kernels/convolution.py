"""GPU kernels (Triton) of a Conformer's convolution: a gate, a depthwise convolution, LayerNorm and SiLU.

Forward, the gate is one kernel, and all that follows it another. Backward, LayerNorm and SiLU are in
`kernels.norms`; one kernel computes the rest: the gradients of gated values, gate, weights and biases.
Clients have weights [S, dim, taps] of their own. There are no atomic additions; see `kernels.rows`.

Kernel arguments have no annotations: Triton would read them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from antiphon.models.kernels.rows import by_client, ceil_div, power_of_two

ELEMENTS = 2048  # of the tile of a forward program
FRAMES, CHANNELS, WARPS = 128, 32, 8  # of a gradient's program

VARYING = ["num_frames", "num_utterances"]


@triton.jit(do_not_specialize=VARYING)
def _gate(  # type: ignore[no-untyped-def]
    values,
    bias,
    between_biases,
    lengths,
    out,
    num_frames,
    num_utterances,
    dim,
    rows: tl.constexpr,
    columns: tl.constexpr,
):
    utterance = tl.program_id(1).to(tl.int64)
    client, frame = utterance // num_utterances, tl.program_id(0) * rows + tl.arange(0, rows)
    channel = tl.arange(0, columns)
    mask = (frame < num_frames)[:, None] & (channel < dim)[None, :]
    real = mask & (frame < tl.load(lengths + utterance))[:, None]
    row = utterance * num_frames + frame
    place = values + row[:, None] * 2 * dim + channel[None, :]
    bias += client * between_biases + channel
    value = tl.load(place, mask=real, other=0.0).to(tl.float32)
    value += tl.load(bias, mask=channel < dim, other=0.0)[None, :]
    gate = tl.load(place + dim, mask=real, other=0.0).to(tl.float32)
    gate += tl.load(bias + dim, mask=channel < dim, other=0.0)[None, :]
    gated = tl.where(real, value * tl.sigmoid(gate), 0.0)
    tl.store(out + row[:, None] * dim + channel[None, :], gated, mask=mask)


@triton.jit(do_not_specialize=VARYING)
def _convolve(  # type: ignore[no-untyped-def]
    gated,
    weight,
    between_weights,
    bias,
    between_biases,
    norm_weight,
    between_norm_weights,
    norm_bias,
    between_norm_biases,
    mixed,
    means,
    scales,
    out,
    num_frames,
    num_utterances,
    dim,
    eps,
    taps: tl.constexpr,
    rows: tl.constexpr,
    width: tl.constexpr,
):
    utterance = tl.program_id(1).to(tl.int64)
    client, frame = utterance // num_utterances, tl.program_id(0) * rows + tl.arange(0, rows)
    channel = tl.arange(0, width)
    has_channel = channel < dim
    mask = (frame < num_frames)[:, None] & has_channel[None, :]
    begin = gated + utterance * num_frames * dim + channel[None, :]
    weight += client * between_weights + channel * taps
    added = tl.load(bias + client * between_biases + channel, mask=has_channel, other=0.0)
    value = tl.zeros((rows, width), dtype=tl.float32) + added[None, :]
    for tap in range(taps):
        other = frame + tap - taps // 2
        inside = ((other >= 0) & (other < num_frames))[:, None] & has_channel[None, :]
        factor = tl.load(weight + tap, mask=has_channel, other=0.0)
        value += (
            tl.load(begin + other[:, None] * dim, mask=inside, other=0.0).to(tl.float32) * factor[None, :]
        )
    row = utterance * num_frames + frame
    place = row[:, None] * dim + channel[None, :]
    tl.store(mixed + place, value, mask=mask)
    mean = tl.sum(tl.where(mask, value, 0.0), axis=1) / dim
    value = tl.where(mask, value - mean[:, None], 0.0)
    scale = 1 / tl.sqrt(tl.sum(value * value, axis=1) / dim + eps)
    tl.store(means + row, mean, mask=frame < num_frames)
    tl.store(scales + row, scale, mask=frame < num_frames)
    factor = tl.load(norm_weight + client * between_norm_weights + channel, mask=has_channel, other=0.0)
    added = tl.load(norm_bias + client * between_norm_biases + channel, mask=has_channel, other=0.0)
    value = value * scale[:, None] * factor[None, :] + added[None, :]
    tl.store(out + place, value * tl.sigmoid(value), mask=mask)


def gate(values: Tensor, bias: Tensor, lengths: Tensor, num_frames: int) -> Tensor:
    """Values [S · B · T, 2 · dim], biases [S, 2 · dim] -> gated values [S · B · T, dim], zero in padding."""
    dim = values.shape[1] // 2
    out = values.new_empty(values.shape[0], dim)
    columns = power_of_two(dim)
    rows = max(1, ELEMENTS // columns)
    grid = (ceil_div(num_frames, rows), lengths.shape[0])
    num_utterances = lengths.shape[0] // bias.shape[0]
    _gate[grid](
        *(values, *by_client(bias), lengths, out, num_frames, num_utterances, dim, rows, columns),
    )
    return out


def convolve(
    gated: Tensor, parameters: Sequence[Tensor], num_frames: int, eps: float
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """Convolution, LayerNorm and SiLU of gated rows; also the rows between, their means and deviations.

    parameters: weight [S, dim, taps] and bias [S, dim] of the convolution, and those of the LayerNorm.
    """
    dim, taps, num_clients = gated.shape[1], parameters[0].shape[-1], parameters[0].shape[0]
    num_utterances = gated.shape[0] // num_frames
    mixed, out = torch.empty_like(gated), torch.empty_like(gated)
    means, scales = gated.new_empty(2, gated.shape[0], dtype=torch.float32)
    width = power_of_two(dim)
    rows = max(1, ELEMENTS // width)
    _convolve[ceil_div(num_frames, rows), num_utterances](
        gated,
        *(argument for parameter in parameters for argument in by_client(parameter)),
        *(mixed, means, scales, out, num_frames, num_utterances // num_clients, dim, eps),
        *(taps, rows, width),
    )
    return out, (mixed, means, scales)


@triton.jit(do_not_specialize=VARYING)
def _gradient(  # type: ignore[no-untyped-def]
    upstream,
    values,
    bias,
    between_biases,
    weight,
    between_weights,
    lengths,
    out,
    gate_sums,
    tap_sums,
    num_frames,
    num_utterances,
    dim,
    taps: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
):
    utterance = tl.program_id(2).to(tl.int64)
    client, frame = utterance // num_utterances, tl.program_id(0) * rows + tl.arange(0, rows)
    channel = tl.program_id(1) * columns + tl.arange(0, columns)
    has_channel = channel < dim
    mask = (frame < num_frames)[:, None] & has_channel[None, :]
    real = mask & (frame < tl.load(lengths + utterance))[:, None]
    row = utterance * num_frames + frame
    place = row[:, None] * 2 * dim + channel[None, :]
    bias += client * between_biases + channel
    value = tl.load(values + place, mask=real, other=0.0).to(tl.float32)
    value += tl.load(bias, mask=has_channel, other=0.0)[None, :]
    gate = tl.load(values + place + dim, mask=real, other=0.0).to(tl.float32)
    gate = tl.sigmoid(gate + tl.load(bias + dim, mask=has_channel, other=0.0)[None, :])
    gated = tl.where(real, value * gate, 0.0)
    begin = upstream + utterance * num_frames * dim + channel[None, :]
    weight += client * between_weights + channel * taps
    block = utterance * tl.num_programs(0) + tl.program_id(0)
    d_gated = tl.zeros((rows, columns), dtype=tl.float32)
    for tap in range(taps):
        other = frame - tap + taps // 2
        inside = ((other >= 0) & (other < num_frames))[:, None] & has_channel[None, :]
        d_mixed = tl.load(begin + other[:, None] * dim, mask=inside, other=0.0).to(tl.float32)
        factor = tl.load(weight + tap, mask=has_channel, other=0.0)
        d_gated += d_mixed * factor[None, :]
        sums = tap_sums + (block * dim + channel) * taps + tap
        tl.store(sums, tl.sum(d_mixed * gated, axis=0), mask=has_channel)
    d_value = tl.where(real, d_gated * gate, 0.0)
    d_gate = tl.where(real, d_gated * value * gate * (1 - gate), 0.0)
    tl.store(out + place, d_value, mask=mask)
    tl.store(out + place + dim, d_gate, mask=mask)
    gate_sums += block * 2 * dim + channel
    tl.store(gate_sums, tl.sum(d_value, axis=0), mask=has_channel)
    tl.store(gate_sums + dim, tl.sum(d_gate, axis=0), mask=has_channel)


def convolve_gradient(
    upstream: Tensor, values: Tensor, bias: Tensor, weight: Tensor, lengths: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradient of the values of `gate` by that of the convolved rows, and sums for its parameters.

    Sums for the biases of the gate [S, blocks, 2 · dim], and for the taps [S, blocks, dim, taps].
    """
    dim, taps, num_clients, num_utterances = (
        upstream.shape[1],
        weight.shape[-1],
        weight.shape[0],
        lengths.shape[0],
    )
    num_frames = upstream.shape[0] // num_utterances
    rows = min(FRAMES, power_of_two(num_frames))
    columns = min(CHANNELS, power_of_two(dim))
    blocks = ceil_div(num_frames, rows)
    out = torch.empty_like(values)
    gate_sums = upstream.new_empty(num_utterances * blocks, 2 * dim, dtype=torch.float32)
    tap_sums = upstream.new_empty(num_utterances * blocks, dim, taps, dtype=torch.float32)
    _gradient[blocks, ceil_div(dim, columns), num_utterances](
        *(upstream, values, *by_client(bias), *by_client(weight), lengths, out, gate_sums, tap_sums),
        *(num_frames, num_utterances // num_clients, dim, taps, rows, columns),
        num_warps=WARPS,
    )
    return out, gate_sums.unflatten(0, (num_clients, -1)), tap_sums.unflatten(0, (num_clients, -1))
