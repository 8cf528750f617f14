"""Train language models on text: n-grams, or a Transformer."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from antiphon.data.tokens import UnigramConfig, WordsConfig
from antiphon.data.transcripts import read_sentences
from antiphon.lm.arpa import is_arpa, save_ngram
from antiphon.lm.kneser_ney import estimate
from antiphon.lm.neural_lm import LmTraining, NeuralLm, train_lm
from antiphon.lm.ngram import NgramModel, Perplexity
from antiphon.models.torch_device import find_device
from antiphon.records.folders import check_new_file, check_new_folder
from antiphon.records.lock import locked
from antiphon.workflows.arguments import Paths, Progress, no_progress, paths_of

MAX_FOR_TOKENS = 200_000  # sentences to learn subwords from


@dataclass(frozen=True)
class NgramTraining:
    """An n-gram model, the seconds that its estimation took, and its perplexity on each held-out file."""

    model: NgramModel
    seconds: float
    perplexities: Mapping[Path, Perplexity]


@dataclass(frozen=True)
class TransformerTraining:
    """A Transformer language model, and its perplexity on each held-out file."""

    model: NeuralLm
    perplexities: Mapping[Path, Perplexity]


def train_ngram_lm(
    texts: Paths,
    out: str | Path,
    *,
    order: int = 5,
    min_counts: Sequence[int] = (1,),
    heldout: Paths = (),
    progress: Progress = no_progress,
) -> NgramTraining:
    """Estimate an n-gram model with interpolated modified Kneser-Ney smoothing, and write it.

    Args:
        texts: Text files, plain or .gz: one sentence on a line, after the last tab; or .jsonl.
        out: A file ending in .arpa or .arpa.gz, or a folder (which opens faster).
        order: The number of words of the longest n-gram.
        min_counts: For each order, the smallest count of an n-gram that is kept; the last number holds for
            all higher orders.
        heldout: Text files to measure perplexity on.
        progress: A function that is called with (stage, steps done, number of steps).

    Example:
        training = antiphon.train_ngram_lm(["books.txt"], "books.arpa", order=3, heldout=["other.txt"])
        print({file.name: perplexity.value for file, perplexity in training.perplexities.items()})
    """
    out = Path(out)
    (check_new_file if is_arpa(out) else check_new_folder)(out)
    started = time.monotonic()
    report = partial(progress, "estimation")
    with nullcontext() if is_arpa(out) else locked(out):
        model = estimate(sentences_of(texts), order, list(min_counts), progress=report)
        seconds = time.monotonic() - started
        save_ngram(model, out)
    return NgramTraining(model, seconds, _perplexities(model, heldout))


def train_transformer_lm(
    texts: Paths,
    out: str | Path,
    *,
    subwords: int = 1000,
    words: int = 20_000,
    steps: int = 2000,
    batch_tokens: int = 4096,
    lr: float = 1e-3,
    seed: int = 0,
    device: str = "cpu",
    heldout: Paths = (),
    progress: Progress = no_progress,
) -> TransformerTraining:
    """Train a Transformer language model (3 blocks of width 256), and write it to a folder.

    Args:
        texts: Text files, plain or .gz: one sentence on a line, after the last tab; or .jsonl.
        out: The folder to write.
        subwords: The number of SentencePiece tokens; 0 for whole words.
        words: The size of the vocabulary if `subwords` is 0.
        steps: The number of training steps.
        batch_tokens: The number of tokens in a step, including padding.
        lr: The highest learning rate.
        seed: The seed of the first parameters, of the order of sentences, and of dropout.
        device: cpu, cuda, cuda:1, or auto (the GPU if there is one).
        heldout: Text files to measure perplexity on.
        progress: A function that is called with (stage, steps done, number of steps).

    Example:
        model = antiphon.train_transformer_lm(["books.txt"], "books-lm", steps=500).model
        print(model.score_sentences(["the cat sat"]))
    """
    chosen = str(find_device(device))
    check_new_folder(Path(out))
    sentences = sentences_of(texts)
    sample = sentences[:: -(-len(sentences) // MAX_FOR_TOKENS) or 1]
    config = UnigramConfig(subwords) if subwords else WordsConfig(words)
    tokens = config.fit(sample if subwords else sentences, alphabet=None)
    training = LmTraining(steps=steps, batch_tokens=batch_tokens, lr=lr, seed=seed)
    report = lambda done, _: progress("training", done, steps)  # noqa: E731
    with locked(Path(out)):
        model = train_lm(sentences, tokens, training=training, device=chosen, progress=report)
        model.save(Path(out), {"steps": steps, "batch_tokens": batch_tokens, "lr": lr, "seed": seed})
    return TransformerTraining(model, _perplexities(model, heldout))


def sentences_of(paths: Paths) -> list[str]:
    """Read the sentences of all files."""
    return [text for path in paths_of(paths) for text in read_sentences(path)]


def _perplexities(model: NgramModel | NeuralLm, heldout: Paths) -> dict[Path, Perplexity]:
    return {path: model.perplexity(sentences_of(path)) for path in paths_of(heldout)}
