"""Transformer language model: A. Vaswani et al., "Attention Is All You Need", 2017, the decoder alone.

The configuration is that of "Federated Marginal Personalization for ASR Rescoring" (2020): 3 blocks of width
256, feed-forward 1024, 4 heads, dropout 0.1; over words, or over subwords.

Deviations, and why: LayerNorm before each branch (trains without a long warm-up); rotary positions (Su et al.
2021) have no parameters and no maximal length; the output shares the matrix of the embedding (O. Press and L.
Wolf, 2017), which nearly halves the parameters. Token 0 both starts and ends a sentence. Padding comes after
all real positions, so causal attention never sees it and needs no mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from antiphon.data.batches import Batch, padded_tokens
from antiphon.models.conformer import feed_forward
from antiphon.models.layers import (
    Scored,
    at_least_float32,
    frame_mask,
    next_token_losses,
    next_tokens,
    rotary_angles,
    rotate,
    without_zeros,
)
from antiphon.models.noise import Dropout


@dataclass(frozen=True)
class TransformerLmConfig:
    """A model of 2.6 M parameters with 1,000 tokens, of 7.5 M with 20,000 words.

    >>> sum(p.numel() for p in TransformerLmConfig().build(0, 1000).parameters())
    2626792
    """

    dim: int = 256
    num_layers: int = 3
    num_heads: int = 4
    feed_forward_dim: int = 1024
    dropout: float = 0.1

    def __post_init__(self) -> None:
        if min(self.dim, self.num_layers, self.num_heads, self.feed_forward_dim) < 1:
            raise ValueError(f"transformer sizes must be at least 1: {self}")
        if self.dim % (2 * self.num_heads):
            raise ValueError(
                f"transformer dim {self.dim} must be a multiple of 2 * num_heads = {2 * self.num_heads}: "
                "rotary positions rotate pairs of values within a head"
            )

    def build(self, input_dim: int, num_tokens: int) -> TransformerLm:
        """Build the model; it reads no features, so `input_dim` has no effect."""
        return TransformerLm(self, num_tokens)


class TransformerLm(Scored):
    """Predicts every token, and the end, from the tokens before it. A `Model` that reads tokens only."""

    def __init__(self, config: TransformerLmConfig, num_tokens: int) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(num_tokens, config.dim)
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.dropout = Dropout(config.dropout)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.norm = nn.LayerNorm(config.dim)
        self.bias = nn.Parameter(torch.zeros(num_tokens))

    def forward(self, batch: Batch) -> tuple[Tensor, ...]:
        """Logits [B, U + 1, num_tokens] of every next token, given the true ones before it."""
        inputs = F.pad(next_tokens(batch.tokens, batch.token_lengths)[:, :-1], (1, 0))
        values = self.dropout(self.embedding(inputs) * self.config.dim**0.5)
        rotation = rotary_angles(inputs.shape[1], self.config.dim // self.config.num_heads, like=values)
        for layer in self.layers:
            values = layer(values, rotation)
        return (at_least_float32(F.linear(self.norm(values), self.embedding.weight, self.bias)),)

    def score(self, outputs: tuple[Tensor, ...], batch: Batch) -> Tensor:
        """Negative log likelihood of each text in nats, its end included: [B]."""
        targets = next_tokens(batch.tokens, batch.token_lengths)
        return next_token_losses(outputs[0], targets, batch.token_lengths)

    @torch.no_grad()
    def greedy(self, batch: Batch) -> list[list[int]]:
        """The likeliest token at every step, given the true ones before it; without id 0."""
        likeliest = self(batch)[0].argmax(dim=-1)
        likeliest = likeliest.masked_fill(~frame_mask(batch.token_lengths, likeliest.shape[1]), 0)
        return without_zeros(likeliest)

    def fits(self, num_frames: int, tokens: Sequence[int]) -> bool:
        """Any text can be scored."""
        return len(tokens) >= 1


class Block(nn.Module):
    """Attention to the tokens so far, then a feed-forward network: values [B, U, dim]."""

    def __init__(self, config: TransformerLmConfig) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.attention_norm = nn.LayerNorm(config.dim)
        self.query_key_value = nn.Linear(config.dim, 3 * config.dim)
        self.output = nn.Linear(config.dim, config.dim)
        self.attention_dropout = Dropout(config.dropout)
        self.feed_forward = feed_forward(config.dim, config.feed_forward_dim, nn.GELU(), config.dropout)

    def forward(self, values: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        split = self.query_key_value(self.attention_norm(values)).unflatten(-1, (3, self.num_heads, -1))
        query, key, value = split.permute(2, 0, 3, 1, 4)  # each [B, heads, U, dim / heads]
        query, key = rotate(query, *rotation), rotate(key, *rotation)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        values = values + self.attention_dropout(self.output(attended.transpose(1, 2).flatten(2)))
        return values + self.feed_forward(values)


def text_batch(texts: Sequence[Sequence[int]]) -> Batch:
    """Token ids of texts as a batch without speech: features [B, 1, 0]."""
    tokens, lengths = padded_tokens(texts)
    ones = torch.ones(len(texts), dtype=torch.int64)
    return Batch(torch.zeros(len(texts), 1, 0), ones, tokens, lengths, tuple(range(len(texts))))
