"""Small parts that the models share: padding masks, frame stacking, token losses, rotary attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from antiphon.data.batches import Batch

BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
MAX_LAYERS, MAX_SIZE = 1000, 100_000  # a model with more would be built for hours


def check_sizes(config: object, num_layers: int, *sizes: int) -> None:
    """Refuse the settings of a model whose sizes, such as widths, nobody can want."""
    if min(num_layers, *sizes) < 1 or num_layers > MAX_LAYERS or max(sizes) > MAX_SIZE:
        limits = f"at least 1, and at most {MAX_LAYERS:,} layers and {MAX_SIZE:,} of anything else"
        raise ValueError(f"the sizes of a model must be {limits}: {config}")


class Scored(nn.Module):
    """Base of modules whose `losses` are the score of their forward pass."""

    def score(self, outputs: tuple[Tensor, ...], batch: Batch) -> Tensor:
        raise NotImplementedError

    def losses(self, batch: Batch) -> Tensor:
        return self.score(self(batch), batch)


def frame_mask(lengths: Tensor, num_frames: int) -> Tensor:
    """Return True on real frames: [B] -> [B, num_frames].

    >>> frame_mask(torch.tensor([1, 3]), 3).int().tolist()
    [[1, 0, 0], [1, 1, 1]]
    """
    return torch.arange(num_frames, device=lengths.device) < lengths[:, None]


def num_stacked(num_frames: int, stack: int) -> int:
    """The number of frames after stacking; the last group may be partial."""
    return -(-num_frames // stack)


def stack_frames(features: Tensor, lengths: Tensor, stack: int) -> tuple[Tensor, Tensor]:
    """Join every `stack` frames into one, [B, T, D] -> [B, ceil(T/stack), stack*D]; padding becomes zero.

    >>> stacked, lengths = stack_frames(torch.ones(1, 4, 1), torch.tensor([3]), stack=2)
    >>> stacked.tolist(), lengths.tolist()
    ([[[1.0, 1.0], [1.0, 0.0]]], [2])
    """
    num_frames = features.shape[1]
    features = features.masked_fill(~frame_mask(lengths, num_frames)[:, :, None], 0.0)
    features = F.pad(features, (0, 0, 0, -num_frames % stack))
    return features.unflatten(1, (-1, stack)).flatten(2), (lengths + stack - 1) // stack


def reversal(lengths: Tensor, size: int) -> Tensor:
    """Indices [B, size] that reverse each row within its own length; padding stays."""
    index = torch.arange(size, device=lengths.device)
    return torch.where(index < lengths[:, None], lengths[:, None] - 1 - index, index)


def reversed_frames(frames: Tensor, lengths: Tensor) -> Tensor:
    """Reverse each utterance within its own length; padding stays: [B, T, D].

    >>> reversed_frames(torch.tensor([[[1], [2], [0]]]), torch.tensor([2])).flatten().tolist()
    [2, 1, 0]
    """
    return ReverseFrames.apply(frames, lengths)


class ReverseFrames(torch.autograd.Function):
    """Reversal is its own gradient. That of `gather` is a scatter, which is slow if deterministic."""

    generate_vmap_rule = True

    @staticmethod
    def forward(frames: Tensor, lengths: Tensor) -> Tensor:
        return frames.gather(1, reversal(lengths, frames.shape[1])[:, :, None].expand_as(frames))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None]:
        return reversed_frames(upstream[0], *ctx.saved_tensors), None


def next_tokens(tokens: Tensor, lengths: Tensor) -> Tensor:
    """The targets of a decoder, tokens and then the end (0): [B, U] and lengths [B] -> [B, U + 1]."""
    return F.pad(tokens, (0, 1)).masked_fill(~frame_mask(lengths, tokens.shape[1] + 1), 0)


def next_token_losses(logits: Tensor, targets: Tensor, lengths: Tensor, smoothing: float = 0.0) -> Tensor:
    """Cross entropy of `next_tokens` [B, U + 1], summed over each text and its end: [B]."""
    losses = F.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), reduction="none", label_smoothing=smoothing
    ).view_as(targets)
    return losses.masked_fill(~frame_mask(lengths + 1, targets.shape[1]), 0.0).sum(dim=1)


def spell_greedily(
    limits: Tensor, take_step: Callable[[Tensor, Any], tuple[Tensor, Any]], state: Any
) -> list[list[int]]:
    """Take the best token after the best tokens so far, until the end (0) or up to `limits` [B] tokens.

    take_step: last tokens [B], zeros at first, and state -> scores of the next [B, num_tokens], next state.
    """
    running, steps = limits > 0, [torch.zeros_like(limits)]
    while running.any():
        scores, state = take_step(steps[-1], state)
        steps.append(scores.argmax(dim=-1).masked_fill(~running, 0))
        running = running & (steps[-1] != 0) & (len(steps) - 1 < limits)
    return without_zeros(torch.stack(steps, dim=1))


def without_zeros(tokens: Tensor) -> list[list[int]]:
    """The tokens [B, U] of each row that are not 0."""
    return [[token for token in row if token != 0] for row in tokens.tolist()]


def at_least_float32(values: Tensor) -> Tensor:
    """Convert 16-bit values of autocast to float32, in which losses are computed; float64 stays."""
    return values if values.dtype == torch.float64 else values.float()


def clients_first(num_clients: int, in_dims: tuple[int | None, ...], *tensors: Tensor) -> list[Tensor]:
    """Move the dimension of the clients to the front; a tensor that all clients share is expanded."""
    return [
        tensor.expand(num_clients, *tensor.shape)
        if dim is None
        else tensor.movedim(dim, 0)
        if dim
        else tensor
        for tensor, dim in zip(tensors, in_dims, strict=True)
    ]


def is_stacked(*tensors: Tensor) -> bool:
    """Whether `vmap` runs, and any of these tensors has a value for each client."""
    return any(torch._C._functorch.is_batchedtensor(tensor) for tensor in tensors)


def rotary_angles(num_frames: int, dim: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and sine of each frame's rotation (Su et al. 2021, RoFormer), each [num_frames, dim / 2]."""
    dtype = at_least_float32(like).dtype
    exponent = torch.arange(0, dim, 2, device=like.device, dtype=dtype) / dim
    position = torch.arange(num_frames, device=like.device, dtype=dtype)
    angles = position[:, None] * 10000.0**-exponent
    return angles.cos(), angles.sin()


