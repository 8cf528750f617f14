"""`antiphon lm`, `nbest` and `rescore`: language models, N-best lists, and lists that are ranked again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer
from rich.table import Table

import antiphon
from antiphon.cli import terminal
from antiphon.cli.options import Search, named_numbers, options_of
from antiphon.lm.ngram import Perplexity
from antiphon.workflows.rescore_lists import ListScores, Rescoring, describe_weights

lm_commands = typer.Typer(no_args_is_help=True, help="Train language models: n-grams, or a Transformer.")


@lm_commands.command("ngram")
@options_of(antiphon.train_ngram_lm, "texts")
def ngram_command(**options: Any) -> None:
    """Estimate an n-gram model with interpolated modified Kneser-Ney smoothing."""
    training = terminal.with_bars(antiphon.train_ngram_lm, **options)
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
    training = terminal.with_bars(antiphon.train_transformer_lm, **options)
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


@options_of(antiphon.nbest, "run")
def nbest_command(**options: Any) -> None:
    """Decode speech by beam search with a run's model: N-best lists and their word error rates."""
    decoding = terminal.with_bars(antiphon.nbest, **options)
    terminal.console.print(_table(decoding.scores))
    minutes, factor = decoding.speech_seconds / 60, decoding.real_time_factor
    terminal.console.print(f"{minutes:.1f} min of speech, real-time factor {factor:.3f}")
    terminal.console.print(f"wrote {options['out']}")


@options_of(antiphon.rescore, "nbest")
def rescore_command(*, search: Search = [], **options: Any) -> None:
    """Rank N-best lists again with other models: word error rates before and after, and the best possible."""
    steps = named_numbers("--search", search, default="1")
    rescoring = terminal.with_bars(antiphon.rescore, **options, search=steps)
    _print_weights(rescoring)
    terminal.console.print(_table(rescoring.scores))
    if options["out"] is not None:
        terminal.console.print(f"wrote {options['out']}")


def _print_weights(rescoring: Rescoring) -> None:
    title, weights = "weights", dict(rescoring.weights)
    if rescoring.leave_one_out:
        title = "weights, found on all"
        terminal.say("each session is scored with weights found on all other sessions")
    elif rescoring.tuned_on:
        title = f"weights, found on {rescoring.tuned_on}"
    if rescoring.sharpness is not None:
        weights["sharpness"] = rescoring.sharpness
    terminal.say(describe_weights(title, weights))


def _table(scores: ListScores) -> Table:
    """Return the error rate of each way to choose a hypothesis, and its change from the first way."""
    title = f"{scores.num_lists:,} lists, {scores.num_words:,} words"
    title += f"; 95 % intervals over {scores.num_sessions:,} sessions"
    table = terminal.number_table(title, "", "WER %", "change", "S/D/I")
    for choice in scores.choices:
        rate = terminal.percent(choice.rate) or f"{100 * choice.errors.rate:.2f}"
        table.add_row(choice.name, rate, terminal.percent(choice.change), terminal.error_kinds(choice.errors))
    return table
