"""One step of many LSTMs, forward and backward, into memory that is there already.

On a GPU with Triton, the matrix products of a step and its cell are one kernel (`kernels.recurrent`).
Elsewhere, and in float64, they are PyTorch's. Set FUSED to False to have PyTorch's everywhere.

A step belongs to S LSTMs (clients, directions) with R rows (utterances, texts) of their own: tensors of rows
are [S · R, size], any distance apart, and weights are [S, 4 H, size]. Gates are in torch's order: input,
forget, cell, output.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

import torch
from torch import Tensor

from antiphon.models.layers import at_least_float32

FUSED = find_spec("triton") is not None  # comes with torch for GPUs

Source = tuple[Tensor, Tensor]  # rows, and the weights that they are multiplied with


def is_fused(tensor: Tensor) -> bool:
    """Whether kernels of our own compute with this tensor; they have no float64."""
    return FUSED and tensor.is_cuda and tensor.dtype != torch.float64


def streamed(weights: Tensor, gates: Tensor) -> Tensor:
    """Return the weights as all steps read them, as many bytes as the precision of products needs.

    TF32 has the ten bits of float16, and weights have its range.
    """
    if is_fused(gates) and gates.dtype == torch.bfloat16:
        return weights.bfloat16()
    if is_fused(gates) and torch.backends.cuda.matmul.allow_tf32:
        return weights.half()
    return weights.to(at_least_float32(gates).dtype)


def advance(
    gates: Tensor, sources: Sequence[Source], before: Tensor, out: tuple[Tensor, Tensor, Tensor]
) -> None:
    """Write the next hidden state and carry [S · R, H] and the activated gates [S · R, 4 H].

    The gates are the sum of `gates` and of rows · weightsᵀ of the sources; `before` is the last carry.
    """
    if is_fused(gates):
        from antiphon.models.kernels import recurrent

        return recurrent.advance(gates, sources, before, out)
    added = (_product(rows, weights.mT) for rows, weights in sources)
    parts = at_least_float32(gates), sum(added, torch.zeros_like(out[2]))
    for place, values in zip(out, cell(*parts, before), strict=True):
        place.copy_(values)
    return None


def retreat(
    d_hidden: Tensor,
    sources: Sequence[Source],
    d_carry: Tensor,
    step: tuple[Tensor, Tensor, Tensor],
    d_gates: Tensor,
) -> None:
    """Write the gradient of a step's gates, and change that of its carry into that of the carry before.

    The gradient of the hidden state is the sum of `d_hidden` and of rows · weights of the sources. `step`
    holds the carry before, the carry after, and the activated gates.
    """
    if is_fused(d_hidden):
        from antiphon.models.kernels import recurrent

        return recurrent.retreat(d_hidden, sources, d_carry, step, d_gates)
    total = d_hidden + sum(_product(rows, weights) for rows, weights in sources)
    for place, values in zip((d_gates, d_carry), cell_backward(total, d_carry, *step), strict=True):
        place.copy_(values)
    return None


def add_product(added: Tensor, sources: Sequence[Source], out: Tensor) -> None:
    """Write `added` and rows · weights of the sources (one, or none)."""
    if is_fused(added):
        from antiphon.models.kernels import recurrent

        return recurrent.add_product(added, sources, out)
    out.copy_(added + sum(_product(rows, weights) for rows, weights in sources))
    return None


def _product(rows: Tensor, weights: Tensor) -> Tensor:
    """Rows [S · R, I], weights [S, I, O] -> [S · R, O]."""
    product = torch.bmm(rows.unflatten(0, (len(weights), -1)), weights.to(rows.dtype))
    return product.flatten(0, 1).to(rows.dtype)  # autocast gives 16 bits


def cell(from_input: Tensor, from_hidden: Tensor, carry: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The next hidden state and carry [..., H], and the activated gates [..., 4 H] for the gradient."""
    if carry.is_cuda:
        parts = (_flat(from_input), _flat(from_hidden), _flat(carry))
        hidden, after, activated = torch.ops.aten._thnn_fused_lstm_cell(*parts)
        return hidden.view(carry.shape), after.view(carry.shape), activated.view(from_input.shape)
    first, forget, cell, output = (from_input + from_hidden).chunk(4, dim=-1)
    first, forget, output, cell = first.sigmoid(), forget.sigmoid(), output.sigmoid(), cell.tanh()
    after = forget * carry + first * cell
    return output * after.tanh(), after, torch.cat((first, forget, cell, output), dim=-1)


def cell_backward(
    d_hidden: Tensor, d_carry: Tensor, before: Tensor, after: Tensor, activated: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of the gates and of the carry before."""
    if after.is_cuda:
        parts = (_flat(tensor) for tensor in (d_hidden, d_carry, before, after, activated))
        d_gates, d_before, _ = torch.ops.aten._thnn_fused_lstm_cell_backward_impl(*parts, False)
        return d_gates.view(activated.shape), d_before.view(after.shape)
    first, forget, cell, output = activated.chunk(4, dim=-1)
    squashed = after.tanh()
    d_after = d_carry + d_hidden * output * (1 - squashed * squashed)
    gates = (
        d_after * cell * first * (1 - first),
        d_after * before * forget * (1 - forget),
        d_after * first * (1 - cell * cell),
        d_hidden * squashed * output * (1 - output),
    )
    return torch.cat(gates, dim=-1), d_after * forget


def _flat(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1, tensor.shape[-1])
