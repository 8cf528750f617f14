"""What branches of stacked clients share: how they leave `vmap`, matrix products, and where gradients go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch._functorch.pyfunctorch import VmapInterpreter, retrieve_current_functorch_interpreter

from antiphon.models.gradient_rows import current_gradients
from antiphon.models.layers import clients_first, is_stacked
from antiphon.models.noise import FIRST, GOLDEN, SECOND, Dropout, current_noise, site_bits

# Parts that have kernels of their own; without their names here, they are PyTorch's.
FUSED: set[str] = set()
if find_spec("triton") is not None:  # comes with torch for GPUs
    FUSED = {"feed_forward", "attention", "convolution", "norm", "step"}
PLAIN = (nn.LayerNorm, nn.Linear, nn.Conv1d)  # layers as they were built: not adapted, not pruned


@dataclass(frozen=True)
class Setting:
    """What a branch needs beside tensors: sites and rate of its dropout, and the numbers of its products."""

    dtype: torch.dtype
    eps: float
    share: float = 1.0
    rate: float = 0.0
    sites: tuple[int, ...] = ()
    num_heads: int = 0
    rotation: tuple[Tensor, ...] = field(default=(), repr=False)

    def drop(self, keys: Tensor, num_frames: int, place: int) -> Any:
        from antiphon.models.kernels.rows import Drop

        site = site_bits(self.sites[place]) if self.sites else 0
        return Drop(keys.contiguous(), num_frames, site, self.rate, (FIRST, SECOND, GOLDEN))


def for_all(compute: Callable[..., Tensor], count: int, *tensors: Tensor) -> Tensor:
    """A part under `vmap`: `compute` gets `count` tensors of utterances, then parameters, of all clients.

    This is what the rule of a `torch.autograd.Function` does, without the half millisecond in which PyTorch
    looks for tensors in trees of arguments.
    """
    functions, interpreter = torch._C._functorch, retrieve_current_functorch_interpreter()
    assert isinstance(interpreter, VmapInterpreter)
    level, num_clients = interpreter.level(), interpreter.batch_size()
    own, dims = zip(*(functions._unwrap_batched(tensor, level) for tensor in tensors), strict=True)
    with interpreter.lower():
        stacked = clients_first(num_clients, dims, *own)
        utterances = (tensor.flatten(0, 1).contiguous() for tensor in stacked[:count])
        out = compute(*utterances, *stacked[count:]).unflatten(0, (num_clients, -1))
    return functions._add_batch_dim(out, 0, level)


def has_kernels(tensor: Tensor) -> bool:
    """Whether there are kernels for a tensor: on a GPU; in float32, in which parameters are."""
    return tensor.is_cuda and tensor.dtype == torch.float32


def takes(name: str, values: Tensor, *layers: nn.Module) -> bool:
    """Whether a part of these layers is computed for all clients at once."""
    return (
        name in FUSED
        and is_stacked(values)
        and has_kernels(values)
        and all(_is_plain(layer) for layer in layers)
    )


def _is_plain(layer: nn.Module) -> bool:
    if type(layer) is Dropout:
        return not layer.training or layer.rate == 0 or current_noise() is not None
    return type(layer) is nn.SiLU or (type(layer) in PLAIN and layer.bias is not None)


def setting_for(
    values: Tensor, norm: Any, dropout: Dropout | None, num_sites: int = 1, **others: Any
) -> tuple[Setting, Tensor]:
    """The setting of a branch, and the keys [B] of its utterances; it draws its noise as layers would."""
    kind, eps = values.device.type, 0.0 if norm is None else norm.eps
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else values.dtype
    noise = current_noise()
    if dropout is None or not dropout.training or dropout.rate == 0 or noise is None:
        return Setting(dtype, eps, **others), values.new_zeros(len(values), dtype=torch.int32)
    draws = [noise.next(len(values)) for _ in range(num_sites)]
    sites = tuple(site for _, site in draws)
    return Setting(dtype, eps, rate=dropout.rate, sites=sites, **others), draws[0][0]


def lower(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """A weight in the numbers of products; with those of all other parameters, if they share rows."""
    gradients = current_gradients()
    if weight.dtype == dtype or gradients is None:
        return weight.to(dtype)
    return gradients.lower(weight, dtype)


def multiply(rows: Tensor, weights: Tensor) -> Tensor:
    """Rows [S · R, I] times the transposed weights [S, O, I] of their clients -> [S · R, O]."""
    return torch.bmm(rows.view(weights.shape[0], -1, rows.shape[1]), weights.mT).flatten(0, 1)


def weight_gradient(ctx: Any, number: int, upstream: Tensor, rows: Tensor, weight: Tensor) -> Tensor | None:
    """The gradient of input `number`, a weight [S, O, I], from rows [S · R, O] and [S · R, I]."""
    if not ctx.needs_input_grad[number]:
        return None
    out = place(ctx, weight)
    left, right = (values.view(weight.shape[0], -1, values.shape[1]) for values in (upstream, rows))
    multiply_into(left.mT, right, out)
    return out


def multiply_into(left: Tensor, right: Tensor, out: Tensor) -> None:
    """Products of matrices of clients, in place; the factors may have fewer bits."""
    if left.dtype == out.dtype:
        torch.bmm(left, right, out=out)
    elif left.is_cuda:
        torch.bmm(left, right, out_dtype=out.dtype, out=out)
    else:  # a CPU has no products of other numbers than their factors
        out.copy_(torch.bmm(left, right))


def add_up(ctx: Any, number: int, sums: Tensor, parameter: Tensor) -> Tensor | None:
    """The gradient of input `number`, a parameter [S, ...], from sums of blocks [S, blocks, ...]."""
    if not ctx.needs_input_grad[number]:
        return None
    from antiphon.models.kernels import rows

    out = place(ctx, parameter)
    rows.add_up(sums, out)
    return out


def place(ctx: Any, parameter: Tensor) -> Tensor:
    """Memory for the gradient of a parameter."""
    if ctx.gradients is None:
        return torch.empty(parameter.shape, dtype=parameter.dtype, device=parameter.device)
    out: Tensor = ctx.gradients.place(parameter)
    return out
