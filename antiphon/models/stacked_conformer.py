"""Branches of a Conformer block for many clients at once, forward and backward, on a GPU with Triton.

The equations are those of `models.conformer`, which stays the reference, and computes everything else: one
client, a CPU, float64, and layers that were replaced (adapters, pruned models). Here, matrix products of all
clients are one call, and everything between two of them is one kernel (`models.kernels`).

Under `vmap`, tensors of utterances are [B, ...]; the functions below get them as [S · B, ...], and parameters
as [S, ...]. Rows are [S · B · T, dim].
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from antiphon.models.gradient_rows import current_gradients
from antiphon.models.stacked_products import (
    Setting,
    add_up,
    for_all,
    lower,
    multiply,
    setting_for,
    takes,
    weight_gradient,
)


def layer_of_all(
    layer: Any, frames: Tensor, lengths: Tensor, mask: Tensor, rotation: tuple[Tensor, Tensor]
) -> Tensor:
    """Frames [B, T, dim] through a `ConformerLayer`; lengths [B] of at least 1."""
    frames = half_step(layer.feed_forward_before, frames)
    frames = attended(layer.attention, frames, lengths, mask, rotation)
    frames = convolved(layer.convolution, frames, lengths, mask)
    frames = half_step(layer.feed_forward_after, frames)
    return normed(layer.norm, frames)


def half_step(layers: nn.Sequential, frames: Tensor) -> Tensor:
    """Frames [B, T, dim] plus half of LayerNorm, matrix, SiLU, dropout, matrix, dropout."""
    norm, first, _, drop, second, _ = modules = list[Any](layers)
    if not takes("feed_forward", frames, *modules):
        return frames + 0.5 * layers(frames)
    setting, keys = setting_for(frames, norm, drop, num_sites=2, share=0.5)
    compute = _bound(FeedForward, setting)
    parameters = (*_of(norm), *_of(first), *_of(second))
    return for_all(compute, 2, frames, keys, *parameters)


def attended(
    attention: Any, frames: Tensor, lengths: Tensor, mask: Tensor, rotation: tuple[Tensor, Tensor]
) -> Tensor:
    """Frames [B, T, dim] plus attention over the real ones; lengths [B] of at least 1."""
    norm, product, output = attention.norm, attention.query_key_value, attention.output
    if not takes("attention", frames, norm, product, output, attention.dropout):
        return frames + attention(frames, mask, rotation)
    setting, keys = setting_for(
        frames, norm, attention.dropout, num_heads=attention.num_heads, rotation=rotation
    )
    parameters = (*_of(norm), *_of(product), *_of(output))
    return for_all(_bound(Attention, setting), 3, frames, keys, lengths, *parameters)


def convolved(convolution: Any, frames: Tensor, lengths: Tensor, mask: Tensor) -> Tensor:
    """Frames [B, T, dim] plus the gated convolution of the real ones; lengths [B] of at least 1."""
    parts = ("norm", "gate", "depthwise", "depthwise_norm", "output")
    layers = [getattr(convolution, part) for part in parts]
    if not takes("convolution", frames, *layers, convolution.dropout):
        return frames + convolution(frames, mask)
    setting, keys = setting_for(frames, convolution.norm, convolution.dropout)
    parameters = [tensor for layer in layers for tensor in _of(layer)]
    return for_all(_bound(Convolution, setting), 3, frames, keys, lengths, *parameters)


def normed(norm: nn.Module, frames: Tensor) -> Tensor:
    """LayerNorm of frames [B, T, dim]."""
    if not takes("norm", frames, norm):
        normal: Tensor = norm(frames)
        return normal
    setting, _ = setting_for(frames, norm, None)
    return for_all(_bound(Norm, setting), 1, frames, *_of(norm))


def _of(layer: Any) -> tuple[Tensor, Tensor]:
    return layer.weight, layer.bias


def _bound(function: Any, setting: Setting) -> Any:
    return lambda *tensors: function.apply(setting, *tensors)


class Norm(torch.autograd.Function):
    """LayerNorm of frames [S · B, T, dim]."""

    @staticmethod
    def forward(ctx: Any, setting: Setting, frames: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        from antiphon.models.kernels import norms

        values = frames.flatten(0, 1)
        out, means, scales = norms.norm(values, weight, bias, setting.eps, frames.dtype)
        ctx.setting, ctx.gradients = setting, current_gradients()
        ctx.save_for_backward(values, means, scales, weight, bias)
        return out.view_as(frames)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        from antiphon.models.kernels import norms

        *kept, weight, bias = ctx.saved_tensors
        d_out = upstream[0].flatten(0, 1).contiguous()
        d_values, sums = norms.norm_gradient(d_out, kept, weight, bias)
        found = (add_up(ctx, 2 + place, sums[:, place], each) for place, each in enumerate((weight, bias)))
        return None, d_values.view_as(upstream[0]), *found


class FeedForward(torch.autograd.Function):
    """See `half_step`."""

    @staticmethod
    def forward(ctx: Any, setting: Setting, frames: Tensor, keys: Tensor, *parameters: Tensor) -> Tensor:
        from antiphon.models.kernels import norms, rows

        norm_weight, norm_bias, first, first_bias, second, second_bias = parameters
        values, num_frames = frames.flatten(0, 1), frames.shape[1]
        entering, means, scales = norms.norm(values, norm_weight, norm_bias, setting.eps, setting.dtype)
        low = lower(first, setting.dtype), lower(second, setting.dtype)
        hidden = multiply(entering, low[0])
        active = rows.activate(hidden, first_bias, setting.drop(keys, num_frames, 0))
        last = multiply(active, low[1])
        out = rows.add(last, second_bias, values, setting.share, setting.drop(keys, num_frames, 1))
        ctx.setting, ctx.gradients = setting, current_gradients()
        ctx.save_for_backward(keys, values, means, scales, entering, hidden, active, *low, *parameters)
        return out.view_as(frames)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        from antiphon.models.kernels import norms, rows

        keys, *normal, entering, hidden, active, low_first, low_second = ctx.saved_tensors[:9]
        norm_weight, norm_bias, first, first_bias, second, second_bias = ctx.saved_tensors[9:]
        setting, d_out, num_frames = ctx.setting, upstream[0].flatten(0, 1).contiguous(), upstream[0].shape[1]
        drops = [setting.drop(keys, num_frames, place) for place in (0, 1)]
        d_last, second_sums = rows.add_gradient(
            d_out, second.shape[0], setting.share, drops[1], setting.dtype
        )
        d_second = weight_gradient(ctx, 7, d_last, active, second)
        d_active = multiply(d_last, low_second.mT)
        d_hidden, first_sums = rows.activate_gradient(d_active, hidden, first_bias, drops[0])
        d_first = weight_gradient(ctx, 5, d_hidden, entering, first)
        d_entering = multiply(d_hidden, low_first.mT)
        d_values, norm_sums = norms.norm_gradient(d_entering, normal, norm_weight, norm_bias, past=d_out)
        return (
            *(None, d_values.view_as(upstream[0]), None),
            *(add_up(ctx, 3, norm_sums[:, 0], norm_weight), add_up(ctx, 4, norm_sums[:, 1], norm_bias)),
            *(d_first, add_up(ctx, 6, first_sums, first_bias)),
            *(d_second, add_up(ctx, 8, second_sums, second_bias)),
        )


class Attention(torch.autograd.Function):
    """See `attended`."""

    @staticmethod
    def forward(
        ctx: Any, setting: Setting, frames: Tensor, keys: Tensor, lengths: Tensor, *parameters: Tensor
    ) -> Tensor:
        from antiphon.models.kernels import norms, rotary, rows

        norm_weight, norm_bias, product, product_bias, output, output_bias = parameters
        values, num_frames = frames.flatten(0, 1), frames.shape[1]
        heads = rotary.Heads(lengths.contiguous(), setting.rotation, setting.num_heads)
        entering, means, scales = norms.norm(values, norm_weight, norm_bias, setting.eps, setting.dtype)
        low = lower(product, setting.dtype), lower(output, setting.dtype)
        products = multiply(entering, low[0])
        mixed, logs = rotary.attend(products, product_bias, heads)
        last = multiply(mixed, low[1])
        out = rows.add(last, output_bias, values, setting.share, setting.drop(keys, num_frames, 0))
        ctx.setting, ctx.heads, ctx.gradients = setting, heads, current_gradients()
        ctx.save_for_backward(keys, values, means, scales, entering, products, mixed, logs, *low, *parameters)
        return out.view_as(frames)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        from antiphon.models.kernels import norms, rotary, rows

        keys, *normal, entering, products, mixed, logs, low_product, low_output = ctx.saved_tensors[:10]
        norm_weight, norm_bias, product, product_bias, output, output_bias = ctx.saved_tensors[10:]
        setting, d_out = ctx.setting, upstream[0].flatten(0, 1).contiguous()
        drop = setting.drop(keys, upstream[0].shape[1], 0)
        d_last, output_sums = rows.add_gradient(d_out, output.shape[0], setting.share, drop, setting.dtype)
        d_output = weight_gradient(ctx, 8, d_last, mixed, output)
        d_mixed = multiply(d_last, low_output.mT)
        d_products, sums = rotary.attend_gradient(d_mixed, (mixed, logs), products, product_bias, ctx.heads)
        d_product = weight_gradient(ctx, 6, d_products, entering, product)
        d_entering = multiply(d_products, low_product.mT)
        d_values, norm_sums = norms.norm_gradient(d_entering, normal, norm_weight, norm_bias, past=d_out)
        return (
            *(None, d_values.view_as(upstream[0]), None, None),
            *(add_up(ctx, 4, norm_sums[:, 0], norm_weight), add_up(ctx, 5, norm_sums[:, 1], norm_bias)),
            *(d_product, add_up(ctx, 7, sums, product_bias)),
            *(d_output, add_up(ctx, 9, output_sums, output_bias)),
        )


class Convolution(torch.autograd.Function):
    """See `convolved`."""

    @staticmethod
    def forward(
        ctx: Any, setting: Setting, frames: Tensor, keys: Tensor, lengths: Tensor, *parameters: Tensor
    ) -> Tensor:
        from antiphon.models.kernels import convolution, norms, rows

        norm_weight, norm_bias, gate, gate_bias, *inner, output, output_bias = parameters
        values, num_frames, lengths = frames.flatten(0, 1), frames.shape[1], lengths.contiguous()
        entering, means, scales = norms.norm(values, norm_weight, norm_bias, setting.eps, setting.dtype)
        low = lower(gate, setting.dtype), lower(output, setting.dtype)
        products = multiply(entering, low[0])
        gated = convolution.gate(products, gate_bias, lengths, num_frames)
        mixed, inner_normal = convolution.convolve(gated, inner, num_frames, setting.eps)
        last = multiply(mixed, low[1])
        out = rows.add(last, output_bias, values, setting.share, setting.drop(keys, num_frames, 0))
        ctx.setting, ctx.gradients = setting, current_gradients()
        kept = (keys, lengths, values, means, scales, entering, products, *inner_normal, mixed)
        ctx.save_for_backward(*kept, *low, *parameters)
        return out.view_as(frames)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        from antiphon.models.kernels import convolution, norms, rows

        keys, lengths, *kept, mixed, low_gate, low_output = ctx.saved_tensors[:13]
        norm_weight, norm_bias, gate, gate_bias, *inner, output, output_bias = ctx.saved_tensors[13:]
        normal, (entering, products), inner_normal = kept[:3], kept[3:5], kept[5:]
        taps, taps_bias, inner_weight, inner_bias = inner
        setting, d_out = ctx.setting, upstream[0].flatten(0, 1).contiguous()
        drop = setting.drop(keys, upstream[0].shape[1], 0)
        d_last, output_sums = rows.add_gradient(d_out, output.shape[0], setting.share, drop, setting.dtype)
        d_output = weight_gradient(ctx, 12, d_last, mixed, output)
        d_mixed, inner_sums = norms.norm_gradient(
            multiply(d_last, low_output.mT), inner_normal, inner_weight, inner_bias,
            activated=True, dtype=setting.dtype,
        )  # fmt: skip
        d_products, gate_sums, tap_sums = convolution.convolve_gradient(
            d_mixed, products, gate_bias, taps, lengths
        )
        d_gate = weight_gradient(ctx, 6, d_products, entering, gate)
        d_entering = multiply(d_products, low_gate.mT)
        d_values, norm_sums = norms.norm_gradient(d_entering, normal, norm_weight, norm_bias, past=d_out)
        return (
            *(None, d_values.view_as(upstream[0]), None, None),
            *(add_up(ctx, 4, norm_sums[:, 0], norm_weight), add_up(ctx, 5, norm_sums[:, 1], norm_bias)),
            *(d_gate, add_up(ctx, 7, gate_sums, gate_bias)),
            *(add_up(ctx, 8, tap_sums, taps), add_up(ctx, 9, inner_sums[:, 2], taps_bias)),
            *(add_up(ctx, 10, inner_sums[:, 0], inner_weight), add_up(ctx, 11, inner_sums[:, 1], inner_bias)),
            *(d_output, add_up(ctx, 13, output_sums, output_bias)),
        )
