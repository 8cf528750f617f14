"""Transducers: an encoder that hears, a prediction network that reads, and a joint network over both.

A. Graves, "Sequence Transduction with Recurrent Neural Networks", 2012 (the model and its loss);
R. Botros et al., "Tied & Reduced RNN-T Decoder", Interspeech 2021 (a prediction network that only looks at
embeddings of the last labels, two of them); the configuration is that of R. Lin et al., "Federated Pruning:
Improving Neural Network Efficiency with Federated Learning", Interspeech 2022, §3: 17 Conformer layers of
512, a 640-dimensional embedding prediction network, a 2048-dimensional joint network.

| symbol | name here |
| --- | --- |
| f_t | `frames`, the encoder's, as the joint network takes them |
| g_u | `states`, the prediction network's after u labels, as the joint network takes them |
| ∅ | token 0, which also stands for what was before the first label |

Deviations, and why:
- The last labels' embeddings are concatenated and projected, not averaged with a weight for each place
  (M. Ghodsi et al., "RNN-Transducer with Stateless Prediction Network", 2020, do so too): more general, and
  640 × 1280 parameters are little beside 108 M.
- Embedding and output layer are not tied: the papers do not say so for this size.
- LayerNorm where the pruning paper has GroupNorm: see `conformer`. Its kernel of 32 must be odd here: 31.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from antiphon.data.batches import Batch
from antiphon.models.blstm import BlstmConfig
from antiphon.models.conformer import ConformerConfig
from antiphon.models.joint import next_log_probs
from antiphon.models.layers import frame_mask
from antiphon.models.model import MODELS
from antiphon.models.noise import Dropout
from antiphon.models.rnnt_loss import rnnt_losses


@MODELS.register
@dataclass(frozen=True)
class TransducerConfig:
    """A transducer on a Conformer or a bidirectional LSTM.

    >>> model = TransducerConfig(ConformerConfig(dim=16, num_layers=1)).build(input_dim=80, num_tokens=29)
    >>> model.fits(1, [7, 7])
    True
    """

    encoder: ConformerConfig | BlstmConfig = field(default_factory=lambda: ConformerConfig(stack=4))
    prediction_dim: int = 256
    context: int = 2  # last labels the prediction network sees
    joint_dim: int = 320
    dropout: float = 0.1  # of the prediction network
    symbols_per_frame: int = 4  # at most, in greedy decoding; the loss knows no limit

    def __post_init__(self) -> None:
        if min(self.prediction_dim, self.context, self.joint_dim, self.symbols_per_frame) < 1:
            raise ValueError(f"transducer sizes must be at least 1: {self}")

    def build(self, input_dim: int, num_tokens: int) -> Transducer:
        return Transducer(self, input_dim, num_tokens)


# 3.7 and 13.2 M parameters on 80 log-mel filters every 10 ms and 500 tokens.
SMALL = TransducerConfig()
MEDIUM = TransducerConfig(ConformerConfig(num_layers=8, stack=4), prediction_dim=320, joint_dim=512)
# As published: 108 M, 103 of them in the encoder.
PUBLISHED = TransducerConfig(
    ConformerConfig(dim=512, num_layers=17, num_heads=8, kernel_size=31, stack=4),
    prediction_dim=640,
    joint_dim=2048,
)


class Transducer(nn.Module):
    """At every frame, tokens one after another until a blank; each depends on the frame and the last few."""

    def __init__(self, config: TransducerConfig, input_dim: int, num_tokens: int) -> None:
        super().__init__()
        self.config = config
        self.encoder = config.encoder.build(input_dim)
        self.from_encoder = nn.Linear(self.encoder.dim, config.joint_dim)
        self.prediction = Prediction(config, num_tokens)
        self.from_prediction = nn.Linear(config.prediction_dim, config.joint_dim, bias=False)
        self.output = nn.Linear(config.joint_dim, num_tokens)

    def forward(self, batch: Batch) -> tuple[Tensor, ...]:
        """Log probabilities of blanks [B · N, T', U + 1] and next tokens [B · N, T', U]; real frames [B]."""
        frames, lengths = self.listen(batch)
        tokens = batch.tokens.masked_fill(~frame_mask(batch.token_lengths, batch.tokens.shape[1]), 0)
        contexts = F.pad(tokens, (self.config.context, 0)).unfold(1, self.config.context, 1)
        blank, label = next_log_probs(
            batch.per_text(frames), self.predict(contexts), self.output.weight, self.output.bias, tokens
        )
        return blank, label, lengths

    def score(self, outputs: tuple[Tensor, ...], batch: Batch) -> Tensor:
        """Negative log likelihood of each text in nats, over all its alignments: [B · N]."""
        blank, label, lengths = outputs
        return rnnt_losses(blank, label, batch.per_text(lengths), batch.token_lengths)

    def losses(self, batch: Batch) -> Tensor:
        return self.score(self(batch), batch)

    @torch.no_grad()
    def greedy(self, batch: Batch) -> list[list[int]]:
        """The best token again and again until it is a blank, frame by frame: `symbols_per_frame` at most."""
        frames, lengths = self.listen(batch)
        context = self.start(len(frames))
        state = self.predict(context)
        spelled = []
        for number, frame in enumerate(frames.unbind(dim=1)):
            running = number < lengths
            for _ in range(self.config.symbols_per_frame):
                tokens = self.classify(frame, state).argmax(dim=-1).masked_fill(~running, 0)
                running = tokens != 0
                if not running.any():
                    break
                spelled.append(tokens)
                context = torch.where(running[:, None], self.advance(context, tokens), context)
                state = self.predict(context)
        rows: list[list[int]] = torch.stack(spelled, dim=1).tolist() if spelled else [[]] * len(frames)
        return [[token for token in row if token != 0] for row in rows]

    def fits(self, num_frames: int, tokens: Sequence[int]) -> bool:
        """A frame can hold any number of tokens, but decoders stop at a few."""
        return num_frames >= 1 and len(tokens) >= 1

    # What beams are made of.

    def listen(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Frames as the joint network takes them [B, T', joint_dim], and how many are real [B]."""
        frames, lengths = self.encoder(batch.features, batch.feature_lengths)
        return self.from_encoder(frames), lengths

    def start(self, num_rows: int) -> Tensor:
        """The labels before the first: [num_rows, context]."""
        return torch.zeros(num_rows, self.config.context, dtype=torch.int64, device=self.output.weight.device)

    def advance(self, context: Tensor, tokens: Tensor) -> Tensor:
        """One label further: [N, context], [N] -> [N, context]."""
        return torch.cat((context[:, 1:], tokens[:, None]), dim=1)

    def predict(self, context: Tensor) -> Tensor:
        """The last labels [..., context] -> states as the joint network takes them [..., joint_dim]."""
        states: Tensor = self.from_prediction(self.prediction(context))
        return states

    def classify(self, frames: Tensor, states: Tensor) -> Tensor:
        """Frames and states that broadcast to [..., joint_dim] -> logits [..., num_tokens]."""
        logits: Tensor = self.output(torch.tanh(frames + states))
        return logits


class Prediction(nn.Module):
    """The last labels [B, context] or [B, U + 1, context] -> [..., prediction_dim]; nothing recurs."""

    def __init__(self, config: TransducerConfig, num_tokens: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_tokens, config.prediction_dim)
        self.project = nn.Linear(config.context * config.prediction_dim, config.prediction_dim)
        self.norm = nn.LayerNorm(config.prediction_dim)
        self.dropout = Dropout(config.dropout)

    def forward(self, context: Tensor) -> Tensor:
        embedded = self.embedding(context).flatten(-2)
        return self.dropout(F.silu(self.norm(self.project(embedded))))
