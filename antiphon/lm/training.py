"""Training a neural language model in one place, on text the server may read."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch

from antiphon.data.tokens import Tokens
from antiphon.lm.neural_lm import NeuralLm, plan_text_batches
from antiphon.lm.transformer import TransformerLmConfig, text_batch


@dataclass(frozen=True)
class LmTraining:
    """AdamW; the rate climbs over the first `warmup` of the steps, and falls to zero along a cosine."""

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
        """Of step 0, 1, …"""
        rising = min(1.0, (step + 1) / max(1.0, self.warmup * self.steps))
        return self.lr * rising * 0.5 * (1 + math.cos(math.pi * step / self.steps))


def train_lm(
    texts: Sequence[str],
    tokens: Tokens,
    config: TransformerLmConfig | None = None,
    training: LmTraining | None = None,
    device: str = "cpu",
    progress: Callable[[int, float], None] | None = None,
) -> NeuralLm:
    """A language model of the texts, a sentence each; `progress` is told steps done and nats per token."""
    config, training = config or TransformerLmConfig(), training or LmTraining()
    encoded = list(filter(None, map(tokens.encode, texts)))
    if not encoded:
        raise ValueError("no text to train a language model on")
    with torch.random.fork_rng(devices=[device] if device.startswith("cuda") else []):
        torch.manual_seed(training.seed)
        model = config.build(0, tokens.size).to(device).train()
        optimizer = torch.optim.AdamW(
            model.parameters(), training.lr, (0.9, 0.98), weight_decay=training.weight_decay
        )
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
            if progress is not None:
                progress(step + 1, loss.item())
    return NeuralLm(config, tokens, model.eval())


def _batches(encoded: Sequence[list[int]], training: LmTraining) -> Iterator[list[list[int]]]:
    """Batches for ever: all texts once, in a new order, before any comes again."""
    generator = np.random.default_rng(training.seed)
    while True:
        planned = list(plan_text_batches(encoded, training.batch_tokens, generator))
        for place in generator.permutation(len(planned)):
            yield [encoded[text] for text in planned[place]]
