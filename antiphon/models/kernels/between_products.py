"""GPU kernels (Triton) around the matrix products of the transducer's joint network (`models.rnnt_loss`).

The products are PyTorch's; what is between them is one pass over memory each:

  hidden      tanh(frame + state), again in the backward pass
  picked      logits -> log of their sum of exponentials, log probabilities of the blank and the next token
  differences logits -> their gradient, over themselves if the caller says so; and the bias' gradient
  summed      gradient of the hidden units -> gradients of frames and states

Tensors are as in `NextLogProbs`: S networks, B utterances, T frames, U + 1 nodes. Logits and hidden units are
those of a part of t frames: of one from the first on, and before another. No two programs write to the same
place, and what they leave in parts is added up in one order: results are the same in every run.

Kernel arguments have no annotations: Triton would read them.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

# Of a program, or of one turn of its loop
NODES, TOKENS, UNITS = 4, 512, 128
DIFFERENCE_NODES = 16
SUMMED_NODES, SUMMED_UNITS, SUMMED_FRAMES = 64, 32, 8
Part = tuple[int, int]
VARYING = ["num_frames", "part_frames", "num_nodes", "begin", "batch"]


@triton.jit
def _tanh(values):  # type: ignore[no-untyped-def]
    return 2 * tl.sigmoid(2 * values) - 1


@triton.jit
def _frame(part_frames):  # type: ignore[no-untyped-def]
    # Of a program: the row in the part, the utterance, and the number of the frame in the part.
    row = tl.program_id(0)  # divided as 32 bits, which is faster
    return row.to(tl.int64), (row // part_frames).to(tl.int64), row % part_frames


@triton.jit(do_not_specialize=["num_frames", "part_frames", "num_nodes", "begin"])
def _hidden(  # type: ignore[no-untyped-def]
    frames,
    states,
    out,
    num_frames,
    part_frames,
    num_nodes,
    begin,
    dim: tl.constexpr,
    nodes: tl.constexpr,
    columns: tl.constexpr,
):
    # One frame and a block of units
    row, utterance, number = _frame(part_frames)
    column = tl.program_id(1) * columns + tl.arange(0, columns)
    place = frames + (utterance * num_frames + begin + number) * dim + column
    frame = tl.load(place, mask=column < dim, other=0.0).to(tl.float32)
    states += utterance * num_nodes * dim + column[None, :]
    out += row * num_nodes * dim + column[None, :]
    for first in range(0, num_nodes, nodes):
        node = first + tl.arange(0, nodes)
        real = (node < num_nodes)[:, None] & (column < dim)[None, :]
        state = tl.load(states + node[:, None] * dim, mask=real, other=0.0).to(tl.float32)
        tl.store(out + node[:, None] * dim, _tanh(frame[None, :] + state), mask=real)


@triton.jit(do_not_specialize=VARYING)
def _picked(  # type: ignore[no-untyped-def]
    logits,
    bias,
    tokens,
    log_sums,
    blanks,
    labels,
    num_frames,
    part_frames,
    num_nodes,
    begin,
    batch,
    size: tl.constexpr,
    has_bias: tl.constexpr,
    nodes: tl.constexpr,
    columns: tl.constexpr,
):
    # One frame and a block of nodes
    row, utterance, number = _frame(part_frames)
    node = tl.program_id(1) * nodes + tl.arange(0, nodes)
    real = node < num_nodes
    logits += (row * num_nodes + node) * size
    bias += (utterance // batch) * size
    num_labels = num_nodes - 1
    has_label = node < num_labels
    token = tl.load(tokens + utterance * num_labels + node, mask=has_label, other=0)
    is_token = has_label & (token >= 0) & (token < size)
    blank = tl.load(logits, mask=real, other=0.0).to(tl.float32)
    label = tl.load(logits + token, mask=is_token, other=float("nan")).to(tl.float32)
    if has_bias:
        blank += tl.load(bias).to(tl.float32)
        label += tl.load(bias + token, mask=is_token, other=0.0).to(tl.float32)
    largest = tl.full((nodes,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((nodes,), dtype=tl.float32)
    base = tl.zeros((nodes,), dtype=tl.float32)
    for first in range(0, size, columns):
        column = first + tl.arange(0, columns)
        inside = real[:, None] & (column < size)[None, :]
        values = tl.load(logits[:, None] + column[None, :], mask=inside, other=float("-inf")).to(tl.float32)
        if has_bias:
            values += tl.load(bias + column, mask=column < size, other=0.0).to(tl.float32)[None, :]
        before, largest = largest, tl.maximum(largest, tl.max(values, axis=1))
        base = tl.where(largest == float("-inf"), 0.0, largest)
        total = total * tl.exp(before - base) + tl.sum(tl.exp(values - base[:, None]), axis=1)
    log_sum = base + tl.log(total)
    frame = utterance * num_frames + begin + number
    tl.store(log_sums + frame * num_nodes + node, log_sum, mask=real)
    tl.store(blanks + frame * num_nodes + node, blank - log_sum, mask=real)
    tl.store(labels + frame * num_labels + node, label - log_sum, mask=has_label)


@triton.jit(do_not_specialize=[*VARYING, "most_frames"])
def _differences(  # type: ignore[no-untyped-def]
    logits,
    bias,
    tokens,
    log_sums,
    d_blanks,
    d_labels,
    out,
    d_bias,
    num_frames,
    part_frames,
    most_frames,
    num_nodes,
    begin,
    batch,
    size: tl.constexpr,
    has_bias: tl.constexpr,
    all_nodes: tl.constexpr,
    nodes: tl.constexpr,
    columns: tl.constexpr,
):
    # Some nodes of a frame, and a block of tokens. d_bias has a row for every program; parts are added to it.
    row, utterance, number = _frame(part_frames)
    column = tl.program_id(2) * columns + tl.arange(0, columns)
    has_column = column < size
    frame, num_labels = utterance * num_frames + begin + number, num_nodes - 1
    added = tl.zeros((columns,), dtype=tl.float32)
    total = tl.zeros((columns,), dtype=tl.float32)
    if has_bias:
        bias += (utterance // batch) * size
        added = tl.load(bias + column, mask=has_column, other=0.0).to(tl.float32)
        place = utterance * most_frames + number
        d_bias += (place * tl.num_programs(1) + tl.program_id(1)) * size + column
        total = tl.load(d_bias, mask=has_column, other=0.0)
    for first in range(0, all_nodes, nodes):
        node = tl.program_id(1) * all_nodes + first + tl.arange(0, nodes)
        real, has_label = node < num_nodes, node < num_labels
        d_blank = tl.load(d_blanks + frame * num_nodes + node, mask=real, other=0.0)
        d_label = tl.load(d_labels + frame * num_labels + node, mask=has_label, other=0.0)
        token = tl.load(tokens + utterance * num_labels + node, mask=has_label, other=-1)
        # Padding is not read: whatever it holds, its gradient is zero.
        reads = (d_blank != 0.0) | (d_label != 0.0)
        inside = reads[:, None] & has_column[None, :]
        log_sum = tl.load(log_sums + frame * num_nodes + node, mask=reads, other=0.0)
        offset = (row * num_nodes + node)[:, None] * size + column[None, :]
        values = tl.load(logits + offset, mask=inside, other=0.0).to(tl.float32) + added[None, :]
        difference = -(d_blank + d_label)[:, None] * tl.exp(values - log_sum[:, None])
        difference += tl.where(column[None, :] == 0, d_blank[:, None], 0.0)
        difference += tl.where(column[None, :] == token[:, None], d_label[:, None], 0.0)
        difference = tl.where(inside, difference, 0.0)
        tl.store(out + offset, difference, mask=real[:, None] & has_column[None, :])
        total += tl.sum(difference, axis=0)
    if has_bias:
        tl.store(d_bias, total, mask=has_column)


@triton.jit(do_not_specialize=["num_frames", "part_frames", "num_nodes", "begin", "num_splits"])
def _summed(  # type: ignore[no-untyped-def]
    d_hidden,
    frames,
    states,
    d_frames,
    d_states,
    num_frames,
    part_frames,
    num_nodes,
    begin,
    num_splits,
    dim: tl.constexpr,
    split: tl.constexpr,
    nodes: tl.constexpr,
    columns: tl.constexpr,
):
    # Some units of an utterance's nodes and frames, a block of each. d_frames has a layer for every block of
    # nodes, d_states one for every block of frames, to which this part of the frames is added.
    utterance, num_utterances = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    column = tl.program_id(1) * columns + tl.arange(0, columns)
    block, layer = tl.program_id(2) // num_splits, tl.program_id(2) % num_splits
    has_column = column < dim
    node = block * nodes + tl.arange(0, nodes)
    real = (node < num_nodes)[:, None] & has_column[None, :]
    place = (utterance * num_nodes + node)[:, None] * dim + column[None, :]
    state = tl.load(states + place, mask=real, other=0.0).to(tl.float32)
    d_states += layer * num_utterances * num_nodes * dim
    total = tl.load(d_states + place, mask=real, other=0.0)
    d_frames += block * num_utterances * num_frames * dim
    for number in tl.range(layer * split, tl.minimum((layer + 1) * split, part_frames), num_stages=3):
        here = (utterance * num_frames + begin + number) * dim + column
        frame = tl.load(frames + here, mask=has_column, other=0.0).to(tl.float32)
        values = d_hidden + ((utterance * part_frames + number) * num_nodes + node)[:, None] * dim
        gradient = tl.load(values + column[None, :], mask=real, other=0.0).to(tl.float32)
        squashed = _tanh(frame[None, :] + state)
        gradient *= 1 - squashed * squashed
        total += gradient
        tl.store(d_frames + here, tl.sum(gradient, axis=0), mask=has_column)
    tl.store(d_states + place, total, mask=real)


# --- Launches -------------------------------------------------------------------------------------


def hidden(frames: Tensor, states: Tensor, part: Part, out: Tensor) -> None:
    """[S, B, T, J], [S, B, U + 1, J]; out: [S, B · t · (U + 1), J]."""
    networks, batch, num_frames, dim = frames.shape
    (begin, end), columns = part, _block(dim, UNITS)
    _hidden[networks * batch * (end - begin), _blocks(dim, columns)](
        *(frames, states, out, num_frames, end - begin, states.shape[2], begin, dim, NODES, columns)
    )


def pick(
    logits: Tensor, bias: Tensor | None, tokens: Tensor, part: Part, out: tuple[Tensor, Tensor, Tensor]
) -> None:
    """[.., V], [S, V], [.., B, U]; out: log sums and blanks [.., B, T, U + 1], and labels [.., B, T, U]."""
    num_frames, num_nodes = out[0].shape[-2:]
    num_utterances, (begin, end), size = tokens.shape[:-1].numel(), part, logits.shape[-1]
    _picked[num_utterances * (end - begin), _blocks(num_nodes, NODES)](
        *(logits, logits if bias is None else bias, tokens, *out, num_frames, end - begin, num_nodes, begin),
        *(num_utterances if bias is None else num_utterances // len(bias), size),
        *(bias is not None, NODES, _block(size, TOKENS)),
    )


def differences(
    logits: Tensor,
    bias: tuple[Tensor, Tensor] | None,
    tokens: Tensor,
    part: Part,
    by_node: tuple[Tensor, Tensor, Tensor],
    out: Tensor,
) -> None:
    """Write the logits' gradient to `out`, which may be the logits. bias [S, V]: and rows of its gradient.

    by_node: log sums, gradients of blanks [.., B, T, U + 1], and of labels [.., B, T, U].
    """
    num_frames, num_nodes = by_node[0].shape[-2:]
    num_utterances, (begin, end), size = tokens.shape[:-1].numel(), part, logits.shape[-1]
    columns, blocks = _block(size, TOKENS), _blocks(num_nodes, DIFFERENCE_NODES)
    added, d_bias = bias or (logits, logits)
    _differences[num_utterances * (end - begin), blocks, _blocks(size, columns)](
        *(logits, added, tokens, *by_node, out, d_bias, num_frames, end - begin),
        *(d_bias.numel() // (size * num_utterances * blocks), num_nodes, begin),
        *(num_utterances if bias is None else num_utterances // len(added), size),
        *(bias is not None, DIFFERENCE_NODES, NODES, columns),
    )


def bias_rows(networks: int, frames: int, num_nodes: int) -> tuple[int, int]:
    """Shape [S, rows] of the rows that `differences` leaves of a bias' gradient. frames: B · t of a part."""
    return networks, frames * _blocks(num_nodes, DIFFERENCE_NODES)


def sum_gradients(
    d_hidden: Tensor, frames: Tensor, states: Tensor, part: Part, d_frames: Tensor, d_states: Tensor
) -> None:
    """d_hidden [S, B · t · (U + 1), J] -> layers of gradients of frames [.., S, B, T, J] and states.

    A layer for every SUMMED_NODES, and for every SUMMED_FRAMES of a part; of states [.., S, B, U + 1, J],
    those are added to what is there.
    """
    networks, batch, num_frames, dim = frames.shape
    begin, end = part
    num_splits, columns = _blocks(end - begin, SUMMED_FRAMES), SUMMED_UNITS
    _summed[networks * batch, _blocks(dim, columns), len(d_frames) * num_splits](
        *(d_hidden, frames, states, d_frames, d_states, num_frames, end - begin, states.shape[2], begin),
        *(num_splits, dim, SUMMED_FRAMES, SUMMED_NODES, columns),
    )


def _blocks(size: int, block: int) -> int:
    """As `triton.cdiv`, which takes microseconds."""
    return -(-size // block)


def _block(size: int, most: int) -> int:
    return min(most, max(16, 1 << (size - 1).bit_length()))
