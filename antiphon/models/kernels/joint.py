"""The transducer's joint network on a GPU, a part of the frames at a time: PyTorch's products, our kernels.

The forward pass keeps its logits as far as KEPT_VALUES go. The backward pass turns them into their gradient
where they are, and computes only hidden units again, which cost no product; beyond, it computes logits again
as well. So memory has one bound for logits and one for hidden units, whatever the size of the batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from antiphon.models.kernels.transducer import (
    SUMMED_FRAMES,
    SUMMED_NODES,
    differences,
    hidden,
    pick,
    sum_gradients,
)

PART_VALUES = 11 * 2**20  # hidden units of a part
KEPT_VALUES = 2**26  # logits
BLOCK, BLOCKS = 128, 256  # a GPU wants so many blocks of a product of this size

Inputs = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]  # frames, states, weight, bias, tokens


def log_probs(given: Inputs, keeps: bool) -> tuple[Tensor, ...]:
    """Blanks and labels of `NextLogProbs`, log sums of the same shape, and logits of the first parts."""
    frames, states, weight, bias, tokens = _prepared(given)
    shape = (*states.shape[:2], frames.shape[2], states.shape[2])
    log_sums, blanks, labels = (frames.new_empty(shape, dtype=torch.float32) for _ in range(3))
    kept: list[Tensor] = []
    room = KEPT_VALUES if keeps else 0
    for begin, end in _parts(frames, states):
        units = hidden(frames, states, begin, end)
        logits = _logits(units, weight)
        del units  # or there would be two in memory
        pick(logits, bias, tokens, begin, (log_sums, blanks, labels))
        if logits.numel() <= room:
            kept.append(logits)
        room -= min(room, logits.numel())
        del logits
    return blanks, labels, log_sums, *kept


def gradients(
    given: Inputs, saved: Sequence[Tensor], upstream: Sequence[Tensor], needs_weight: bool
) -> tuple[Tensor | None, ...]:
    """Of frames, states, weight and bias. saved: log sums, and kept logits, which are lost."""
    frames, states, weight, bias, tokens = _prepared(given)
    log_sums, *kept = saved
    d_blank, d_label = (values.contiguous() for values in upstream)
    by_node = log_sums, d_blank, d_label
    parts = list(_parts(frames, states))
    d_frames, d_states = _layers(frames, states, parts[0][1])
    d_weight = _WeightGradient(weight, frames.shape[1]) if needs_weight else None
    d_bias = bias.new_zeros(bias.shape, dtype=torch.float32)
    for number, (begin, end) in enumerate(parts):
        units = hidden(frames, states, begin, end)
        logits = kept[number] if number < len(kept) else _logits(units, weight)
        differences(logits, (bias, d_bias), tokens, begin, by_node, out=logits)
        if d_weight is not None:
            d_weight.add(logits, units)
        # Over the hidden units, which are computed once more from frames and states.
        torch.bmm(logits.flatten(1, 3), weight, out=units.flatten(1, 3))
        del logits
        sum_gradients(units, frames, states, begin, d_frames, d_states)
        del units
    return (
        d_frames.sum(dim=0).to(given[0].dtype),
        d_states.sum(dim=0).to(given[1].dtype),
        None if d_weight is None else d_weight.total().to(given[2].dtype),
        d_bias.to(given[3].dtype),
    )


class _WeightGradient:
    """A sum over parts of products that are small and long: as one for every few utterances, side by side."""

    def __init__(self, weight: Tensor, batch: int) -> None:
        networks, size, dim = weight.shape
        blocks = networks * -(-size // BLOCK) * -(-dim // BLOCK)
        wanted = (number for number in range(1, batch) if batch % number == 0 and number * blocks >= BLOCKS)
        self.splits = next(wanted, batch)
        self.sums = weight.new_zeros(networks * self.splits, size, dim, dtype=torch.float32)

    def add(self, differences: Tensor, units: Tensor) -> None:
        """[S, B, t, U + 1, V] and [S, B, t, U + 1, J]."""
        left = differences.view(len(self.sums), -1, differences.shape[-1]).mT
        right = units.view(len(self.sums), -1, units.shape[-1])
        if units.dtype == self.sums.dtype:
            self.sums.baddbmm_(left, right)
        else:
            self.sums += torch.bmm(left, right)

    def total(self) -> Tensor:
        return self.sums.unflatten(0, (-1, self.splits)).sum(dim=1)


def _prepared(given: Inputs) -> Inputs:
    """The weights in the type of the hidden units; values side by side in memory."""
    frames, states, weight, bias, tokens = (tensor.contiguous() for tensor in given)
    return frames, states, weight.to(torch.promote_types(frames.dtype, states.dtype)), bias, tokens


def _parts(frames: Tensor, states: Tensor) -> Iterator[tuple[int, int]]:
    """Begin and end of parts of the frames, of one size but for the last."""
    num_frames = frames.shape[2]
    most = max(1, PART_VALUES // states.numel())
    size = -(-num_frames // -(-num_frames // most))
    for begin in range(0, num_frames, size):
        yield begin, min(begin + size, num_frames)


def _logits(units: Tensor, weight: Tensor) -> Tensor:
    """[S, B, t, U + 1, J] -> [S, B, t, U + 1, V], without the bias: who reads them adds it."""
    return torch.bmm(units.flatten(1, 3), weight.mT).view(*units.shape[:-1], -1)


def _layers(frames: Tensor, states: Tensor, part_frames: int) -> tuple[Tensor, Tensor]:
    """Memory for the layers of the gradients of frames and states; see `transducer.sum_gradients`."""
    d_frames = frames.new_empty(-(-states.shape[2] // SUMMED_NODES), *frames.shape, dtype=torch.float32)
    num_splits = -(-part_frames // SUMMED_FRAMES)
    return d_frames, states.new_zeros(num_splits, *states.shape, dtype=torch.float32)
