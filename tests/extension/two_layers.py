"""A model: CTC on two linear layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from antiphon.data.batches import Batch
from antiphon.models.ctc import Framewise, ctc_fits


@dataclass(frozen=True)
class TwoLayersConfig:
    dim: int = 12

    def build(self, input_dim: int, num_tokens: int) -> TwoLayers:
        return TwoLayers(self, input_dim, num_tokens)


class TwoLayers(Framewise):
    def __init__(self, config: TwoLayersConfig, input_dim: int, num_tokens: int) -> None:
        super().__init__()
        self.hidden, self.output = nn.Linear(input_dim, config.dim), nn.Linear(config.dim, num_tokens)

    def forward(self, batch: Batch) -> tuple[Tensor, ...]:
        frames = self.hidden(batch.features).tanh()
        return F.log_softmax(self.output(frames), dim=-1), batch.feature_lengths

    def fits(self, num_frames: int, tokens: Sequence[int]) -> bool:
        return ctc_fits(num_frames, tokens)
