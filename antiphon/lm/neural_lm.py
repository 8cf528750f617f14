"""A neural language model one can keep: its tokens and parameters, from text to ln p."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from antiphon.data.batches import plan_batches
from antiphon.data.tokens import UNKNOWN, WORDS_FILE, Tokens, load_tokens, load_words
from antiphon.lm.arpa import load_ngram
from antiphon.lm.ngram import Perplexity, SentenceModel
from antiphon.lm.transformer import TransformerLm, TransformerLmConfig, text_batch

FORMAT = "antiphon-lm/1"
MOST_LOGITS = 1 << 24  # computed at once: 64 MiB of them


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
        for chosen in plan_text_batches(encoded, max(1, MOST_LOGITS // self.tokens.size), None):
            batch = text_batch([encoded[place] for place in chosen]).to(device)
            scores[chosen] = -self.model.losses(batch).double().cpu().numpy()
        return scores

    def perplexity(self, texts: Sequence[str]) -> Perplexity:
        """Per word, whatever the tokens are: every word and every end of sentence is one prediction."""
        num_words = sum(len(text.split()) for text in texts)
        num_unknown = sum(self.tokens.encode(text).count(UNKNOWN) for text in texts)
        return Perplexity(float(self.score_sentences(texts).sum()), num_words, len(texts), num_unknown)

    def save(self, folder: str | Path, notes: Mapping[str, Any] | None = None) -> None:
        """Writes lm.json (with the caller's notes), lm.safetensors and the tokens."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {name: p.detach().cpu().contiguous() for name, p in self.model.named_parameters()}
        save_file(tensors, folder / "lm.safetensors")
        self.tokens.save(folder)
        body = {"format": FORMAT, "config": asdict(self.config), "notes": dict(notes or {})}
        (folder / "lm.json").write_text(json.dumps(body, indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: str | Path, device: str = "cpu") -> NeuralLm:
        folder = Path(folder)
        try:
            body = json.loads((folder / "lm.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ValueError(f"{folder} holds no language model (cannot read lm.json: {error})") from error
        if body.get("format") != FORMAT:
            raise ValueError(f"{folder / 'lm.json'} has format {body.get('format')!r}, not {FORMAT!r}")
        config = TransformerLmConfig(**body["config"])
        tokens: Tokens = load_words(folder) if (folder / WORDS_FILE).exists() else load_tokens(folder)
        model = config.build(0, tokens.size)
        parameters = dict(model.named_parameters())
        tensors = load_file(folder / "lm.safetensors")
        shapes = {name: tensor.shape for name, tensor in tensors.items()}
        if shapes != {name: parameter.shape for name, parameter in parameters.items()}:
            raise ValueError(f"{folder}: lm.safetensors does not fit lm.json and the tokens beside it")
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(tensors[name])
        return cls(config, tokens, model.to(device))


def load_sentence_model(path: str | Path, device: str = "cpu") -> SentenceModel:
    """A neural model (on that device), an n-gram folder or an ARPA file."""
    path = Path(path)
    return NeuralLm.load(path, device) if (path / "lm.json").exists() else load_ngram(path)


def plan_text_batches(
    encoded: Sequence[Sequence[int]], max_tokens: int, generator: np.random.Generator | None
) -> Iterator[np.ndarray]:
    """Places of texts of similar length, at most `max_tokens` predictions a batch with padding."""
    lengths = np.array([len(text) + 1 for text in encoded], dtype=np.int64)
    yield from plan_batches(lengths, np.arange(len(encoded)), max_tokens, generator)
