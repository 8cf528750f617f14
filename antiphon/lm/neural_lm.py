"""Neural language models: a Transformer that is trained in one place, saved to a folder, and scores texts.

A. Vaswani et al., "Attention Is All You Need", 2017, the decoder alone. The configuration is that of
"Federated Marginal Personalization for ASR Rescoring" (2020): 3 blocks of width 256, feed-forward 1024, 4
heads, dropout 0.1; over words, or over subwords.

Deviations, and why: LayerNorm before each branch (trains without a long warm-up); rotary positions (Su et al.
2021) have no parameters and no maximal length; the output shares the matrix of the embedding (O. Press and L.
Wolf, 2017), which nearly halves the parameters. Token 0 both starts and ends a sentence. Padding comes after
all real positions, so causal attention never sees it and needs no mask.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from antiphon.config import from_dict
from antiphon.data.batches import Batch, padded_tokens, plan_batches
from antiphon.data.tokens import UNKNOWN, WORDS_FILE, Tokens, load_tokens, load_words
from antiphon.lm.arpa import load_ngram
from antiphon.lm.ngram import Perplexity, SentenceModel
from antiphon.models.conformer import feed_forward
from antiphon.models.layers import (
    Scored,
    at_least_float32,
    check_sizes,
    frame_mask,
    next_token_losses,
    next_tokens,
    rotary_angles,
    rotate,
    without_zeros,
)
from antiphon.models.model import build_model, load_parameters, save_parameters
from antiphon.models.noise import Dropout
from antiphon.records.files import write_json
from antiphon.records.folders import files_in, filled_folder
from antiphon.records.reading import read_as

FORMAT = "antiphon-lm/1"
MAIN = "lm.json"
ADVICE = "Restore the folder, or train the language model again"
MAX_LOGITS = 1 << 24  # computed at once: 64 MiB of them


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
        check_sizes(self, self.num_layers, self.dim, self.num_heads, self.feed_forward_dim)
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


@dataclass(frozen=True)
class LmFile:
    """lm.json: the structure of a language model."""

    format: ClassVar = FORMAT
    what: ClassVar = "language model"
    advice: ClassVar = ADVICE
    config: Mapping[str, Any]


@dataclass(frozen=True)
class NeuralLm:
    """Scores texts; `NeuralLm.load("lm").score_sentences(["hello world"])`."""

    config: TransformerLmConfig
    tokens: Tokens
    model: TransformerLm

    @torch.inference_mode()
    def score_sentences(self, texts: Sequence[str]) -> np.ndarray:
        """ln p of each text with its end: [len(texts)] float64."""
        self.model.eval()
        device = next(self.model.parameters()).device
        scores = np.zeros(len(texts))
        encoded = [self.tokens.encode(text) for text in texts]
        for chosen in plan_text_batches(encoded, max(1, MAX_LOGITS // self.tokens.size), None):
            batch = text_batch([encoded[index] for index in chosen]).to(device)
            scores[chosen] = -self.model.losses(batch).double().cpu().numpy()
        return scores

    def perplexity(self, texts: Sequence[str]) -> Perplexity:
        """Perplexity per word, for any tokens: every word and every end of sentence is one prediction."""
        num_words = sum(len(text.split()) for text in texts)
        num_unknown = sum(self.tokens.encode(text).count(UNKNOWN) for text in texts)
        return Perplexity(float(self.score_sentences(texts).sum()), num_words, len(texts), num_unknown)

    def save(self, folder: str | Path, notes: Mapping[str, Any] | None = None) -> None:
        """Write lm.json (with the caller's notes), lm.safetensors and the tokens."""
        body = {"format": FORMAT, "config": asdict(self.config), "notes": dict(notes or {})}
        with filled_folder(Path(folder), MAIN) as made:
            save_parameters(self.model, made / "lm.safetensors")
            self.tokens.save(made)
            write_json(made / MAIN, body, files_in(made))

    @classmethod
    def load(cls, folder: str | Path, device: str = "cpu") -> NeuralLm:
        folder = Path(folder)
        path = folder / MAIN
        config = from_dict(TransformerLmConfig, read_as(LmFile, path).config, str(path))
        tokens: Tokens = load_words(folder) if (folder / WORDS_FILE).exists() else load_tokens(folder)
        model: Any = build_model(config, 0, tokens.size, str(path))
        load_parameters(model, folder / "lm.safetensors")
        return cls(config, tokens, model.to(device))


def load_sentence_model(path: str | Path, device: str = "cpu") -> SentenceModel:
    """A neural model (on that device), an n-gram folder or an ARPA file."""
    path = Path(path)
    return NeuralLm.load(path, device) if (path / MAIN).exists() else load_ngram(path)


def plan_text_batches(
    encoded: Sequence[Sequence[int]], max_tokens: int, generator: np.random.Generator | None
) -> Iterator[np.ndarray]:
    """Indices of texts of similar length, at most `max_tokens` predictions per batch with padding."""
    lengths = np.array([len(text) + 1 for text in encoded], dtype=np.int64)
    yield from plan_batches(lengths, np.arange(len(encoded)), max_tokens, generator)


@dataclass(frozen=True)
class LmTraining:
    """AdamW; the rate rises during the first `warmup` of the steps, and falls to zero along a cosine."""

    steps: int = 2000
    batch_tokens: int = 4096
    lr: float = 1e-3
    weight_decay: float = 0.01
    warmup: float = 0.05
    clip_norm: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.steps, self.batch_tokens) < 1:
            raise ValueError(f"training needs at least one step of one token: {self}")

    def rate(self, step: int) -> float:
        """The learning rate of step 0, 1, …"""
        rising = min(1.0, (step + 1) / max(1.0, self.warmup * self.steps))
        return self.lr * rising * 0.5 * (1 + math.cos(math.pi * step / self.steps))


def train_lm(
    texts: Sequence[str],
    tokens: Tokens,
    config: TransformerLmConfig | None = None,
    training: LmTraining | None = None,
    device: str = "cpu",
    progress: Callable[[int, float], None] = lambda step, loss: None,
) -> NeuralLm:
    """Train a language model on sentences; `progress` gets the steps done and the nats per token."""
    config, training = config or TransformerLmConfig(), training or LmTraining()
    encoded = list(filter(None, map(tokens.encode, texts)))
    if not encoded:
        raise ValueError("no text to train a language model on")
    with torch.random.fork_rng(devices=[device] if device.startswith("cuda") else []):
        torch.manual_seed(training.seed)
        model = config.build(0, tokens.size).to(device).train()
        decay = training.weight_decay
        optimizer = torch.optim.AdamW(model.parameters(), training.lr, (0.9, 0.98), weight_decay=decay)
        for step, ids in zip(range(training.steps), _batches(encoded, training), strict=False):
            for group in optimizer.param_groups:
                group["lr"] = training.rate(step)
            batch = text_batch(ids).to(device)
            with torch.autocast("cuda", torch.bfloat16) if device.startswith("cuda") else nullcontext():
                losses = model.losses(batch)
            loss = losses.sum() / (batch.token_lengths + 1).sum()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), training.clip_norm)
            optimizer.step()
            progress(step + 1, loss.item())
    return NeuralLm(config, tokens, model.eval())


def _batches(encoded: Sequence[list[int]], training: LmTraining) -> Iterator[list[list[int]]]:
    """Batches without end: all texts once, in a new order, before any is repeated."""
    generator = np.random.default_rng(training.seed)
    while True:
        planned = list(plan_text_batches(encoded, training.batch_tokens, generator))
        for index in generator.permutation(len(planned)):
            yield [encoded[text] for text in planned[index]]
