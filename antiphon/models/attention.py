"""Attention proper, softmax(q kᵀ) v: no parameters, so many clients' rows are rows of one batch.

PyTorch's fused kernels have no rule for `vmap`, and without one every client's scores [B, heads, T, T] would
be written out, several times. Stacked clients are laid into the batch instead, and one fused kernel serves
all of them as it serves one.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from antiphon.models.layers import in_front
from antiphon.models.lstm import is_stacked

ANY = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


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
