"""GPU kernels (Triton) of one step of location-aware attention and its gradient (`models.attention_steps`).

PyTorch takes a dozen kernels, some of them products of a matrix and a vector for every row. Here a step is
two kernels, and the gradient two more: first what every frame computes by itself, then what needs the softmax
over all frames. A program has a block of one row's frames, or of its context; nothing is shared between
programs, so sums have one order and results are the same in every run.

Kernel arguments have no annotations: Triton would read them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

FRAMES = 32  # of a program
GRADIENT_FRAMES = 16  # with more, the registers of a program would not do
CHANNELS = 128  # that are loaded at once
NUM_WARPS = 4

Memory = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]  # frames, keys, mask (int8), filters, energy
# From batch to batch, and from token to token: compiled once for all.
VARYING = ["num_frames", "num_texts", "num_rows", "between_before", "between_weights"]
UNALIGNED = ["before", "weights"]


@triton.jit
def _tanh(values):  # type: ignore[no-untyped-def]
    return 2 * tl.sigmoid(2 * values) - 1


@triton.jit
def _summed(  # type: ignore[no-untyped-def]
    keys, query, before, filters, num_frames, size, frame, channel, width: tl.constexpr
):
    # Key, query and location of a block of frames and channels; pointers begin at the row's own.
    has_frame, has_channel = frame < num_frames, channel < size
    place = keys + frame[:, None] * size + channel[None, :]
    summed = tl.load(place, mask=has_frame[:, None] & has_channel[None, :], other=0.0).to(tl.float32)
    summed += tl.load(query + channel, mask=has_channel, other=0.0)[None, :]
    for tap in range(width):
        other = frame + tap - width // 2
        weight = tl.load(before + other, mask=(other >= 0) & (other < num_frames), other=0.0)
        factor = tl.load(filters + tap * size + channel, mask=has_channel, other=0.0)
        summed += weight[:, None] * factor[None, :]
    return summed


@triton.jit(do_not_specialize=VARYING, do_not_specialize_on_alignment=UNALIGNED)
def _energies(  # type: ignore[no-untyped-def]
    keys,
    mask,
    filters,
    energy,
    queries,
    between_queries,
    before,
    between_before,
    energies,
    num_frames,
    num_texts,
    num_rows,
    size,
    width: tl.constexpr,
    frames: tl.constexpr,
    channels: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    utterance, client = row // num_texts, row // num_rows
    frame = tl.program_id(1) * frames + tl.arange(0, frames)
    total = tl.zeros((frames,), dtype=tl.float32)
    for begin in range(0, size, channels):
        channel = begin + tl.arange(0, channels)
        summed = _summed(
            *(keys + utterance * num_frames * size, queries + row * between_queries),
            *(before + row * between_before, filters + client * width * size),
            *(num_frames, size, frame, channel, width),
        )
        factor = tl.load(energy + client * size + channel, mask=channel < size, other=0.0)
        total += tl.sum(_tanh(summed) * factor[None, :], axis=1)
    is_real = tl.load(mask + utterance * num_frames + frame, mask=frame < num_frames, other=0)
    total = tl.where(is_real != 0, total, float("-inf"))
    tl.store(energies + row * num_frames + frame, total, mask=frame < num_frames)


@triton.jit(do_not_specialize=VARYING, do_not_specialize_on_alignment=UNALIGNED)
def _contexts(  # type: ignore[no-untyped-def]
    energies,
    memory,
    weights,
    between_weights,
    contexts,
    between_contexts,
    num_frames,
    num_texts,
    dim,
    all_frames: tl.constexpr,
    frames: tl.constexpr,
    channels: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    energies += row * num_frames
    frame = tl.arange(0, all_frames)
    energy = tl.load(energies + frame, mask=frame < num_frames, other=float("-inf"))
    largest = tl.max(energy, axis=0)
    weight = tl.exp(energy - largest)
    total = tl.sum(weight, axis=0)
    if tl.program_id(1) == 0:
        tl.store(weights + row * between_weights + frame, weight / total, mask=frame < num_frames)
    channel = tl.program_id(1) * channels + tl.arange(0, channels)
    memory += (row // num_texts) * num_frames * dim
    context = tl.zeros((frames, channels), dtype=tl.float32)
    for begin in range(0, num_frames, frames):
        some = begin + tl.arange(0, frames)
        part = tl.load(energies + some, mask=some < num_frames, other=float("-inf"))
        part = tl.exp(part - largest) / total
        real = (some < num_frames)[:, None] & (channel < dim)[None, :]
        values = tl.load(memory + some[:, None] * dim + channel[None, :], mask=real, other=0.0)
        context += part[:, None] * values
    place = contexts + row * between_contexts + channel
    tl.store(place, tl.sum(context, axis=0), mask=channel < dim)


@triton.jit(do_not_specialize=VARYING, do_not_specialize_on_alignment=UNALIGNED)
def _weight_gradients(  # type: ignore[no-untyped-def]
    memory,
    d_contexts,
    between_contexts,
    d_taps,
    d_weights,
    num_frames,
    num_texts,
    dim,
    width: tl.constexpr,
    has_taps: tl.constexpr,
    taps: tl.constexpr,
    frames: tl.constexpr,
    channels: tl.constexpr,
):
    # From the context, and from the location of the token after, which looked at a weight through its taps.
    row = tl.program_id(0).to(tl.int64)
    frame = tl.program_id(1) * frames + tl.arange(0, frames)
    memory += (row // num_texts) * num_frames * dim
    total = tl.zeros((frames, channels), dtype=tl.float32)
    for begin in range(0, dim, channels):
        channel = begin + tl.arange(0, channels)
        real = (frame < num_frames)[:, None] & (channel < dim)[None, :]
        values = tl.load(memory + frame[:, None] * dim + channel[None, :], mask=real, other=0.0)
        factor = tl.load(d_contexts + row * between_contexts + channel, mask=channel < dim, other=0.0)
        total += values * factor[None, :]
    result = tl.sum(total, axis=1)
    if has_taps:
        tap = tl.arange(0, taps)[None, :]
        looking = frame[:, None] - tap + width // 2
        inside = (tap < width) & (looking >= 0) & (looking < num_frames)
        place = d_taps + (row * num_frames + looking) * width + tap
        result += tl.sum(tl.load(place, mask=inside, other=0.0), axis=1)
    tl.store(d_weights + row * num_frames + frame, result, mask=frame < num_frames)


@triton.jit(do_not_specialize=VARYING, do_not_specialize_on_alignment=UNALIGNED)
def _energy_gradients(  # type: ignore[no-untyped-def]
    keys,
    filters,
    energy,
    queries,
    between_queries,
    before,
    between_before,
    weights,
    between_weights,
    d_weights,
    d_summed,
    between_summed,
    d_queries,
    d_energy,
    d_taps,
    num_frames,
    num_texts,
    num_rows,
    size,
    width: tl.constexpr,
    all_frames: tl.constexpr,
    taps: tl.constexpr,
    frames: tl.constexpr,
    channels: tl.constexpr,
):
    # d_queries and d_energy have a part for every program: [rows, blocks, size].
    row = tl.program_id(0).to(tl.int64)
    utterance, client = row // num_texts, row // num_rows
    block = row * tl.num_programs(1) + tl.program_id(1)
    weights += row * between_weights
    d_weights += row * num_frames
    frame = tl.arange(0, all_frames)
    weight = tl.load(weights + frame, mask=frame < num_frames, other=0.0)
    mean = tl.sum(weight * tl.load(d_weights + frame, mask=frame < num_frames, other=0.0), axis=0)
    frame = tl.program_id(1) * frames + tl.arange(0, frames)
    weight = tl.load(weights + frame, mask=frame < num_frames, other=0.0)
    d_frame = weight * (tl.load(d_weights + frame, mask=frame < num_frames, other=0.0) - mean)
    filters += client * width * size
    tap = tl.arange(0, taps)
    of_taps = tl.zeros((frames, taps), dtype=tl.float32)
    for begin in range(0, size, channels):
        channel = begin + tl.arange(0, channels)
        has_channel = channel < size
        squashed = _tanh(
            _summed(
                *(keys + utterance * num_frames * size, queries + row * between_queries),
                *(before + row * between_before, filters, num_frames, size, frame, channel, width),
            )
        )
        factor = tl.load(energy + client * size + channel, mask=has_channel, other=0.0)
        gradient = d_frame[:, None] * factor[None, :] * (1 - squashed * squashed)
        real = (frame < num_frames)[:, None] & has_channel[None, :]
        place = d_summed + row * between_summed + frame[:, None] * size + channel[None, :]
        tl.store(place, gradient, mask=real)
        tl.store(d_queries + block * size + channel, tl.sum(gradient, axis=0), mask=has_channel)
        place = d_energy + block * size + channel  # the sum over all tokens
        sums = tl.load(place, mask=has_channel, other=0.0) + tl.sum(d_frame[:, None] * squashed, axis=0)
        tl.store(place, sums, mask=has_channel)
        inside = has_channel[:, None] & (tap < width)[None, :]
        factors = tl.load(filters + tap[None, :] * size + channel[:, None], mask=inside, other=0.0)
        of_taps = tl.dot(gradient, factors, of_taps, input_precision="tf32x3")
    place = d_taps + (row * num_frames + frame[:, None]) * width + tap[None, :]
    tl.store(place, of_taps, mask=(frame < num_frames)[:, None] & (tap < width)[None, :])


def attend(
    memory: Memory,
    query: Tensor,
    before: Tensor,
    out: tuple[Tensor, Tensor],
) -> None:
    """See `attention_steps.Heard.attend`."""
    frames, keys, mask, filters, energy = memory
    weights, contexts = out
    num_rows, num_frames, dim = len(query), *frames.shape[1:]
    sizes = num_frames, num_rows // len(frames)
    energies = query.new_empty(num_rows, num_frames)
    _energies[num_rows, triton.cdiv(num_frames, FRAMES)](
        *(keys, mask, filters, energy, query, query.stride(0), before, before.stride(0), energies),
        *(*sizes, num_rows // len(energy), keys.shape[2], filters.shape[1]),
        *(FRAMES, _channels(keys.shape[2])),
        num_warps=NUM_WARPS,
    )
    _contexts[num_rows, triton.cdiv(dim, _channels(dim))](
        *(energies, frames, weights, weights.stride(0), contexts, contexts.stride(0)),
        *(*sizes, dim, triton.next_power_of_2(num_frames), FRAMES, _channels(dim)),
        num_warps=NUM_WARPS,
    )


def weight_gradients(frames: Tensor, d_context: Tensor, d_taps: Tensor | None, width: int) -> Tensor:
    """The gradient of the attention [rows, T], of the context and of the taps of the token after, if any."""
    num_rows, num_frames, dim = len(d_context), *frames.shape[1:]
    d_weights = d_context.new_empty(num_rows, num_frames)
    _weight_gradients[num_rows, triton.cdiv(num_frames, FRAMES)](
        *(frames, d_context, d_context.stride(0), d_weights if d_taps is None else d_taps, d_weights),
        *(num_frames, num_rows // len(frames), dim, width, d_taps is not None),
        *(_taps(width), FRAMES, _channels(dim)),
        num_warps=NUM_WARPS,
    )
    return d_weights


def energy_gradients(
    memory: Memory,
    step: tuple[Tensor, Tensor, Tensor],
    d_weights: Tensor,
    d_energy: Tensor,
    out: tuple[Tensor, Tensor, Tensor],
) -> None:
    """Step: query, weights before and after; out: gradients of the sum, of the query, and of the taps."""
    frames, keys, _, filters, energy = memory
    query, before, weights = step
    d_summed, d_query, d_taps = out
    num_rows, num_frames, size = len(query), *keys.shape[1:]
    parts = torch.empty_like(d_energy)
    _energy_gradients[num_rows, d_energy.shape[1]](
        *(keys, filters, energy, query, query.stride(0), before, before.stride(0)),
        *(weights, weights.stride(0), d_weights, d_summed, d_summed.stride(0), parts, d_energy, d_taps),
        *(num_frames, num_rows // len(frames), num_rows // len(energy), size, filters.shape[1]),
        *(triton.next_power_of_2(num_frames), _taps(filters.shape[1])),
        *(GRADIENT_FRAMES, _channels(size)),
        num_warps=NUM_WARPS,
    )
    d_query.copy_(parts.sum(dim=1))


def num_blocks(num_frames: int) -> int:
    """How many programs share the frames of a row."""
    return int(triton.cdiv(num_frames, GRADIENT_FRAMES))


def _channels(size: int) -> int:
    return min(CHANNELS, max(16, int(triton.next_power_of_2(size))))


def _taps(width: int) -> int:
    return max(16, int(triton.next_power_of_2(width)))
