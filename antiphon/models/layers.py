"""Small pieces shared by the models: padding masks, frame stacking, rotary positions, LSTM biases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel


def frame_mask(lengths: Tensor, num_frames: int) -> Tensor:
    """True on real frames: [B] -> [B, num_frames].

    >>> frame_mask(torch.tensor([1, 3]), 3).int().tolist()
    [[1, 0, 0], [1, 1, 1]]
    """
    return torch.arange(num_frames, device=lengths.device) < lengths[:, None]


def num_stacked(num_frames: int, stack: int) -> int:
    """How many frames are left of `num_frames` when `stack` of them become one (the last may be partial)."""
    return -(-num_frames // stack)


def stack_frames(features: Tensor, lengths: Tensor, stack: int) -> tuple[Tensor, Tensor]:
    """Zeroes the padding, then joins every `stack` frames into one: [B, T, D] -> [B, ceil(T/stack), stack*D].

    A partial last group is filled with zeros, so it is the same in any batch.

    >>> stacked, lengths = stack_frames(torch.ones(1, 4, 1), torch.tensor([3]), stack=2)
    >>> stacked.tolist(), lengths.tolist()
    ([[[1.0, 1.0], [1.0, 0.0]]], [2])
    """
    num_frames = features.shape[1]
    features = features.masked_fill(~frame_mask(lengths, num_frames)[:, :, None], 0.0)
    features = F.pad(features, (0, 0, 0, -num_frames % stack))
    return features.unflatten(1, (-1, stack)).flatten(2), (lengths + stack - 1) // stack


def reversal(lengths: Tensor, size: int) -> Tensor:
    """Places [B, size] that turn each row around within its own length and leave the rest."""
    place = torch.arange(size, device=lengths.device)
    return torch.where(place < lengths[:, None], lengths[:, None] - 1 - place, place)


def reversed_frames(frames: Tensor, lengths: Tensor) -> Tensor:
    """Each utterance turned round within its own length; padding stays where it is: [B, T, D].

    >>> reversed_frames(torch.tensor([[[1], [2], [0]]]), torch.tensor([2])).flatten().tolist()
    [2, 1, 0]
    """
    turned: Tensor = Reversed.apply(frames, lengths)
    return turned


class Reversed(torch.autograd.Function):
    """Its own gradient. That of `gather` would add into places: slow, where the last bit must be the same."""

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
    """What a decoder predicts, tokens and the end (0) after them: [B, U] and lengths [B] -> [B, U + 1]."""
    real = frame_mask(lengths, tokens.shape[1] + 1)
    return F.pad(tokens, (0, 1)).masked_fill(~real, 0)


def next_token_losses(logits: Tensor, targets: Tensor, lengths: Tensor, smoothing: float = 0.0) -> Tensor:
    """Cross entropy of `next_tokens` [B, U + 1], summed over each text and its end: [B]."""
    losses = F.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), reduction="none", label_smoothing=smoothing
    ).view_as(targets)
    return losses.masked_fill(~frame_mask(lengths + 1, targets.shape[1]), 0.0).sum(dim=1)


def spell_greedily(limits: Tensor, take_step: Callable[[Tensor], Tensor]) -> list[list[int]]:
    """The best token after the best tokens so far, up to the end (0) or a number of tokens [B].

    take_step: the last tokens [B], zeros at first -> scores of the next [B, num_tokens].
    """
    running, spelled = limits > 0, [torch.zeros_like(limits)]
    while running.any():
        # A finished utterance goes on as zeros, which are left out below.
        spelled.append(take_step(spelled[-1]).argmax(dim=-1).masked_fill(~running, 0))
        running = running & (spelled[-1] != 0) & (len(spelled) - 1 < limits)
    rows: list[list[int]] = torch.stack(spelled, dim=1).tolist()
    return [[token for token in row if token != 0] for row in rows]


def at_least_float32(values: Tensor) -> Tensor:
    """Leaves float64 alone and lifts what autocast made smaller: losses are not computed in 16 bits."""
    return values if values.dtype == torch.float64 else values.float()


def rotary_angles(num_frames: int, dim: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and sine of each frame's rotation (Su et al. 2021, RoFormer), each [num_frames, dim / 2]."""
    dtype = at_least_float32(like).dtype
    exponent = torch.arange(0, dim, 2, device=like.device, dtype=dtype) / dim
    position = torch.arange(num_frames, device=like.device, dtype=dtype)
    angles = position[:, None] * 10000.0**-exponent
    return angles.cos(), angles.sin()


def rotate(values: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Turns queries or keys by their frame's angle: [..., T, dim]. Their products see only t1 - t2."""
    first, second = values.chunk(2, dim=-1)
    turned = torch.cat((first * cosine - second * sine, first * sine + second * cosine), dim=-1)
    return turned.to(values.dtype)


def open_forget_gates(lstm: nn.LSTM | nn.LSTMCell) -> None:
    """Starts the forget gates' bias at 1, so that gradients reach far back from the first step on."""
    with torch.no_grad():
        for name, parameter in lstm.named_parameters():
            if name.startswith("bias"):
                gate = parameter.shape[0] // 4  # gates are stored as input, forget, cell, output
                parameter[gate : 2 * gate] = 1.0 if name.startswith("bias_ih") else 0.0


def in_front(num_clients: int, in_dims: tuple[int | None, ...], *given: Tensor) -> list[Tensor]:
    """Every tensor with the clients' dimension first, also one that all clients share."""
    return [
        tensor.expand(num_clients, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
        for tensor, dim in zip(given, in_dims, strict=True)
    ]


def is_stacked(*tensors: Tensor) -> bool:
    """Whether `vmap` is at work, and every client has its own value of any of these."""
    return any(torch._C._functorch.is_batchedtensor(tensor) for tensor in tensors)


# --- Attention -------------------------------------------------------------------------------------


ANY = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


# Attention has no parameters, so the rows of many clients are rows of one batch. PyTorch's fused kernels have
# no rule for `vmap`: without one, every client's scores [B, heads, T, T] would be written out several times.


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """Each [B, heads, T, d] -> the same; the mask is True where a frame may be seen [B, 1, T or 1, T]."""
    if is_stacked(query, key, value):
        same = (tensor.to(value.dtype) for tensor in (query, key))  # as autocast would have it
        attended: Tensor = Attended.apply(*same, value, mask)
        return attended
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)


class Attended(torch.autograd.Function):
    """Computed again for its gradient: what a kernel keeps for that is its own affair."""

    @staticmethod
    def forward(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        with sdpa_kernel(ANY):
            return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        *given, mask = ctx.saved_tensors
        query, key, value = leaves = [tensor.detach().requires_grad_() for tensor in given]
        with torch.enable_grad(), sdpa_kernel(ANY):
            attended = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return *torch.autograd.grad(attended, leaves, upstream[0].to(attended.dtype)), None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *given: Tensor) -> Any:
        """Clients are more rows."""
        rows = (tensor.flatten(0, 1) for tensor in in_front(info.batch_size, in_dims, *given))
        attended: Tensor = Attended.apply(*rows)
        return attended.unflatten(0, (info.batch_size, -1)), 0
