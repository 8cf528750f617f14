"""Train language models on text: n-grams, or a Transformer."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from antiphon.data.tokens import UnigramConfig, WordsConfig
from antiphon.data.transcripts import read_sentences
from antiphon.lm.arpa import save_ngram
from antiphon.lm.kneser_ney import estimate
from antiphon.lm.neural_lm import LmTraining, NeuralLm, train_lm
from antiphon.lm.ngram import NgramModel, Perplexity
from antiphon.workflows.progress import Progress, no_progress

MAX_FOR_TOKENS = 200_000  # sentences that subwords are learnt from

TextFiles = Sequence[str | Path]


@dataclass(frozen=True)
class NgramTraining:
    """An n-gram model, the seconds that estimating it took, and its perplexity on other texts by file."""

    model: NgramModel
    seconds: float
    perplexities: Mapping[Path, Perplexity]


@dataclass(frozen=True)
class TransformerTraining:
    """A Transformer language model, and its perplexity on other texts by file."""

    model: NeuralLm
    perplexities: Mapping[Path, Perplexity]


def train_ngram_lm(
    texts: TextFiles,
    out: str | Path,
    *,
    order: int = 5,
    min_counts: Sequence[int] = (1,),
    heldout: TextFiles = (),
) -> NgramTraining:
    """Estimate an n-gram model with interpolated modified Kneser-Ney smoothing, and write it.

    Args:
        texts: Text files, plain or .gz: one sentence on a line, after the last tab; or .jsonl.
        out: A file ending in .arpa or .arpa.gz, or a folder (which opens faster).
        order: The number of words of the longest n-gram.
        min_counts: For each order, the smallest count of an n-gram that is kept; the last number holds for
            higher orders too.
        heldout: Text files to measure perplexity on.

    Example:
        training = antiphon.train_ngram_lm(["books.txt"], "books.arpa", order=3, heldout=["other.txt"])
        print({file.name: perplexity.value for file, perplexity in training.perplexities.items()})
    """
    started = time.monotonic()
    model = estimate(sentences_of(texts), order, list(min_counts))
    seconds = time.monotonic() - started
    save_ngram(model, Path(out))
    return NgramTraining(model, seconds, _perplexities(model, heldout))


def train_transformer_lm(
    texts: TextFiles,
    out: str | Path,
    *,
    subwords: int = 1000,
    words: int = 20_000,
    steps: int = 2000,
    batch_tokens: int = 4096,
    lr: float = 1e-3,
    seed: int = 0,
    device: str = "cpu",
    heldout: TextFiles = (),
    progress: Progress = no_progress,
) -> TransformerTraining:
    """Train a Transformer language model (3 blocks of width 256), and write it to a folder.

    Args:
        texts: Text files, plain or .gz: one sentence on a line, after the last tab; or .jsonl.
        out: The folder to write.
        subwords: The number of SentencePiece tokens; 0 for whole words.
        words: The size of the vocabulary if `subwords` is 0.
        steps: The number of training steps.
        batch_tokens: The number of tokens of a step, padding included.
        lr: The highest learning rate.
        seed: The seed of the first parameters, of the order and of dropout.
        device: cpu or cuda.
        heldout: Text files to measure perplexity on.
        progress: A function that is called with (stage, steps done, number of steps).

    Example:
        model = antiphon.train_transformer_lm(["books.txt"], "books-lm", steps=500).model
        print(model.score_sentences(["the cat sat"]))
    """
    sentences = sentences_of(texts)
    some = sentences[:: -(-len(sentences) // MAX_FOR_TOKENS) or 1]
    config = UnigramConfig(subwords) if subwords else WordsConfig(words)
    tokens = config.fit(some if subwords else sentences, alphabet=None)
    training = LmTraining(steps=steps, batch_tokens=batch_tokens, lr=lr, seed=seed)
    model = train_lm(
        sentences,
        tokens,
        training=training,
        device=device,
        progress=lambda done, _: progress("training", done, steps),
    )
    model.save(Path(out), {"steps": steps, "batch_tokens": batch_tokens, "lr": lr, "seed": seed})
    return TransformerTraining(model, _perplexities(model, heldout))


def sentences_of(paths: TextFiles) -> list[str]:
    """Read the sentences of all files."""
    return [text for path in paths for text in read_sentences(path)]


def _perplexities(model: NgramModel | NeuralLm, heldout: TextFiles) -> dict[Path, Perplexity]:
    return {Path(path): model.perplexity(sentences_of([path])) for path in heldout}
