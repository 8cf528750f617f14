"""Connectionist temporal classification: A. Graves et al., ICML 2006. Token 0 is the blank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from antiphon.data.batches import Batch
from antiphon.models.blstm import BlstmConfig
from antiphon.models.conformer import ConformerConfig
from antiphon.models.layers import at_least_float32, frame_mask
from antiphon.models.losses.ctc_loss import ctc_fits, ctc_losses
from antiphon.models.model import MODELS


@MODELS.register
@dataclass(frozen=True)
class CtcConfig:
    """A CTC recogniser on a Conformer or a bidirectional LSTM.

    >>> model = CtcConfig(ConformerConfig(dim=16, num_layers=1)).build(input_dim=80, num_tokens=29)
    >>> model.fits(3, [7, 7]), model.fits(2, [7, 7])
    (True, False)
    """

    encoder: ConformerConfig | BlstmConfig = field(default_factory=ConformerConfig)

    def build(self, input_dim: int, num_tokens: int) -> Ctc:
        return Ctc(self, input_dim, num_tokens)


class Framewise(nn.Module):
    """What all CTC models share: their forward pass gives log probabilities of frames, and lengths."""

    def score(self, outputs: tuple[Tensor, ...], batch: Batch) -> Tensor:
        """Negative log likelihood of each text in nats: [B · N]; infinite where its tokens do not fit."""
        log_probs, lengths = (batch.per_text(output) for output in outputs)
        return ctc_losses(log_probs, lengths, batch.tokens, batch.token_lengths)

    def losses(self, batch: Batch) -> Tensor:
        return self.score(self(batch), batch)

    @torch.no_grad()
    def greedy(self, batch: Batch) -> list[list[int]]:
        """The best token of every frame, repeats collapsed, blanks dropped."""
        log_probs, lengths = self(batch)
        return collapse(log_probs.argmax(dim=-1), lengths)


class Ctc(Framewise):
    """An encoder and one linear layer."""

    def __init__(self, config: CtcConfig, input_dim: int, num_tokens: int) -> None:
        super().__init__()
        self.encoder = config.encoder.build(input_dim)
        self.output = nn.Linear(self.encoder.dim, num_tokens)

    def forward(self, batch: Batch) -> tuple[Tensor, ...]:
        """Log probabilities [B, T', num_tokens] and numbers of real frames [B]."""
        frames, lengths = self.encoder(batch.features, batch.feature_lengths)
        return F.log_softmax(at_least_float32(self.output(frames)), dim=-1), lengths

    def fits(self, num_frames: int, tokens: Sequence[int]) -> bool:
        return ctc_fits(self.encoder.num_output_frames(num_frames), tokens)


def collapse(path: Tensor, lengths: Tensor) -> list[list[int]]:
    """What a path of tokens [B, T] spells.

    >>> collapse(torch.tensor([[3, 3, 0, 3, 5, 5]]), torch.tensor([5]))
    [[3, 3, 5]]
    """
    previous = F.pad(path, (1, 0))[:, :-1]
    kept = (path != previous) & (path != 0) & frame_mask(lengths, path.shape[1])
    return [row[keep].tolist() for row, keep in zip(path.cpu(), kept.cpu(), strict=True)]
