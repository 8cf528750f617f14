"""Conformer encoder: A. Gulati et al., "Conformer: Convolution-augmented Transformer", Interspeech 2020.

Deviations, and why:
- LayerNorm per frame replaces BatchNorm: batch statistics mix padding and speakers, and are no parameters.
- Rotary positions (Su et al. 2021) replace relative positional encodings: they too depend on the distance
  between frames only, have no parameters, and allow the fused attention kernel.
- Frames are stacked instead of subsampled by convolution, so that no output sees a padding frame.
- Dropout acts on the residual branches only, not on attention weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from antiphon.models.layers import (
    attend,
    check_sizes,
    frame_mask,
    is_stacked,
    num_stacked,
    rotary_angles,
    rotate,
    stack_frames,
)
from antiphon.models.model import ENCODERS
from antiphon.models.noise import Dropout


@ENCODERS.register
@dataclass(frozen=True)
class ConformerConfig:
    """The defaults make 3.1 M parameters on 288-dimensional features."""

    dim: int = 256  # width of the layers
    num_layers: int = 2  # number of Conformer blocks
    num_heads: int = 4  # of attention; they divide dim
    feed_forward_multiplier: int = 4  # inner width of the feed-forward parts, in multiples of dim
    kernel_size: int = 15  # frames that a convolution sees, an odd number
    dropout: float = 0.1  # share of values that are set to zero in training
    stack: int = 1  # frames joined into one at the input; for log-mel frames every 10 ms take 3 or 4

    def __post_init__(self) -> None:
        sizes = (self.dim, self.num_heads, self.feed_forward_multiplier, self.kernel_size, self.stack)
        check_sizes(self, self.num_layers, *sizes)
        if self.dim % (2 * self.num_heads):
            raise ValueError(
                f"conformer dim {self.dim} must be a multiple of 2 * num_heads = {2 * self.num_heads}: "
                "rotary positions rotate pairs of values within a head"
            )
        if self.kernel_size % 2 == 0:
            raise ValueError(f"conformer kernel_size {self.kernel_size} must be odd, to have a centre")

    def build(self, input_dim: int) -> Conformer:
        return Conformer(self, input_dim)


class Conformer(nn.Module):
    """Features [B, T, D] and lengths [B] -> encoded frames [B, ceil(T/stack), dim] and their lengths [B]."""

    def __init__(self, config: ConformerConfig, input_dim: int) -> None:
        super().__init__()
        self.config = config
        self.dim = config.dim
        self.project = nn.Linear(config.stack * input_dim, config.dim)
        # After the projection, so that features may have any scale and the loudness of a frame is not lost.
        self.project_norm = nn.LayerNorm(config.dim)
        self.dropout = Dropout(config.dropout)
        self.layers = nn.ModuleList(ConformerLayer(config) for _ in range(config.num_layers))

    def num_output_frames(self, num_frames: int) -> int:
        return num_stacked(num_frames, self.config.stack)

    def forward(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        stacked, lengths = stack_frames(features, lengths, self.config.stack)
        frames = self.dropout(_normed(self.project_norm, self.project(stacked)))
        # An empty row (padding of a stacked cohort) attends to its first frame: no 0/0 in its softmax.
        real = lengths.clamp(min=1)
        mask = frame_mask(real, frames.shape[1])
        rotation = rotary_angles(frames.shape[1], self.dim // self.config.num_heads, like=frames)
        for layer in self.layers:
            frames = layer(frames, real, mask, rotation)
        return frames, lengths


class ConformerLayer(nn.Module):
    """Half a feed-forward step, attention, convolution, another half feed-forward step, LayerNorm."""

    def __init__(self, config: ConformerConfig) -> None:
        super().__init__()
        sizes = config.dim, config.feed_forward_multiplier * config.dim
        self.feed_forward_before = feed_forward(*sizes, nn.SiLU(), config.dropout)
        self.attention = RotaryAttention(config)
        self.convolution = Convolution(config)
        self.feed_forward_after = feed_forward(*sizes, nn.SiLU(), config.dropout)
        self.norm = nn.LayerNorm(config.dim)

    def forward(
        self, frames: Tensor, lengths: Tensor, mask: Tensor, rotation: tuple[Tensor, Tensor]
    ) -> Tensor:
        if is_stacked(frames):
            from antiphon.models.stacked_conformer import layer_of_all

            return layer_of_all(self, frames, lengths, mask, rotation)
        frames = frames + 0.5 * self.feed_forward_before(frames)
        frames = frames + self.attention(frames, mask, rotation)
        frames = frames + self.convolution(frames, mask)
        frames = frames + 0.5 * self.feed_forward_after(frames)
        normed: Tensor = self.norm(frames)
        return normed


def _normed(norm: nn.Module, frames: Tensor) -> Tensor:
    """LayerNorm; that of many clients at once may have a kernel."""
    if is_stacked(frames):
        from antiphon.models.stacked_conformer import normed

        return normed(norm, frames)
    out: Tensor = norm(frames)
    return out


def feed_forward(dim: int, hidden: int, activation: nn.Module, dropout: float) -> nn.Sequential:
    first, second = nn.Linear(dim, hidden), nn.Linear(hidden, dim)
    return nn.Sequential(nn.LayerNorm(dim), first, activation, Dropout(dropout), second, Dropout(dropout))


class RotaryAttention(nn.Module):
    """Self-attention over real frames [B, T, dim], with rotary positions."""

    def __init__(self, config: ConformerConfig) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.norm = nn.LayerNorm(config.dim)
        self.query_key_value = nn.Linear(config.dim, 3 * config.dim)
        self.output = nn.Linear(config.dim, config.dim)
        self.dropout = Dropout(config.dropout)

    def forward(self, frames: Tensor, mask: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        split = self.query_key_value(self.norm(frames)).unflatten(-1, (3, self.num_heads, -1))
        query, key, value = split.permute(2, 0, 3, 1, 4)  # each [B, heads, T, dim / heads]
        attended = attend(rotate(query, *rotation), rotate(key, *rotation), value, mask[:, None, None, :])
        return self.dropout(self.output(attended.transpose(1, 2).flatten(2)))


class Convolution(nn.Module):
    """Gated depthwise convolution over time of frames [B, T, dim]."""

    def __init__(self, config: ConformerConfig) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.dim)
        self.gate = nn.Linear(config.dim, 2 * config.dim)
        size = config.kernel_size
        self.depthwise = nn.Conv1d(config.dim, config.dim, size, padding=size // 2, groups=config.dim)
        self.depthwise_norm = nn.LayerNorm(config.dim)
        self.output = nn.Linear(config.dim, config.dim)
        self.dropout = Dropout(config.dropout)

    def forward(self, frames: Tensor, mask: Tensor) -> Tensor:
        gated = F.glu(self.gate(self.norm(frames)), dim=-1)
        gated = gated.masked_fill(~mask[:, :, None], 0.0)  # as the convolution pads an utterance alone
        mixed = self.depthwise(gated.transpose(1, 2)).transpose(1, 2)
        return self.dropout(self.output(F.silu(self.depthwise_norm(mixed))))
