"""`antiphon lm ngram` and `antiphon lm train`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

import antiphon
from antiphon.cli import terminal
from antiphon.cli.parsing import whole_numbers
from antiphon.lm.ngram import Perplexity

lm_commands = typer.Typer(no_args_is_help=True, help="Train language models: n-grams, or a Transformer.")

Texts = Annotated[
    list[Path],
    typer.Argument(help="Text files, plain or .gz: a sentence on a line, after the last tab; or .jsonl."),
]
Heldout = Annotated[
    list[Path], typer.Option(metavar="FILE", help="Other text to measure perplexity on. Repeatable.")
]
NgramFile = Annotated[
    Path, typer.Option(help="A file ending in .arpa or .arpa.gz, or a folder (which opens faster).")
]
MinCounts = Annotated[
    str,
    typer.Option(
        metavar="1,1,2", help="Leave out rarer n-grams, by order; the last number holds for higher orders."
    ),
]


@lm_commands.command("ngram")
def ngram_command(
    texts: Texts,
    out: NgramFile,
    order: Annotated[int, typer.Option(min=1, help="The words of the longest n-gram.")] = 5,
    min_counts: MinCounts = "1",
    heldout: Heldout = [],
) -> None:
    """Estimate an n-gram model with interpolated modified Kneser-Ney smoothing."""
    counts = whole_numbers("--min-counts", min_counts)
    training = antiphon.train_ngram_lm(texts, out, order=order, min_counts=counts, heldout=heldout)
    model = training.model
    sizes = ", ".join(f"{len(level.keys):,}" for level in model.levels)
    terminal.console.print(
        f"{out}: n-grams of order 1 to {model.order}: {sizes}; estimated in {training.seconds:.0f} s"
    )
    _print_perplexities(training.perplexities)


@lm_commands.command("train")
def train_command(
    texts: Texts,
    out: Annotated[Path, typer.Option(help="The folder to write.")],
    subwords: Annotated[int, typer.Option(help="The number of SentencePiece tokens; 0: whole words.")] = 1000,
    words: Annotated[int, typer.Option(help="The size of the vocabulary with --subwords 0.")] = 20_000,
    steps: Annotated[int, typer.Option(min=1, help="The number of training steps.")] = 2000,
    batch_tokens: Annotated[int, typer.Option(min=1, help="The tokens of a step, with padding.")] = 4096,
    lr: Annotated[float, typer.Option(help="The highest learning rate.")] = 1e-3,
    seed: Annotated[int, typer.Option(help="The seed of parameters, order and dropout.")] = 0,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    heldout: Heldout = [],
) -> None:
    """Train a Transformer language model: 3 blocks of width 256."""
    with terminal.Terminal() as progress:
        training = antiphon.train_transformer_lm(
            texts, out, subwords=subwords, words=words, steps=steps, batch_tokens=batch_tokens, lr=lr,
            seed=seed, device=device, heldout=heldout, progress=progress,
        )  # fmt: skip
    terminal.console.print(f"{out}: {training.model.tokens.size:,} tokens, {steps:,} steps")
    _print_perplexities(training.perplexities)


def _print_perplexities(perplexities: Mapping[Path, Perplexity]) -> None:
    for path, found in perplexities.items():
        terminal.console.print(
            f"{path.name}: perplexity {found.value:.1f} per word, ends of sentences included "
            f"({found.num_words:,} words, {found.num_sentences:,} sentences, {found.num_unknown:,} unknown)"
        )
