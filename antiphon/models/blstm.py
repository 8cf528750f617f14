"""Bidirectional LSTM encoder with LayerNorm after each layer.

The backward direction is a second LSTM over each utterance turned round within its own length, so it
starts at the utterance's last frame and never sees padding, as with packed sequences. Packed they
would cost 2 to 3 times as much on a CPU and as much on a GPU, and would bring lengths to the host.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from antiphon.models.layers import num_stacked, open_forget_gates, stack_frames
from antiphon.models.lstm import bidirectional
from antiphon.models.noise import Dropout


@dataclass(frozen=True)
class BlstmConfig:
    """`dim` is the width of one direction: encoded frames are twice as wide."""

    dim: int = 256
    num_layers: int = 4
    dropout: float = 0.1
    stack: int = 3  # frames joined into one at the input

    def __post_init__(self) -> None:
        if min(self.dim, self.num_layers, self.stack) < 1:
            raise ValueError(f"blstm sizes must be at least 1: {self}")

    def build(self, input_dim: int) -> Blstm:
        return Blstm(self, input_dim)


class Blstm(nn.Module):
    """Features [B, T, D], lengths [B] -> encoded frames [B, ceil(T/stack), 2 * dim], their lengths [B]."""

    def __init__(self, config: BlstmConfig, input_dim: int) -> None:
        super().__init__()
        self.config = config
        self.dim = 2 * config.dim
        widths = [config.stack * input_dim] + [self.dim] * (config.num_layers - 1)
        self.layers = nn.ModuleList(BlstmLayer(width, config) for width in widths)

    def num_output_frames(self, num_frames: int) -> int:
        return num_stacked(num_frames, self.config.stack)

    def forward(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        frames, lengths = stack_frames(features, lengths, self.config.stack)
        for layer in self.layers:
            frames = layer(frames, lengths)
        return frames, lengths


class BlstmLayer(nn.Module):
    """Frames [B, T, input_dim] -> [B, T, 2 * dim]; what comes out past an utterance's end means nothing."""

    def __init__(self, input_dim: int, config: BlstmConfig) -> None:
        super().__init__()
        self.forwards = nn.LSTM(input_dim, config.dim, batch_first=True)
        self.backwards = nn.LSTM(input_dim, config.dim, batch_first=True)
        open_forget_gates(self.forwards)
        open_forget_gates(self.backwards)
        self.norm = nn.LayerNorm(2 * config.dim)
        self.dropout = Dropout(config.dropout)

    def forward(self, frames: Tensor, lengths: Tensor) -> Tensor:
        return self.dropout(self.norm(bidirectional(self.forwards, self.backwards, frames, lengths)))
