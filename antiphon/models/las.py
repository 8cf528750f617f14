"""Listen, attend and spell: an attention-based encoder-decoder.

W. Chan et al., "Listen, Attend and Spell", 2015 (the model); J. Chorowski et al., "Attention-Based
Models for Speech Recognition", NIPS 2015 (location-aware attention); the configuration is that of
D. Dimitriadis et al., "Dynamic Gradient Aggregation for Federated Domain Adaptation", 2021, §4:
bLSTM encoder of 6 layers with LayerNorm and dropout on 3 stacked frames, one attention head, 2 LSTM
layers in the decoder.

| symbol | name here |
| --- | --- |
| h | `memory`, the encoded frames |
| s_i | `state`, the decoder's top layer after token i |
| α_i, c_i | `weights`, `context` |
| W s + V h + U f_i + b | `query`, `key` and `location` (F and U in one) inside `Attention` |

Deviation: no pyramid in the encoder; stacked frames do its work, as in the 2021 paper.
Token 0 both starts and ends an utterance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from antiphon.data.batches import Batch
from antiphon.models.blstm import BlstmConfig
from antiphon.models.layers import (
    at_least_float32,
    frame_mask,
    next_token_losses,
    next_tokens,
    open_forget_gates,
)
from antiphon.models.lstm import lstm_cell
from antiphon.models.noise import Dropout


@dataclass(frozen=True)
class LasConfig:
    """Label smoothing acts while training only: in `eval()` losses are the true negative log likelihood."""

    encoder: BlstmConfig = field(default_factory=lambda: BlstmConfig(num_layers=6))
    decoder_dim: int = 256
    decoder_layers: int = 2
    attention_dim: int = 128
    location_channels: int = 10
    location_width: int = 31  # frames of the last attention seen around each frame
    dropout: float = 0.1
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        if min(self.decoder_dim, self.decoder_layers, self.attention_dim, self.location_channels) < 1:
            raise ValueError(f"las sizes must be at least 1: {self}")
        if self.location_width % 2 == 0:
            raise ValueError(f"location_width {self.location_width} must be odd, to have a centre")

    def build(self, input_dim: int, num_tokens: int) -> Las:
        return Las(self, input_dim, num_tokens)


class Las(nn.Module):
    """Scores and spells tokens one after another, each attending to the encoded frames."""

    def __init__(self, config: LasConfig, input_dim: int, num_tokens: int) -> None:
        super().__init__()
        self.config = config
        self.encoder = config.encoder.build(input_dim)
        self.attention = Attention(config, self.encoder.dim)
        self.embedding = nn.Embedding(num_tokens, config.decoder_dim)
        widths = [config.decoder_dim + self.encoder.dim] + [config.decoder_dim] * (config.decoder_layers - 1)
        self.cells = nn.ModuleList(nn.LSTMCell(width, config.decoder_dim) for width in widths)
        for cell in self.cells:
            assert isinstance(cell, nn.LSTMCell)
            open_forget_gates(cell)
        self.combine = nn.Linear(config.decoder_dim + self.encoder.dim, config.decoder_dim)
        self.dropout = Dropout(config.dropout)
        self.output = nn.Linear(config.decoder_dim, num_tokens)

    def forward(self, batch: Batch) -> tuple[Tensor, ...]:
        """Logits [B, U + 1, num_tokens] of every next token, given the true ones before it."""
        memory = self.listen(batch.features, batch.feature_lengths)
        before = F.pad(next_tokens(batch.tokens, batch.token_lengths)[:, :-1], (1, 0))
        inputs = self.dropout(self.embedding(before))
        decoder = self.start(memory)
        steps = []
        for embedded in inputs.unbind(dim=1):
            decoder = self.step(embedded, decoder, memory)
            steps.append(decoder.seen)
        return (at_least_float32(self.classify(torch.stack(steps, dim=1))),)

    def score(self, outputs: tuple[Tensor, ...], batch: Batch) -> Tensor:
        """Cross entropy of each utterance in nats, summed over its tokens and its end: [B]."""
        targets = next_tokens(batch.tokens, batch.token_lengths)
        smoothing = self.config.label_smoothing if self.training else 0.0
        return next_token_losses(outputs[0], targets, batch.token_lengths, smoothing)

    def losses(self, batch: Batch) -> Tensor:
        return self.score(self(batch), batch)

    @torch.no_grad()
    def greedy(self, batch: Batch) -> list[list[int]]:
        """The best token after the best tokens so far; at most one token a frame of the encoder."""
        memory = self.listen(batch.features, batch.feature_lengths)
        limits = memory.mask.sum(dim=1)
        decoder = self.start(memory)
        tokens = limits.new_zeros(len(limits))
        running = limits > 0
        spelled = []
        for num_spelled in range(1, memory.mask.shape[1] + 1):
            decoder = self.step(self.embedding(tokens), decoder, memory)
            # A finished utterance goes on as zeros, which are left out below.
            tokens = self.classify(decoder.seen).argmax(dim=-1).masked_fill(~running, 0)
            spelled.append(tokens)
            running = running & (tokens != 0) & (num_spelled < limits)
            if not running.any():
                break
        rows: list[list[int]] = torch.stack(spelled, dim=1).tolist()
        return [[token for token in row if token != 0] for row in rows]

    def fits(self, num_frames: int, tokens: Sequence[int]) -> bool:
        """Any tokens can be spelled from any frames, but greedy decoding stops at one token a frame."""
        return num_frames >= 1 and len(tokens) >= 1

    def listen(self, features: Tensor, lengths: Tensor) -> Memory:
        frames, lengths = self.encoder(features, lengths)
        # An empty row attends to its first, zero frame: no 0/0 in its softmax.
        mask = frame_mask(lengths.clamp(min=1), frames.shape[1])
        return Memory(frames, self.attention.key(frames), self.attention.location_filters(), mask)

    def start(self, memory: Memory) -> Decoder:
        """Zero states, and attention spread evenly over the real frames."""
        frames = memory.frames
        zeros = frames.new_zeros(len(frames), self.config.decoder_dim)
        weights = memory.mask / memory.mask.sum(dim=1, keepdim=True)
        context = frames.new_zeros(len(frames), self.encoder.dim)
        states = ((zeros, zeros),) * self.config.decoder_layers
        return Decoder(states, context, weights.to(frames.dtype), torch.cat((zeros, context), dim=-1))

    def step(self, embedded: Tensor, decoder: Decoder, memory: Memory) -> Decoder:
        """One token further: the embedding of the last one is [B, decoder_dim]."""
        values = torch.cat((embedded, decoder.context), dim=-1)
        states = []
        for cell, state in zip(self.cells, decoder.states, strict=True):
            assert isinstance(cell, nn.LSTMCell)
            values, carry = lstm_cell(cell, values, state)
            states.append((values, carry))
        context, weights = self.attention(values, decoder.weights, memory)
        return Decoder(tuple(states), context, weights, torch.cat((values, context), dim=-1))

    def classify(self, seen: Tensor) -> Tensor:
        """State and context [..., decoder_dim + encoder dim] -> logits [..., num_tokens]."""
        return self.output(self.dropout(torch.tanh(self.combine(seen))))


@dataclass(frozen=True)
class Memory:
    """The same at all steps: frames [B, T, dim], keys [B, T, A], location filters [width, A], mask [B, T]."""

    frames: Tensor
    keys: Tensor
    location_filters: Tensor
    mask: Tensor


@dataclass(frozen=True)
class Decoder:
    """What a step hands on: cell states, context [B, dim], attention [B, T], and what will be classified."""

    states: tuple[tuple[Tensor, Tensor], ...]
    context: Tensor
    weights: Tensor
    seen: Tensor


class Attention(nn.Module):
    """Single-head location-aware attention (Chorowski et al., eq. 8-9).

    f_i = F * α_{i-1} and then U f_i are one convolution with U F as its filters; it is multiplied out
    once an utterance, and a step is left with one matrix product over windows of α.
    """

    def __init__(self, config: LasConfig, encoder_dim: int) -> None:
        super().__init__()
        self.query = nn.Linear(config.decoder_dim, config.attention_dim, bias=False)
        self.key = nn.Linear(encoder_dim, config.attention_dim)
        self.location = nn.Linear(config.location_width, config.location_channels, bias=False)
        self.location_output = nn.Linear(config.location_channels, config.attention_dim, bias=False)
        self.energy = nn.Linear(config.attention_dim, 1, bias=False)

    def location_filters(self) -> Tensor:
        return (self.location_output.weight @ self.location.weight).T

    def forward(self, state: Tensor, weights: Tensor, memory: Memory) -> tuple[Tensor, Tensor]:
        """State [B, decoder_dim], last weights [B, T] -> context [B, encoder dim], weights [B, T]."""
        width = memory.location_filters.shape[0]
        windows = F.pad(weights, (width // 2, width // 2)).unfold(1, width, 1)  # [B, T, width]
        summed = memory.keys + self.query(state)[:, None] + windows @ memory.location_filters
        energies = self.energy(torch.tanh(summed)).squeeze(-1)
        weights = energies.masked_fill(~memory.mask, -torch.inf).softmax(dim=-1)
        return (weights[:, None] @ memory.frames).squeeze(1), weights
