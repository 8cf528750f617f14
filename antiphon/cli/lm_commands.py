"""`antiphon lm ngram` and `antiphon lm train`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

import antiphon
from antiphon.cli import terminal
from antiphon.cli.options import options_of
from antiphon.lm.ngram import Perplexity

lm_commands = typer.Typer(no_args_is_help=True, help="Train language models: n-grams, or a Transformer.")


@lm_commands.command("ngram")
@options_of(antiphon.train_ngram_lm, "texts")
def ngram_command(**options: Any) -> None:
    """Estimate an n-gram model with interpolated modified Kneser-Ney smoothing."""
    with terminal.Terminal() as progress:
        training = antiphon.train_ngram_lm(**options, progress=progress)
    model = training.model
    sizes = ", ".join(f"{len(level.keys):,}" for level in model.levels)
    terminal.console.print(
        f"{options['out']}: n-grams of order 1 to {model.order}: {sizes}; "
        f"estimated in {training.seconds:.0f} s"
    )
    _print_perplexities(training.perplexities)


@lm_commands.command("train")
@options_of(antiphon.train_transformer_lm, "texts")
def train_command(**options: Any) -> None:
    """Train a Transformer language model with 3 blocks of width 256."""
    with terminal.Terminal() as progress:
        training = antiphon.train_transformer_lm(**options, progress=progress)
    size, steps = training.model.tokens.size, options["steps"]
    terminal.console.print(f"{options['out']}: {size:,} tokens, {steps:,} steps")
    _print_perplexities(training.perplexities)


def _print_perplexities(perplexities: Mapping[Path, Perplexity]) -> None:
    for path, result in perplexities.items():
        terminal.console.print(
            f"{path.name}: perplexity {result.value:.1f} per word, ends of sentences included "
            f"({result.num_words:,} words, {result.num_sentences:,} sentences, "
            f"{result.num_unknown:,} unknown)"
        )