def rotate(values: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotate queries or keys [..., T, dim] by the angle of their frame: products depend on t1 − t2 only."""
    first, second = values.chunk(2, dim=-1)
    rotated = torch.cat((first * cosine - second * sine, first * sine + second * cosine), dim=-1)
    return rotated.to(values.dtype)


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """Each [B, heads, T, d] -> the same; the mask is True where a frame may be seen [B, 1, T or 1, T]."""
    if is_stacked(query, key, value):
        return StackedAttention.apply(query.to(value.dtype), key.to(value.dtype), value, mask)  # as autocast
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)


class StackedAttention(torch.autograd.Function):
    """Attention of many clients as one batch: PyTorch's fused kernels have no rule for `vmap`.

    The backward pass computes the attention again.
    """

    @staticmethod
    def forward(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        with sdpa_kernel(BACKENDS):
            return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, mask = ctx.saved_tensors
        query, key, value = leaves = [tensor.detach().requires_grad_() for tensor in inputs]
        with torch.enable_grad(), sdpa_kernel(BACKENDS):
            attended = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return *torch.autograd.grad(attended, leaves, upstream[0].to(attended.dtype)), None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Tensor) -> Any:
        rows = (tensor.flatten(0, 1) for tensor in clients_first(info.batch_size, in_dims, *inputs))
        return StackedAttention.apply(*rows).unflatten(0, (info.batch_size, -1)), 0
