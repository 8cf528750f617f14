"""GPU kernels (Triton) of the transducer's lattice: both recursions, then posteriors (`models.rnnt_loss`).

A program has one utterance in one direction, and the variables of all its frames after u tokens in registers:
the recursion is U + 1 running sums over frames. Variables are large, as sums of hundreds of log
probabilities, and in float64; what is added to them, log(1 + exp(−d)), is less than 1 and in float32.

Kernel arguments have no annotations: Triton would read them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

NUM_WARPS = 4  # at least: a thread with more than four frames is slow
CELLS = 256  # of a program that computes posteriors


@triton.jit
def _add(first, second):  # type: ignore[no-untyped-def]
    return first + second


@triton.jit
def _log_add(first, second):  # type: ignore[no-untyped-def]
    # No maximum(): it would drop NaN.
    is_first = first > second
    largest = tl.where(is_first, first, second)
    smallest = tl.where(is_first, second, first)
    apart = tl.where(smallest == float("-inf"), float("-inf"), smallest - largest).to(tl.float32)
    return largest + tl.log(1.0 + tl.exp(apart)).to(tl.float64)


@triton.jit
def _add_both(first, log_first, second, log_second):  # type: ignore[no-untyped-def]
    return first + second, _log_add(log_first, log_second)


@triton.jit(do_not_specialize=["num_frames", "num_nodes"])
def _recursions(  # type: ignore[no-untyped-def]
    blank,
    label,
    lengths,
    token_lengths,
    variables,
    losses,
    num_frames,
    num_nodes,
    width: tl.constexpr,
):
    # Forward (the first program of an utterance): α. Backward: β without the last blank, the same recursion
    # from the last node to the first. Column k is the k-th number of tokens on the way.
    row, is_backward = tl.program_id(0).to(tl.int64), tl.program_id(1)
    length, num_tokens = tl.load(lengths + row), tl.load(token_lengths + row)
    last_blank = tl.load(blank + (row * num_frames + length - 1) * num_nodes + num_tokens).to(tl.float64)
    place = tl.arange(0, width)
    inside = place < length
    waits = inside & (place >= 1)  # a blank leads here
    frame = place + is_backward * (length - 1 - 2 * place)
    blank += (row * num_frames + frame - (1 - is_backward)) * num_nodes
    label += (row * num_frames + frame) * (num_nodes - 1)
    variables += (is_backward * tl.num_programs(0) + row) * num_nodes * num_frames + frame
    node, step = is_backward * num_tokens, 1 - 2 * is_backward
    value = tl.load(blank + node, mask=waits, other=0.0).to(tl.float64)
    value = tl.associative_scan(value, 0, _add)
    tl.store(variables + node * num_frames, value, mask=inside)
    # What does not depend on the recursion is a column ahead, and nothing waits for it: loads, and the sums
    # of blanks, beside those of the column before.
    more = num_tokens > 0
    node += step
    waited = tl.load(blank + node, mask=waits & more, other=0.0).to(tl.float64)
    waited = tl.associative_scan(waited, 0, _add)
    next_label = tl.load(label + node - step - is_backward, mask=inside & more, other=0.0)
    next_blank = tl.load(blank + node + step, mask=waits & (num_tokens > 1), other=0.0)
    for column in range(1, num_tokens + 1):
        entered, ahead = value + next_label - waited, next_blank.to(tl.float64)
        next_label = tl.load(label + node - is_backward, mask=inside & (column < num_tokens), other=0.0)
        next_blank = tl.load(blank + node + 2 * step, mask=waits & (column < num_tokens - 1), other=0.0)
        entered = tl.where(inside, entered, -1e30)
        ahead, value = tl.associative_scan((ahead, entered), 0, _add_both)
        value += waited
        waited = ahead
        tl.store(variables + node * num_frames, value, mask=inside)
        node += step
    if is_backward == 0:
        total = tl.sum(tl.where(place == length - 1, value, 0.0), axis=0)
        tl.store(losses + row, -total - last_blank)


@triton.jit(do_not_specialize=["num_frames", "num_nodes"])
def _posteriors(  # type: ignore[no-untyped-def]
    blank,
    label,
    lengths,
    token_lengths,
    alpha,
    beta,
    blanks,
    labels,
    num_frames,
    num_nodes,
    cells: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    last_frame, last_node = tl.load(lengths + row) - 1, tl.load(token_lengths + row)
    cell = tl.program_id(1) * cells + tl.arange(0, cells)
    frame, node = cell // num_nodes, cell % num_nodes
    alpha += row * num_nodes * num_frames
    beta += row * num_nodes * num_frames
    total = tl.load(alpha + last_node * num_frames + last_frame)
    inside = (frame <= last_frame) & (node <= last_node)
    place = node * num_frames + frame
    before = tl.load(alpha + place, mask=inside, other=0.0) - total
    waits = inside & (frame < last_frame)
    here = row * num_frames * num_nodes + cell
    value = before + tl.load(blank + here, mask=waits, other=0.0).to(tl.float64)
    value += tl.load(beta + place + 1, mask=waits, other=0.0)
    is_last = inside & (frame == last_frame) & (node == last_node)
    posterior = tl.where(waits, tl.exp(value.to(tl.float32)), tl.where(is_last, 1.0, 0.0))
    tl.store(blanks + here, posterior, mask=frame < num_frames)
    moves = inside & (node < last_node)
    here = (row * num_frames + frame) * (num_nodes - 1) + node
    value = before + tl.load(label + here, mask=moves, other=0.0).to(tl.float64)
    value += tl.load(beta + place + num_frames, mask=moves, other=0.0)
    posterior = tl.where(moves, tl.exp(value.to(tl.float32)), 0.0)
    tl.store(labels + here, posterior, mask=(frame < num_frames) & (node < num_nodes - 1))


def losses_and_posteriors(
    blank: Tensor, label: Tensor, lengths: Tensor, token_lengths: Tensor, needs_posteriors: bool
) -> tuple[Tensor, ...]:
    """[B, T, U + 1], [B, T, U], [B], [B] -> losses [B]; and, if needed, posteriors of blanks and labels."""
    # Texts of one utterance share its length: an expanded tensor has no memory for each row.
    given = [tensor.contiguous() for tensor in (blank, label, lengths, token_lengths)]
    batch, num_frames, num_nodes = blank.shape
    losses = blank.new_empty(batch, dtype=torch.float32)
    directions = 2 if needs_posteriors else 1
    variables = blank.new_empty(directions, batch, num_nodes, num_frames, dtype=torch.float64)
    width = 1 << (num_frames - 1).bit_length()  # the next power of 2
    _recursions[batch, directions](
        *(*given, variables, losses, num_frames, num_nodes),
        width=width,
        num_warps=max(NUM_WARPS, width // 128),
    )
    if not needs_posteriors:
        return (losses,)
    posteriors = [torch.empty_like(values, dtype=torch.float32) for values in given[:2]]
    _posteriors[batch, -(-num_frames * num_nodes // CELLS)](
        *(*given, variables[0], variables[1], *posteriors, num_frames, num_nodes, CELLS)
    )
    return losses, *posteriors
