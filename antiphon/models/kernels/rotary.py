"""GPU kernels (Triton) of self-attention with rotary positions: the products of one matrix in, one row out.

Queries, keys and values are read where the matrix product wrote them, [S · B · T, 3 · dim]; biases, rotation,
softmax and sums are in one kernel, so that no layout is copied (T. Dao, "FlashAttention-2", 2023). The
gradient computes the weights again from the logarithms of their sums, in a kernel for keys and values and one
for queries. A program has a block of one head's frames; nothing is shared between programs. See also
`kernels.rows`.

Kernel arguments have no annotations: Triton would read them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from antiphon.models.kernels.rows import by_client, ceil_div, power_of_two

FRAMES = 64  # of a block
WARPS = 8  # of a gradient's program

VARYING = ["num_frames", "num_utterances"]


@dataclass(frozen=True)
class Heads:
    """The shape of attention: lengths [S · B] of at least 1, angles [T, dim / heads / 2], number of heads."""

    lengths: Tensor
    angles: tuple[Tensor, ...]  # cosine and sine
    count: int

    @property
    def num_frames(self) -> int:
        return self.angles[0].shape[0]

    @property
    def half(self) -> int:
        return self.angles[0].shape[1]

    def arguments(self, num_clients: int, like: Tensor) -> tuple[object, ...]:
        """What kernels take: sizes, precision, and the block."""
        is_short = torch.backends.cuda.matmul.allow_tf32 or like.dtype != torch.float32
        precision = "tf32" if is_short else "tf32x3"  # three products of parts are as exact as float32
        width = max(16, power_of_two(self.half))
        sizes = self.num_frames, self.lengths.shape[0] // num_clients, self.count, self.half
        return *sizes, self.half**-0.5 * 2**-0.5, precision, width, FRAMES


@triton.jit
def _pair(place, bias, row, inside, between, channel, half: tl.constexpr):  # type: ignore[no-untyped-def]
    # The first and the second half of a head's values in a block of rows.
    has_channel = channel < half
    mask = inside[:, None] & has_channel[None, :]
    place += row[:, None] * between + channel[None, :]
    first = tl.load(place, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(place + half, mask=mask, other=0.0).to(tl.float32)
    first += tl.load(bias + channel, mask=has_channel, other=0.0)[None, :]
    second += tl.load(bias + half + channel, mask=has_channel, other=0.0)[None, :]
    return first, second


@triton.jit
def _angles(cosine, sine, row, inside, channel, half: tl.constexpr):  # type: ignore[no-untyped-def]
    mask = inside[:, None] & (channel < half)[None, :]
    place = row[:, None] * half + channel[None, :]
    return tl.load(cosine + place, mask=mask, other=0.0), tl.load(sine + place, mask=mask, other=0.0)


@triton.jit
def _turned(place, bias, cosine, sine, row, inside, between, channel, half: tl.constexpr):  # type: ignore[no-untyped-def]
    # Rotated queries or keys, in the numbers that products take.
    first, second = _pair(place, bias, row, inside, between, channel, half)
    cos, sin = _angles(cosine, sine, row, inside, channel, half)
    first, second = first * cos - second * sin, first * sin + second * cos
    return first.to(place.dtype.element_ty), second.to(place.dtype.element_ty)


@triton.jit
def _products(first, second, third, fourth, precision: tl.constexpr):  # type: ignore[no-untyped-def]
    # Scores of a block of rows and a block of others, from both halves.
    scores = tl.dot(first, tl.trans(third), input_precision=precision)
    return scores + tl.dot(second, tl.trans(fourth), input_precision=precision)


@triton.jit(do_not_specialize=VARYING)
def _attend(  # type: ignore[no-untyped-def]
    values,
    bias,
    between_biases,
    lengths,
    cosine,
    sine,
    out,
    sums,
    num_frames,
    num_utterances,
    num_heads: tl.constexpr,
    half: tl.constexpr,
    scale: tl.constexpr,
    precision: tl.constexpr,
    width: tl.constexpr,
    block: tl.constexpr,
):
    head, utterance = tl.program_id(1), tl.program_id(2).to(tl.int64)
    dim = num_heads * 2 * half
    length = tl.load(lengths + utterance).to(tl.int32)
    channel = tl.arange(0, width)
    values += utterance * num_frames * 3 * dim + head * 2 * half
    bias += utterance // num_utterances * between_biases + head * 2 * half
    query = tl.program_id(0) * block + tl.arange(0, block)
    inside = query < num_frames
    q1, q2 = _turned(values, bias, cosine, sine, query, inside, 3 * dim, channel, half)
    largest = tl.full((block,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((block,), dtype=tl.float32)
    out1 = tl.zeros((block, width), dtype=tl.float32)
    out2 = tl.zeros((block, width), dtype=tl.float32)
    for begin in range(0, length, block):
        key = begin + tl.arange(0, block)
        real = key < length
        k1, k2 = _turned(values + dim, bias + dim, cosine, sine, key, real, 3 * dim, channel, half)
        v1, v2 = _pair(values + 2 * dim, bias + 2 * dim, key, real, 3 * dim, channel, half)
        scores = tl.where(real[None, :], _products(q1, q2, k1, k2, precision) * scale, float("-inf"))
        before = largest
        largest = tl.maximum(before, tl.max(scores, axis=1))
        shrunk = tl.exp(before - largest)
        weights = tl.exp(scores - largest[:, None])
        total = total * shrunk + tl.sum(weights, axis=1)
        weights = weights.to(values.dtype.element_ty)
        out1 = out1 * shrunk[:, None] + tl.dot(
            weights, v1.to(values.dtype.element_ty), input_precision=precision
        )
        out2 = out2 * shrunk[:, None] + tl.dot(
            weights, v2.to(values.dtype.element_ty), input_precision=precision
        )
    place = out + (utterance * num_frames + query)[:, None] * dim + head * 2 * half + channel[None, :]
    mask = inside[:, None] & (channel < half)[None, :]
    tl.store(place, out1 / total[:, None], mask=mask)
    tl.store(place + half, out2 / total[:, None], mask=mask)
    tl.store(sums + (utterance * num_heads + head) * num_frames + query, largest + tl.log(total), mask=inside)


@triton.jit
def _upstream(d_out, out, row, inside, dim, channel, half: tl.constexpr):  # type: ignore[no-untyped-def]
    # Both halves of the gradient of a block's output, and its product with the output.
    mask = inside[:, None] & (channel < half)[None, :]
    place = row[:, None] * dim + channel[None, :]
    d1 = tl.load(d_out + place, mask=mask, other=0.0)
    d2 = tl.load(d_out + place + half, mask=mask, other=0.0)
    level = tl.sum(d1.to(tl.float32) * tl.load(out + place, mask=mask, other=0.0).to(tl.float32), axis=1)
    level += tl.sum(
        d2.to(tl.float32) * tl.load(out + place + half, mask=mask, other=0.0).to(tl.float32), axis=1
    )
    return d1, d2, level


@triton.jit
def _put(place, sums, d1, d2, row, inside, between, channel, half: tl.constexpr):  # type: ignore[no-untyped-def]
    # The gradient of both halves, and its sums over the block.
    has_channel = channel < half
    mask = inside[:, None] & has_channel[None, :]
    d1, d2 = tl.where(mask, d1, 0.0), tl.where(mask, d2, 0.0)
    place += row[:, None] * between + channel[None, :]
    tl.store(place, d1, mask=mask)
    tl.store(place + half, d2, mask=mask)
    tl.store(sums + channel, tl.sum(d1, axis=0), mask=has_channel)
    tl.store(sums + half + channel, tl.sum(d2, axis=0), mask=has_channel)


@triton.jit(do_not_specialize=VARYING)
def _key_gradient(  # type: ignore[no-untyped-def]
    d_out,
    out,
    logs,
    values,
    bias,
    between_biases,
    lengths,
    cosine,
    sine,
    d_values,
    sums,
    num_frames,
    num_utterances,
    num_heads: tl.constexpr,
    half: tl.constexpr,
    scale: tl.constexpr,
    precision: tl.constexpr,
    width: tl.constexpr,
    block: tl.constexpr,
):
    # Of keys and values.
    head, utterance = tl.program_id(1), tl.program_id(2).to(tl.int64)
    dim = num_heads * 2 * half
    length = tl.load(lengths + utterance).to(tl.int32)
    channel = tl.arange(0, width)
    place = utterance * num_frames * 3 * dim + head * 2 * half
    values += place
    d_values += place
    out += utterance * num_frames * dim + head * 2 * half
    d_out += utterance * num_frames * dim + head * 2 * half
    logs += (utterance * num_heads + head) * num_frames
    bias += utterance // num_utterances * between_biases + head * 2 * half
    sums += (utterance * tl.num_programs(0) + tl.program_id(0)) * 3 * dim + head * 2 * half

    own = tl.program_id(0) * block + tl.arange(0, block)
    inside, real = own < num_frames, own < length
    k1, k2 = _turned(values + dim, bias + dim, cosine, sine, own, inside, 3 * dim, channel, half)
    v1, v2 = _pair(values + 2 * dim, bias + 2 * dim, own, inside, 3 * dim, channel, half)
    v1, v2 = v1.to(values.dtype.element_ty), v2.to(values.dtype.element_ty)

    dk1 = tl.zeros((block, width), dtype=tl.float32)
    dk2 = tl.zeros((block, width), dtype=tl.float32)
    dv1 = tl.zeros((block, width), dtype=tl.float32)
    dv2 = tl.zeros((block, width), dtype=tl.float32)
    for begin in range(0, num_frames, block):
        other = begin + tl.arange(0, block)
        there = other < num_frames
        o1, o2 = _turned(values, bias, cosine, sine, other, there, 3 * dim, channel, half)
        d1, d2, level = _upstream(d_out, out, other, there, dim, channel, half)
        log = tl.load(logs + other, mask=there, other=0.0)
        weights = tl.exp(_products(k1, k2, o1, o2, precision) * scale - log[None, :])
        weights = tl.where(real[:, None] & there[None, :], weights, 0.0)
        dv1 += tl.dot(weights.to(values.dtype.element_ty), d1, input_precision=precision)
        dv2 += tl.dot(weights.to(values.dtype.element_ty), d2, input_precision=precision)
        d_scores = weights * (_products(v1, v2, d1, d2, precision) - level[None, :]) * scale
        dk1 += tl.dot(d_scores.to(values.dtype.element_ty), o1, input_precision=precision)
        dk2 += tl.dot(d_scores.to(values.dtype.element_ty), o2, input_precision=precision)
    _put(d_values + 2 * dim, sums + 2 * dim, dv1, dv2, own, inside, 3 * dim, channel, half)
    cos, sin = _angles(cosine, sine, own, inside, channel, half)
    back1, back2 = dk1 * cos + dk2 * sin, dk2 * cos - dk1 * sin
    _put(d_values + dim, sums + dim, back1, back2, own, inside, 3 * dim, channel, half)


@triton.jit(do_not_specialize=VARYING)
def _query_gradient(  # type: ignore[no-untyped-def]
    d_out,
    out,
    logs,
    values,
    bias,
    between_biases,
    lengths,
    cosine,
    sine,
    d_values,
    sums,
    num_frames,
    num_utterances,
    num_heads: tl.constexpr,
    half: tl.constexpr,
    scale: tl.constexpr,
    precision: tl.constexpr,
    width: tl.constexpr,
    block: tl.constexpr,
):
    head, utterance = tl.program_id(1), tl.program_id(2).to(tl.int64)
    dim = num_heads * 2 * half
    length = tl.load(lengths + utterance).to(tl.int32)
    channel = tl.arange(0, width)
    place = utterance * num_frames * 3 * dim + head * 2 * half
    values += place
    d_values += place
    out += utterance * num_frames * dim + head * 2 * half
    d_out += utterance * num_frames * dim + head * 2 * half
    logs += (utterance * num_heads + head) * num_frames
    bias += utterance // num_utterances * between_biases + head * 2 * half
    sums += (utterance * tl.num_programs(0) + tl.program_id(0)) * 3 * dim + head * 2 * half

    own = tl.program_id(0) * block + tl.arange(0, block)
    inside = own < num_frames
    q1, q2 = _turned(values, bias, cosine, sine, own, inside, 3 * dim, channel, half)
    d1, d2, level = _upstream(d_out, out, own, inside, dim, channel, half)
    log = tl.load(logs + own, mask=inside, other=0.0)
    dq1 = tl.zeros((block, width), dtype=tl.float32)
    dq2 = tl.zeros((block, width), dtype=tl.float32)
    for begin in range(0, length, block):
        other = begin + tl.arange(0, block)
        there = other < length
        o1, o2 = _turned(values + dim, bias + dim, cosine, sine, other, there, 3 * dim, channel, half)
        w1, w2 = _pair(values + 2 * dim, bias + 2 * dim, other, there, 3 * dim, channel, half)
        weights = tl.exp(_products(q1, q2, o1, o2, precision) * scale - log[:, None])
        weights = tl.where(there[None, :] & inside[:, None], weights, 0.0)
        d_scores = (
            _products(d1, d2, w1.to(values.dtype.element_ty), w2.to(values.dtype.element_ty), precision)
            - level[:, None]
        )
        d_scores = (weights * d_scores * scale).to(values.dtype.element_ty)
        dq1 += tl.dot(d_scores, o1, input_precision=precision)
        dq2 += tl.dot(d_scores, o2, input_precision=precision)
    cos, sin = _angles(cosine, sine, own, inside, channel, half)
    back1, back2 = dq1 * cos + dq2 * sin, dq2 * cos - dq1 * sin
    _put(d_values, sums, back1, back2, own, inside, 3 * dim, channel, half)


def attend(values: Tensor, bias: Tensor, heads: Heads) -> tuple[Tensor, Tensor]:
    """Products [S · B · T, 3 · dim] and biases [S, 3 · dim] -> attended [S · B · T, dim], and log sums."""
    out = values.new_empty(values.shape[0], values.shape[1] // 3)
    sums = values.new_empty(heads.lengths.shape[0], heads.count, heads.num_frames, dtype=torch.float32)
    arguments = heads.arguments(bias.shape[0], values)
    grid = (ceil_div(heads.num_frames, FRAMES), heads.count, heads.lengths.shape[0])
    _attend[grid](
        *(values, *by_client(bias), heads.lengths, *heads.angles, out, sums, *arguments),
        num_stages=1,
    )
    return out, sums


def attend_gradient(
    upstream: Tensor, attended: tuple[Tensor, Tensor], values: Tensor, bias: Tensor, heads: Heads
) -> tuple[Tensor, Tensor]:
    """The gradient of the products by that of the attended rows; sums [S, blocks, 3 · dim] for the biases."""
    arguments = heads.arguments(bias.shape[0], values)
    num_blocks = ceil_div(heads.num_frames, FRAMES)
    d_values = torch.empty_like(values)
    sums = values.new_empty(heads.lengths.shape[0] * num_blocks, values.shape[1], dtype=torch.float32)
    for kernel in (_key_gradient, _query_gradient):
        kernel[num_blocks, heads.count, heads.lengths.shape[0]](
            *(upstream, *attended, values, *by_client(bias), heads.lengths, *heads.angles),
            *(d_values, sums, *arguments),
            num_warps=WARPS,
            num_stages=1,
        )
    return d_values, sums.unflatten(0, (bias.shape[0], -1))
