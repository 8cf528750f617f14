"""`antiphon lm ngram` and `antiphon lm train`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from antiphon import screen
from antiphon.data.text import read_sentences
from antiphon.data.tokens import UnigramConfig, WordsConfig
from antiphon.models.ngram import Perplexity

lm_commands = typer.Typer(
    no_args_is_help=True, help="Language models: estimate n-grams, train a Transformer."
)

Texts = Annotated[
    list[Path],
    typer.Argument(help="Text files, plain or .gz: a sentence a line, after the last tab; or .jsonl."),
]
Heldout = Annotated[
    list[Path], typer.Option(metavar="FILE", help="Other text, to measure perplexity on. Repeatable.")
]
MOST_FOR_TOKENS = 200_000  # sentences that subwords are learnt from


@lm_commands.command("ngram")
def ngram_command(
    texts: Texts,
    out: Annotated[
        Path, typer.Option(help="A name ending in .arpa or .arpa.gz, or a folder (opens at once).")
    ],
    order: Annotated[int, typer.Option(min=1, help="Words of the longest n-gram.")] = 5,
    min_counts: Annotated[
        str, typer.Option(metavar="1,1,2", help="Leave out rarer n-grams, by order; the last holds beyond.")
    ] = "1",
    heldout: Heldout = [],
) -> None:
    """Estimate an n-gram model with interpolated modified Kneser-Ney smoothing."""
    from antiphon.models.arpa import save_ngram
    from antiphon.models.kneser_ney import estimate

    started = time.monotonic()
    model = estimate(sentences_of(texts), order, _counts(min_counts))
    seconds = time.monotonic() - started
    save_ngram(model, out)
    sizes = ", ".join(f"{len(level.keys):,}" for level in model.levels)
    screen.console.print(f"{out}: n-grams of order 1 to {model.order}: {sizes}; estimated in {seconds:.0f} s")
    _show_perplexity(model.perplexity, heldout)


@lm_commands.command("train")
def train_command(
    texts: Texts,
    out: Annotated[Path, typer.Option(help="The folder to write.")],
    subwords: Annotated[int, typer.Option(help="Number of SentencePiece tokens; 0 for whole words.")] = 1000,
    words: Annotated[int, typer.Option(help="Size of the vocabulary with --subwords 0.")] = 20_000,
    steps: Annotated[int, typer.Option(min=1, help="Training steps.")] = 2000,
    batch_tokens: Annotated[int, typer.Option(min=1, help="Tokens a step, padding included.")] = 4096,
    lr: Annotated[float, typer.Option(help="The highest learning rate.")] = 1e-3,
    seed: Annotated[int, typer.Option(help="Decides first parameters, order and dropout.")] = 0,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    heldout: Heldout = [],
) -> None:
    """Train a Transformer language model: 3 blocks of width 256."""
    from antiphon.models.lm_training import LmTraining, train_lm

    sentences = sentences_of(texts)
    some = sentences[:: -(-len(sentences) // MOST_FOR_TOKENS) or 1]
    config = UnigramConfig(subwords) if subwords else WordsConfig(words)
    tokens = config.fit(some if subwords else sentences, alphabet=None)
    training = LmTraining(steps=steps, batch_tokens=batch_tokens, lr=lr, seed=seed)
    with screen.bar("training") as progress:
        model = train_lm(
            sentences,
            tokens,
            training=training,
            device=device,
            progress=lambda done, _: progress(done, steps),
        )
    notes = {"steps": steps, "batch_tokens": batch_tokens, "lr": lr, "seed": seed}
    model.save(out, notes)
    screen.console.print(f"{out}: {tokens.size:,} tokens, {steps:,} steps")
    _show_perplexity(model.perplexity, heldout)


def sentences_of(paths: Sequence[Path]) -> list[str]:
    return [text for path in paths for text in read_sentences(path)]


def _counts(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"--min-counts takes whole numbers such as 1,1,2, not {text!r}") from None


def _show_perplexity(measure: Callable[[list[str]], Perplexity], heldout: Sequence[Path]) -> None:
    for path in heldout:
        found = measure(sentences_of([path]))
        screen.console.print(
            f"{path.name}: perplexity {found.value:.1f} per word, ends of sentences included "
            f"({found.num_words:,} words, {found.num_sentences:,} sentences, {found.num_unknown:,} unknown)"
        )
