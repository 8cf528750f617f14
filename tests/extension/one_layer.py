"""An encoder: one linear layer."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn


@dataclass(frozen=True)
class OneLayerConfig:
    dim: int = 8

    def build(self, input_dim: int) -> OneLayer:
        return OneLayer(self, input_dim)


class OneLayer(nn.Module):
    def __init__(self, config: OneLayerConfig, input_dim: int) -> None:
        super().__init__()
        self.dim, self.layer = config.dim, nn.Linear(input_dim, config.dim)

    def num_output_frames(self, num_frames: int) -> int:
        return num_frames

    def forward(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        return self.layer(features).tanh(), lengths
