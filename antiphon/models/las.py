"""Listen, attend and spell: an attention-based encoder-decoder.

W. Chan et al., "Listen, Attend and Spell", 2015 (the model); J. Chorowski et al., "Attention-Based
Models for Speech Recognition", NIPS 2015 (location-aware attention); D. Dimitriadis et al., "Dynamic Gradient
Aggregation for Federated Domain Adaptation", 2021, §4 (the configuration); S. Kim et al.,
"Joint CTC-Attention based End-to-End Speech Recognition using Multi-Task Learning", ICASSP 2017
(`ctc_weight`: a CTC layer on the same encoder, whose left-to-right alignments help attention to learn).

| symbol | name here |
| --- | --- |
| h | `memory`, the encoded frames |
| s_i | `state`, the decoder's top layer after token i |
| α_i, c_i | `weights`, `context` |
| W s + V h + U f_i + b | `query`, `key` and `location` (F and U in one) in `Attention` |
| λ | `ctc_weight`: the loss is λ L_CTC + (1 − λ) L_attention |

Deviation: stacked frames replace the pyramid in the encoder, as in the 2021 paper.
Token 0 both starts and ends an utterance; for CTC it is the blank.

Joint CTC and label smoothing act in training only. In `eval()` the loss is −ln p(tokens | speech) of the
decoder, so that losses of all settings can be compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from antiphon.data.batches import Batch, repeated
from antiphon.models.attention_steps import Heard
from antiphon.models.blstm import BlstmConfig, LstmCell, open_forget_gates
from antiphon.models.ctc import ctc_fits, ctc_losses
from antiphon.models.layers import (
    Scored,
    at_least_float32,
    check_sizes,
    frame_mask,
    next_token_losses,
    next_tokens,
    spell_greedily,
)
from antiphon.models.model import MODELS
from antiphon.models.noise import Dropout
from antiphon.models.teacher_forcing import Cells, decode

# Devices on which `teacher_forcing` goes through texts; on others, `Las.step` does, token by token.
TAUGHT_AT_ONCE = frozenset({"cuda"})


@MODELS.register
@dataclass(frozen=True)
class LasConfig:
    """Sizes, and the loss of training.

    >>> config = LasConfig(BlstmConfig(dim=4, num_layers=1, stack=3), decoder_dim=4, ctc_weight=0.3)
    >>> joint = config.build(input_dim=80, num_tokens=29)
    >>> joint.fits(9, [7, 8, 7]), joint.fits(9, [7, 7, 8])  # CTC needs a blank between equal tokens
    (True, False)
    """

    encoder: BlstmConfig = field(default_factory=lambda: BlstmConfig(num_layers=6))
    decoder_dim: int = 256
    decoder_layers: int = 2
    attention_dim: int = 128
    location_channels: int = 10
    location_width: int = 31  # the window of the last attention around each frame, in frames
    dropout: float = 0.1
    label_smoothing: float = 0.0
    ctc_weight: float = 0.0  # 0: there is no CTC layer

    def __post_init__(self) -> None:
        sizes = (self.decoder_dim, self.attention_dim, self.location_channels, self.location_width)
        check_sizes(self, self.decoder_layers, *sizes)
        if self.location_width % 2 == 0:
            raise ValueError(f"location_width {self.location_width} must be odd, to have a centre")
        if not 0.0 <= self.ctc_weight < 1.0:
            hint = "at 1 the decoder would learn nothing; for CTC alone, take the ctc model"
            raise ValueError(f"ctc_weight {self.ctc_weight} must be at least 0 and below 1: {hint}")

    def build(self, input_dim: int, num_tokens: int) -> Las:
        return Las(self, input_dim, num_tokens)


# For 80 log-mel filters every 10 ms: an hour or two of speech, characters, from scratch; 1.7 M parameters.
SMALL = LasConfig(
    BlstmConfig(dim=128, num_layers=3), decoder_dim=128, attention_dim=64, label_smoothing=0.1, ctc_weight=0.3
)
MEDIUM = LasConfig()  # 11.0 M with 500 subwords
# Layers, frames and heads as published. The widths are not published: these give 87.5 M parameters with 1000
# subwords, the 350 MB of the smaller model of §4.3.
PUBLISHED = LasConfig(
    BlstmConfig(dim=768, num_layers=6, stack=3), decoder_dim=512, attention_dim=512, label_smoothing=0.1
)


class Las(Scored):
    """Predicts tokens one after another, with attention to the encoded frames."""

    def __init__(self, config: LasConfig, input_dim: int, num_tokens: int) -> None:
        super().__init__()
        self.config = config
        self.encoder = config.encoder.build(input_dim)
        self.attention = Attention(config, self.encoder.dim)
        self.embedding = nn.Embedding(num_tokens, config.decoder_dim)
        widths = [config.decoder_dim + self.encoder.dim] + [config.decoder_dim] * (config.decoder_layers - 1)
        self.cells = nn.ModuleList(LstmCell(width, config.decoder_dim) for width in widths)
        open_forget_gates(self.cells)
        self.combine = nn.Linear(config.decoder_dim + self.encoder.dim, config.decoder_dim)
        self.dropout = Dropout(config.dropout)
        self.output = nn.Linear(config.decoder_dim, num_tokens)
        # Drawn last, so that the other parameters are the same with it and without it.
        self.ctc = nn.Linear(self.encoder.dim, num_tokens) if config.ctc_weight > 0 else None

    def forward(self, batch: Batch) -> tuple[Tensor, ...]:
        """Logits [B · N, U + 1, num_tokens]; in joint training also log probabilities of CTC, and lengths."""
        memory = self.listen(batch.features, batch.feature_lengths)
        logits = at_least_float32(self.classify(self.taught(batch, memory)))
        if self.ctc is None or not self.training:
            return (logits,)
        log_probs = F.log_softmax(at_least_float32(self.ctc(memory.frames)), dim=-1)
        return logits, log_probs, memory.mask.sum(dim=1)

    def score(self, outputs: tuple[Tensor, ...], batch: Batch) -> Tensor:
        """Loss of each text in nats, summed over its tokens and its end: [B · N]."""
        logits, *from_ctc = outputs
        targets = next_tokens(batch.tokens, batch.token_lengths)
        smoothing = self.config.label_smoothing if self.training else 0.0
        losses = next_token_losses(logits, targets, batch.token_lengths, smoothing)
        if not from_ctc:
            return losses
        log_probs, lengths = (batch.per_text(output) for output in from_ctc)
        aligned = ctc_losses(log_probs, lengths, batch.tokens, batch.token_lengths)
        return self.config.ctc_weight * aligned + (1 - self.config.ctc_weight) * losses

    @torch.no_grad()
    def greedy(self, batch: Batch) -> list[list[int]]:
        """The best token after the best tokens so far; at most one token per frame of the encoder."""
        memory = self.listen(batch.features, batch.feature_lengths)

        def take_step(last: Tensor, decoder: Decoder) -> tuple[Tensor, Decoder]:
            decoder = self.step(self.embedding(last), decoder, memory)
            return self.classify(decoder.seen), decoder

        return spell_greedily(memory.mask.sum(dim=1), take_step, self.start(memory))

    def fits(self, num_frames: int, tokens: Sequence[int]) -> bool:
        """Whether the tokens have a CTC alignment, if CTC is part of the loss; else any tokens fit."""
        if self.ctc is not None:
            return ctc_fits(self.encoder.num_output_frames(num_frames), tokens)
        return num_frames >= 1 and len(tokens) >= 1

    @torch.no_grad()
    def alignments(self, batch: Batch) -> list[Tensor]:
        """The attention of each token to the frames, for each utterance: [U, T'], rows that add up to 1."""
        memory = self.listen(batch.features, batch.feature_lengths)
        weights = torch.stack([decoder.weights for decoder in self.spell(batch, memory)], dim=1)
        sizes = zip(batch.token_lengths.tolist(), memory.mask.sum(dim=1).tolist(), strict=True)
        return [weights[row, :num_tokens, :num_frames] for row, (num_tokens, num_frames) in enumerate(sizes)]

    def listen(self, features: Tensor, lengths: Tensor) -> Memory:
        frames, lengths = self.encoder(features, lengths)
        # An empty row attends to its first, zero frame: no 0/0 in its softmax.
        mask = frame_mask(lengths.clamp(min=1), frames.shape[1])
        filters = self.attention.location_output.weight @ self.attention.location.weight
        return Memory(frames, self.attention.key(frames), filters.T, mask)

    def embedded(self, batch: Batch) -> Tensor:
        """The tokens before each token and the end [B · N, U + 1, decoder_dim]."""
        before = F.pad(next_tokens(batch.tokens, batch.token_lengths)[:, :-1], (1, 0))
        embedded: Tensor = self.dropout(self.embedding(before))
        return embedded

    def taught(self, batch: Batch, memory: Memory) -> Tensor:
        """What `classify` sees at every token and at the end [B · N, U + 1, decoder_dim + encoder dim]."""
        query, energy = self.attention.query, self.attention.energy
        cells = [cell for cell in self.cells if type(cell) is LstmCell]
        # Pruned layers and those with adapters are called, not read: they compute more than a product.
        are_whole = len(cells) == len(self.cells) and {type(query), type(energy)} == {nn.Linear}
        if memory.frames.device.type not in TAUGHT_AT_ONCE or not are_whole:
            return torch.stack([decoder.seen for decoder in self.spell(batch, memory)], dim=1)
        from_token, from_context = cells[0].weight_ih.tensor_split((self.config.decoder_dim,), dim=1)
        biases = [cell.bias_ih + cell.bias_hh for cell in cells]
        gates = F.linear(self.embedded(batch), from_token, biases[0])
        own, below = ([cell.weight_hh for cell in cells], [cell.weight_ih for cell in cells[1:]])
        heard = Heard(
            *(memory.frames, memory.keys, memory.mask, memory.location_filters), energy.weight.squeeze(0)
        )
        return decode(gates, heard, query.weight, Cells(from_context, own, below, biases[1:]))

    def spell(self, batch: Batch, memory: Memory) -> Iterator[Decoder]:
        """Yield the decoder at every token of the batch and at the end: U + 1 steps."""
        inputs = self.embedded(batch)
        decoder = self.start(memory, batch.num_texts)
        for embedded in inputs.unbind(dim=1):
            decoder = self.step(embedded, decoder, memory)
            yield decoder

    def start(self, memory: Memory, num_texts: int = 1) -> Decoder:
        """Zero states and uniform attention over the real frames, for every text of every utterance."""
        count = len(memory.frames) * num_texts
        zeros = memory.frames.new_zeros(count, self.config.decoder_dim)
        weights = repeated(memory.mask / memory.mask.sum(dim=1, keepdim=True), num_texts)
        context = memory.frames.new_zeros(count, self.encoder.dim)
        states = ((zeros, zeros),) * self.config.decoder_layers
        return Decoder(states, context, weights.to(zeros.dtype), torch.cat((zeros, context), dim=-1))

    def step(self, embedded: Tensor, decoder: Decoder, memory: Memory) -> Decoder:
        """Take one step; the embedding of the last token is [B · N, decoder_dim]."""
        values = torch.cat((embedded, decoder.context), dim=-1)
        states = []
        for cell, state in zip(self.cells, decoder.states, strict=True):
            values, carry = cell(values, state)
            states.append((values, carry))
        context, weights = self.attention(values, decoder.weights, memory)
        return Decoder(tuple(states), context, weights, torch.cat((values, context), dim=-1))

    def classify(self, seen: Tensor) -> Tensor:
        """State and context [..., decoder_dim + encoder dim] -> logits [..., num_tokens]."""
        return self.output(self.dropout(torch.tanh(self.combine(seen))))


@dataclass(frozen=True)
class Memory:
    """Constant in all steps: frames [B, T, dim], keys [B, T, A], location filters [width, A], mask [B, T]."""

    frames: Tensor
    keys: Tensor
    location_filters: Tensor
    mask: Tensor


@dataclass(frozen=True)
class Decoder:
    """State of the decoder: cell states, context [B · N, dim], attention [B · N, T], input of `classify`."""

    states: tuple[tuple[Tensor, Tensor], ...]
    context: Tensor
    weights: Tensor
    seen: Tensor


class Attention(nn.Module):
    """Single-head location-aware attention (Chorowski et al., eq. 8-9).

    f_i = F * α_{i-1} and then U f_i are one convolution with the filters U F. They are multiplied once per
    utterance, so that a step needs one matrix product over windows of α.
    """

    def __init__(self, config: LasConfig, encoder_dim: int) -> None:
        super().__init__()
        self.query = nn.Linear(config.decoder_dim, config.attention_dim, bias=False)
        self.key = nn.Linear(encoder_dim, config.attention_dim)
        self.location = nn.Linear(config.location_width, config.location_channels, bias=False)
        self.location_output = nn.Linear(config.location_channels, config.attention_dim, bias=False)
        self.energy = nn.Linear(config.attention_dim, 1, bias=False)

    def forward(self, state: Tensor, weights: Tensor, memory: Memory) -> tuple[Tensor, Tensor]:
        """State [B · N, decoder_dim], last weights [B · N, T] -> context [B · N, encoder dim], weights."""
        per_utterance = (len(memory.frames), -1)
        width = memory.location_filters.shape[0]
        windows = F.pad(weights, (width // 2, width // 2)).unfold(1, width, 1)  # [B · N, T, width]
        queries = self.query(state).unflatten(0, per_utterance)[:, :, None]
        located = (windows @ memory.location_filters).unflatten(0, per_utterance)
        summed = (memory.keys[:, None] + queries).add_(located)  # the largest tensor of a step
        energies = self.energy(summed.tanh_()).squeeze(-1)
        weights = energies.masked_fill(~memory.mask[:, None], -torch.inf).softmax(dim=-1)  # [B, N, T]
        return (weights @ memory.frames).flatten(0, 1), weights.flatten(0, 1)
