"""GPU kernels (Triton): both recursions of the CTC loss (`models.ctc`), and hashed dropout (`models.noise`).

PyTorch runs one recursion of CTC after the other, and first copies the lengths from the GPU. Dropout here is
one pass over memory. Kernel arguments have no annotations: Triton would read them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _log_sum(first, second, third):  # type: ignore[no-untyped-def]
    largest = tl.maximum(tl.maximum(first, second), third)
    base = tl.where(largest == float("-inf"), 0.0, largest)
    return base + tl.log(tl.exp(first - base) + tl.exp(second - base) + tl.exp(third - base))


@triton.jit(do_not_specialize=["num_frames", "num_states"])
def _recursions(  # type: ignore[no-untyped-def]
    log_probs,
    labels,
    lengths,
    label_lengths,
    alpha,
    beta,
    losses,
    num_frames,
    num_states,
    num_tokens,
    width: tl.constexpr,
):
    # One utterance, forward (the first of its two programs) or backward. Other threads write the states that
    # a thread reads: hence the barriers.
    row = tl.program_id(0).to(tl.int64)
    length, num_labels = tl.load(lengths + row), tl.load(label_lengths + row)
    state = tl.arange(0, width)
    inside = state < num_labels
    labels += row * num_states
    label = tl.load(labels + state, mask=inside, other=0)
    frames = log_probs + row * num_frames * num_tokens
    if tl.program_id(1) == 0:
        rows = alpha + row * num_frames * num_states
        before = tl.load(labels + state - 2, mask=inside & (state >= 2), other=0)
        skips = inside & (state >= 2) & (label != 0) & (label != before)
        value = tl.load(frames + label, mask=inside & (state < 2), other=float("-inf"))
        tl.store(rows + state, value, mask=inside)
        for _ in range(1, length):
            tl.debug_barrier()
            one = tl.load(rows + state - 1, mask=inside & (state >= 1), other=float("-inf"))
            two = tl.load(rows + state - 2, mask=skips, other=float("-inf"))
            rows += num_states
            frames += num_tokens
            value = _log_sum(value, one, two) + tl.load(frames + label, mask=inside, other=float("-inf"))
            tl.store(rows + state, value, mask=inside)
        ends = inside & (state >= num_labels - 2)
        largest = tl.max(tl.where(ends, value, float("-inf")), axis=0)
        base = tl.where(largest == float("-inf"), 0.0, largest)
        tl.store(losses + row, -base - tl.log(tl.sum(tl.where(ends, tl.exp(value - base), 0.0), axis=0)))
    else:
        rows = beta + (row * num_frames + length - 1) * num_states
        frames += (length - 1) * num_tokens
        has_one, has_two = state + 1 < num_labels, state + 2 < num_labels
        label_one = tl.load(labels + state + 1, mask=has_one, other=0)
        label_two = tl.load(labels + state + 2, mask=has_two, other=0)
        skips = has_two & (label_two != 0) & (label_two != label)
        value = tl.where(inside & (state >= num_labels - 2), 0.0, float("-inf"))
        tl.store(rows + state, value, mask=inside)
        for _ in range(1, length):
            tl.debug_barrier()
            stay = value + tl.load(frames + label, mask=inside, other=float("-inf"))
            one = tl.load(rows + state + 1, mask=has_one, other=float("-inf"))
            one += tl.load(frames + label_one, mask=has_one, other=0.0)
            two = tl.load(rows + state + 2, mask=skips, other=float("-inf"))
            two += tl.load(frames + label_two, mask=skips, other=0.0)
            rows -= num_states
            frames -= num_tokens
            value = _log_sum(stay, one, two)
            tl.store(rows + state, value, mask=inside)


def ctc_recursions(
    log_probs: Tensor, lengths: Tensor, labels: Tensor, label_lengths: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """[B, T, V], [B], labels with blanks [B, S], [B] -> losses [B], log α and log β [B, T, S].

    The emission at t is in α, not in β; outside of an utterance both are −∞.
    """
    batch, num_frames, num_tokens = log_probs.shape
    num_states = labels.shape[1]
    variables = log_probs.new_full((2, batch, num_frames, num_states), -torch.inf)
    losses = log_probs.new_empty(batch)
    _recursions[(batch, 2)](
        # Texts of one utterance share its length: an expanded tensor has no memory for each row.
        *(tensor.contiguous() for tensor in (log_probs, labels, lengths, label_lengths)),
        *(variables[0], variables[1], losses, num_frames, num_states, num_tokens),
        width=triton.next_power_of_2(num_states),
        num_warps=8 if num_states > 512 else 4,
        num_stages=1,
    )
    return losses, variables[0], variables[1]


@triton.jit
def _mixed(bits, first: tl.constexpr, second: tl.constexpr):  # type: ignore[no-untyped-def]
    bits = (bits ^ ((bits >> 16) & 0xFFFF)) * first
    bits = (bits ^ ((bits >> 13) & 0x7FFFF)) * second
    return bits ^ ((bits >> 16) & 0xFFFF)


@triton.jit(do_not_specialize=["num_frames", "site"])
def _drop(  # type: ignore[no-untyped-def]
    values,
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
    offset = row.to(tl.int64) * dim + channel
    value = tl.load(values + offset, mask=(channel < dim) & keeps, other=0.0)
    tl.store(out + offset, value * scale, mask=channel < dim)


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
