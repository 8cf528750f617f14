"""`antiphon nbest` and `antiphon rescore`: N-best lists by beam search, and lists that are ranked again."""

from __future__ import annotations

from typing import Any

from rich.table import Table

import antiphon
from antiphon.cli import terminal
from antiphon.cli.options import Search, num_cores, options_of
from antiphon.cli.parsing import named_numbers
from antiphon.workflows.rescore_lists import ListScores, Rescoring, describe_weights


@options_of(antiphon.nbest, "run")
def nbest_command(**options: Any) -> None:
    """Decode speech by beam search with a run's model: N-best lists and their word error rates."""
    with terminal.Terminal() as progress:
        decoding = antiphon.nbest(
            **options, feature_processes=num_cores(), progress=progress, notify=terminal.say
        )
    terminal.console.print(_table(decoding.scores))
    minutes, factor = decoding.speech_seconds / 60, decoding.real_time_factor
    terminal.console.print(f"{minutes:.1f} min of speech, real-time factor {factor:.3f}")
    terminal.console.print(f"wrote {options['out']}")


@options_of(antiphon.rescore, "nbest")
def rescore_command(*, search: Search = [], **options: Any) -> None:
    """Rank N-best lists again with other models: word error rates before and after, and the best possible."""
    with terminal.Terminal() as progress:
        steps = named_numbers("--search", search, default="1")
        rescoring = antiphon.rescore(
            **options, search=steps, feature_processes=num_cores(), progress=progress
        )
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
