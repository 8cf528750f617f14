"""A neural language model that is trained in one place, saved to a folder, and scores texts."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from antiphon.data.batches import plan_batches
from antiphon.data.tokens import UNKNOWN, WORDS_FILE, Tokens, load_tokens, load_words
from antiphon.lm.arpa import load_ngram
from antiphon.lm.ngram import Perplexity, SentenceModel
from antiphon.lm.transformer import TransformerLm, TransformerLmConfig, text_batch
from antiphon.models.model import load_parameters, save_parameters
from antiphon.records.files import read_format

FORMAT = "antiphon-lm/1"
MAX_LOGITS = 1 << 24  # computed at once: 64 MiB of them


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
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        save_parameters(self.model, folder / "lm.safetensors")
        self.tokens.save(folder)
        body = {"format": FORMAT, "config": asdict(self.config), "notes": dict(notes or {})}
        (folder / "lm.json").write_text(json.dumps(body, indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: str | Path, device: str = "cpu") -> NeuralLm:
        folder = Path(folder)
        body = read_format(folder / "lm.json", FORMAT, "language model")
        config = TransformerLmConfig(**body["config"])
        tokens: Tokens = load_words(folder) if (folder / WORDS_FILE).exists() else load_tokens(folder)
        model = config.build(0, tokens.size)
        load_parameters(model, folder / "lm.safetensors")
        return cls(config, tokens, model.to(device))


def load_sentence_model(path: str | Path, device: str = "cpu") -> SentenceModel:
    """A neural model (on that device), an n-gram folder or an ARPA file."""
    path = Path(path)
    return NeuralLm.load(path, device) if (path / "lm.json").exists() else load_ngram(path)


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
