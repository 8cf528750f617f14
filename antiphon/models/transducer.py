"""Transducers: an encoder of speech, a prediction network over labels, and a joint network over both.

A. Graves, "Sequence Transduction with Recurrent Neural Networks", 2012 (the model and its loss);
R. Botros et al., "Tied & Reduced RNN-T Decoder", Interspeech 2021 (a prediction network over embeddings of
the last two labels); R. Lin et al., "Federated Pruning: Improving Neural Network Efficiency with Federated
Learning", Interspeech 2022, §3 (the configuration `PUBLISHED`).

| symbol | name here |
| --- | --- |
| f_t | `frames` of the encoder, as the joint network takes them |
| g_u | `states` of the prediction network after u labels, as the joint network takes them |
| ∅ | token 0, also the label before the first one |

Deviations, and why:
- The embeddings of the last labels are concatenated and projected, not averaged with a weight for each (also
  in M. Ghodsi et al., "RNN-Transducer with Stateless Prediction Network", 2020): more general.
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
from antiphon.models.conformer import ConformerConfig
from antiphon.models.layers import Scored, check_sizes, frame_mask, without_zeros
from antiphon.models.model import MODELS, EncoderConfig
from antiphon.models.noise import Dropout
from antiphon.models.rnnt_loss import next_log_probs, rnnt_losses


@MODELS.register
@dataclass(frozen=True)
class TransducerConfig:
    """A transducer on a Conformer or a bidirectional LSTM.

    >>> model = TransducerConfig(ConformerConfig(dim=16, num_layers=1)).build(input_dim=80, num_tokens=29)
    >>> model.fits(1, [7, 7])
    True
    """

    encoder: EncoderConfig = field(default_factory=lambda: ConformerConfig(stack=4))
    prediction_dim: int = 256
    context: int = 2  # the number of last labels that the prediction network sees
    joint_dim: int = 320
    dropout: float = 0.1  # of the prediction network
    symbols_per_frame: int = 4  # the most in decoding; the loss has no limit

    def __post_init__(self) -> None:
        check_sizes(self, 1, self.prediction_dim, self.context, self.joint_dim, self.symbols_per_frame)

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


class Transducer(Scored):
    """Emits tokens at every frame until a blank; each depends on the frame and on the last few tokens."""

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

    @torch.no_grad()
    def greedy(self, batch: Batch) -> list[list[int]]:
        """At every frame, take the best token until it is a blank: at most `symbols_per_frame` times."""
        frames, lengths = self.listen(batch)
        context = lengths.new_zeros(len(frames), self.config.context, dtype=torch.int64)
        state = self.predict(context)
        steps = []
        for number, frame in enumerate(frames.unbind(dim=1)):
            running = number < lengths
            for _ in range(self.config.symbols_per_frame):
                tokens = self.classify(frame, state).argmax(dim=-1).masked_fill(~running, 0)
                running = tokens != 0
                if not running.any():
                    break
                steps.append(tokens)
                longer = torch.cat((context[:, 1:], tokens[:, None]), dim=1)
                context = torch.where(running[:, None], longer, context)
                state = self.predict(context)
        return without_zeros(torch.stack(steps, dim=1)) if steps else [[]] * len(frames)

    def fits(self, num_frames: int, tokens: Sequence[int]) -> bool:
        """A frame can hold any number of tokens, but decoders stop at a few."""
        return num_frames >= 1 and len(tokens) >= 1

    def listen(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Frames as the joint network takes them [B, T', joint_dim], and the number of real ones [B]."""
        frames, lengths = self.encoder(batch.features, batch.feature_lengths)
        return self.from_encoder(frames), lengths

    def predict(self, context: Tensor) -> Tensor:
        """The last labels [..., context] -> states as the joint network takes them [..., joint_dim]."""
        return self.from_prediction(self.prediction(context))

    def classify(self, frames: Tensor, states: Tensor) -> Tensor:
        """Frames and states that broadcast to [..., joint_dim] -> logits [..., num_tokens]."""
        return self.output(torch.tanh(frames + states))


class Prediction(nn.Module):
    """The last labels [B, context] or [B, U + 1, context] -> [..., prediction_dim], without recurrence."""

    def __init__(self, config: TransducerConfig, num_tokens: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_tokens, config.prediction_dim)
        self.project = nn.Linear(config.context * config.prediction_dim, config.prediction_dim)
        self.norm = nn.LayerNorm(config.prediction_dim)
        self.dropout = Dropout(config.dropout)

    def forward(self, context: Tensor) -> Tensor:
        embedded = self.embedding(context).flatten(-2)
        return self.dropout(F.silu(self.norm(self.project(embedded))))
