"""The transducer's joint network on a GPU, a part of the frames at a time: PyTorch's products, our kernels.

The forward pass keeps its logits as far as KEPT_VALUES go. The backward pass turns them into their gradient
where they are, and computes only hidden units again, which cost no product; beyond, it computes logits again
as well. So memory has one bound for logits and one for hidden units, whatever the size of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from antiphon.models.kernels.between_products import (
    SUMMED_FRAMES,
    SUMMED_NODES,
    Part,
    bias_rows,
    differences,
    hidden,
    pick,
    sum_gradients,
)

PART_VALUES = 14 * 2**20  # hidden units of a part
KEPT_VALUES = 2**26  # logits

Inputs = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]  # frames, states, weight, bias, tokens


def log_probs(given: Inputs, keeps: bool) -> tuple[Tensor, ...]:
    """Blanks and labels of `NextLogProbs`, log sums shaped as blanks, and logits of the first parts."""
    frames, states, weight, bias, tokens = _prepared(given)
    networks, batch, num_nodes, _ = states.shape
    shape = (networks, batch, frames.shape[2])
    log_sums, blanks = (frames.new_empty(*shape, num_nodes, dtype=torch.float32) for _ in range(2))
    labels = frames.new_empty(*shape, num_nodes - 1, dtype=torch.float32)
    kept: list[Tensor] = []
    room, parts = KEPT_VALUES if keeps else 0, _parts(frames, states)
    memory, transposed = _memory(states, weight, parts), weight.mT
    for part in parts:
        units = _units(memory, states, part)
        hidden(frames, states, part, units)
        logits = torch.bmm(units, transposed)  # who reads them adds the bias
        pick(logits, bias, tokens, part, (log_sums, blanks, labels))
        if logits.numel() <= room:
            kept.append(logits)
        room -= min(room, logits.numel())
        del logits  # or there would be two in memory
    return blanks, labels, log_sums, *kept


def gradients(
    given: Inputs, saved: Sequence[Tensor], upstream: Sequence[Tensor], needs_weight: bool
) -> tuple[Tensor | None, ...]:
    """Of frames, states, weight and bias. saved: log sums, and kept logits, which are lost."""
    frames, states, weight, bias, tokens = _prepared(given)
    log_sums, *kept = saved
    d_blank, d_label = (values.contiguous() for values in upstream)
    parts = _parts(frames, states)
    memory, transposed = _memory(states, weight, parts), weight.mT
    d_frames, d_states = _layers(frames, states, parts[0][1])
    d_weight = weight.new_zeros(weight.shape, dtype=torch.float32) if needs_weight else None
    rows = bias_rows(len(bias), frames.shape[1] * parts[0][1], states.shape[2])
    d_bias = bias.new_zeros(*rows, bias.shape[1], dtype=torch.float32)
    for number, part in enumerate(parts):
        units = _units(memory, states, part)
        hidden(frames, states, part, units)
        logits = kept[number] if number < len(kept) else torch.bmm(units, transposed)
        differences(logits, (bias, d_bias), tokens, part, (log_sums, d_blank, d_label), out=logits)
        if d_weight is not None:
            _add_product(d_weight, logits.mT, units)
        # Over the hidden units, which are computed once more from frames and states.
        torch.bmm(logits, weight, out=units)
        del logits
        sum_gradients(units, frames, states, part, d_frames, d_states)
    del memory, units
    return (
        _summed(d_frames).to(given[0].dtype),
        _summed(d_states).to(given[1].dtype),
        None if d_weight is None else d_weight.to(given[2].dtype),
        d_bias.sum(dim=1).to(given[3].dtype),
    )


def _prepared(given: Inputs) -> Inputs:
    """The weights in the type of the hidden units; values side by side in memory."""
    frames, states, weight, bias, tokens = (tensor.contiguous() for tensor in given)
    return frames, states, weight.to(torch.promote_types(frames.dtype, states.dtype)), bias, tokens


def _parts(frames: Tensor, states: Tensor) -> list[Part]:
    """Parts of the frames, of one size but for the last."""
    num_frames = frames.shape[2]
    most = max(1, PART_VALUES // states.numel())
    size = -(-num_frames // -(-num_frames // most))
    return [(begin, min(begin + size, num_frames)) for begin in range(0, num_frames, size)]


def _memory(states: Tensor, weight: Tensor, parts: Sequence[Part]) -> Tensor:
    """Memory for the hidden units of any of the parts."""
    return weight.new_empty(states.numel() * parts[0][1])


def _units(memory: Tensor, states: Tensor, part: Part) -> Tensor:
    """[S, B · t · (U + 1), J]."""
    size = states.numel() * (part[1] - part[0])
    return memory[:size].view(len(states), -1, states.shape[3])


def _layers(frames: Tensor, states: Tensor, part_frames: int) -> tuple[Tensor, Tensor]:
    """Memory for the layers of the gradients of frames and states; see `between_products.sum_gradients`."""
    d_frames = frames.new_empty(-(-states.shape[2] // SUMMED_NODES), *frames.shape, dtype=torch.float32)
    num_splits = -(-part_frames // SUMMED_FRAMES)
    return d_frames, states.new_zeros(num_splits, *states.shape, dtype=torch.float32)


def _summed(layers: Tensor) -> Tensor:
    return layers[0] if len(layers) == 1 else layers.sum(dim=0)


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """16-bit products are rounded one by one, and added in float32."""
    if right.dtype == total.dtype:
        total.baddbmm_(left, right)
    else:
        total += torch.bmm(left, right)
