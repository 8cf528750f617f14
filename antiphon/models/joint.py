"""What a transducer's lattice needs of its joint network, a few frames at a time.

The joint network has an opinion on every token at every frame after every number of tokens: B × T × U × V
logits, 260 MB for 16 utterances of 200 frames, 40 tokens of 500 kinds, and as much again for their
gradient. The loss needs two of each V: the blank and the next token. So frames are taken a few at a time,
the two are kept, and the backward pass computes the logits again (as T. Chen et al., "Training Deep Nets
with Sublinear Memory Cost", 2016). The tokens' part of the gradient is a product with a one-hot matrix and
not a scatter: no atomic additions, the same to the last bit every time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from antiphon.models.layers import at_least_float32, in_front

MOST = 2**24  # values in a chunk of logits or of hidden units


def next_log_probs(
    frames: Tensor, states: Tensor, weight: Tensor, bias: Tensor, tokens: Tensor
) -> tuple[Tensor, Tensor]:
    """Of softmax(weight · tanh(frame + state) + bias), the logarithms at the blank and at the next token.

    frames [B, T, J], states [B, U + 1, J], weight [V, J], bias [V], tokens [B, U]
    -> blank [B, T, U + 1] and label [B, T, U], in float32 at least.
    """
    following = F.pad(tokens, (0, 1))
    blank, label = NextLogProbs.apply(frames[None], states[None], weight[None], bias[None], following[None])
    return blank[0], label[0, ..., :-1]


class NextLogProbs(torch.autograd.Function):
    """The same for S joint networks at once: every tensor has them in front, tokens are [S, B, U + 1]."""

    @staticmethod
    def forward(
        frames: Tensor, states: Tensor, weight: Tensor, bias: Tensor, tokens: Tensor
    ) -> tuple[Tensor, Tensor]:
        blanks, labels = [], []
        for (part,) in _parts(states, weight, frames):
            logits = at_least_float32(_logits(_hidden(part, states), weight, bias))
            log_probs = F.log_softmax(logits, dim=-1)
            blanks.append(log_probs[..., 0].clone())  # a view would keep the whole part
            chosen = tokens[:, :, None, :, None].expand(*log_probs.shape[:-1], 1)
            labels.append(log_probs.gather(-1, chosen).squeeze(-1))
        return torch.cat(blanks, dim=2), torch.cat(labels, dim=2)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        frames, states, weight, bias, tokens = ctx.saved_tensors
        vocabulary = torch.arange(weight.shape[1], device=tokens.device)
        one_hot = (tokens[:, :, None, :, None] == vocabulary).to(upstream[0].dtype)
        d_frames = []
        d_states, d_weight, d_bias = (
            torch.zeros_like(tensor, dtype=at_least_float32(tensor).dtype)
            for tensor in (states, weight, bias)
        )
        for part, *given in _parts(states, weight, frames, *upstream):
            hidden = _hidden(part, states)
            d_logits = _logits_backward(_logits(hidden, weight, bias), one_hot, *given)
            d_bias += d_logits.sum(dim=1)
            d_logits = d_logits.to(hidden.dtype)
            if ctx.needs_input_grad[2]:
                d_weight += d_logits.mT @ hidden.flatten(1, 3)
            d_hidden = (d_logits @ weight.to(hidden.dtype)).view_as(hidden)
            d_sum = torch.ops.aten.tanh_backward(d_hidden, hidden)
            d_frames.append(d_sum.sum(dim=3))
            d_states += d_sum.sum(dim=2, dtype=d_states.dtype)
        summed = zip((d_states, d_weight, d_bias), (states, weight, bias), strict=True)
        return torch.cat(d_frames, dim=2), *(grad.to(tensor.dtype) for grad, tensor in summed), None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *given: Tensor) -> Any:
        """Clients are more joint networks."""
        clients = in_front(info.batch_size, in_dims, *given)
        outputs = NextLogProbs.apply(*(tensor.flatten(0, 1) for tensor in clients))
        return tuple(output.unflatten(0, (info.batch_size, -1)) for output in outputs), (0, 0)


def _parts(states: Tensor, weight: Tensor, *by_frame: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Tensors [S, B, T, ...] cut into as many frames as make at most MOST values; one frame at least."""
    in_a_frame = math.prod(states.shape[:3]) * max(weight.shape[1:])
    num_frames = max(1, MOST // in_a_frame)
    return zip(*(tensor.split(num_frames, dim=2) for tensor in by_frame), strict=True)


def _hidden(part: Tensor, states: Tensor) -> Tensor:
    """[S, B, t, J], [S, B, U + 1, J] -> [S, B, t, U + 1, J]."""
    return (part[:, :, :, None] + states[:, :, None]).tanh_()


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """[S, B, t, U + 1, J] -> [S, B, t, U + 1, V]."""
    weight, bias = weight.to(hidden.dtype), bias.to(hidden.dtype)
    logits = torch.baddbmm(bias[:, None], hidden.flatten(1, 3), weight.mT)
    return logits.view(*hidden.shape[:-1], -1)


def _logits_backward(logits: Tensor, one_hot: Tensor, d_blank: Tensor, d_label: Tensor) -> Tensor:
    """∂/∂logits [S, nodes, V] of picked log probabilities whose gradients [S, B, t, U + 1] are given."""
    d_logits = F.softmax(logits, dim=-1, dtype=d_blank.dtype)
    d_logits *= -(d_blank + d_label)[..., None]
    d_logits[..., 0] += d_blank
    d_logits.addcmul_(one_hot, d_label[..., None])
    return d_logits.flatten(1, 3)
