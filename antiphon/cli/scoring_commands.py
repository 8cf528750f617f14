"""`antiphon evaluate`, `transcribe`, `compare` and `alignments`: errors of finished runs."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

import antiphon
from antiphon.cli import terminal
from antiphon.cli.options import options_of
from antiphon.cli.terminal import say
from antiphon.experiment.score import Tally
from antiphon.report.formatting import percent
from antiphon.scoring.alignment import Confusions, most_frequent
from antiphon.scoring.significance import segments_verdict, speakers_verdict
from antiphon.scoring.statistics import plural
from antiphon.workflows.compare_runs import Comparison

Top = Annotated[int, typer.Option(min=0, help="The number of confusions to show.")]


@options_of(antiphon.evaluate, "run")
def evaluate_command(**options: Any) -> None:
    """Score a run's model on a split: WER and CER by speaker, and files for sclite."""
    evaluation = terminal.with_bars(antiphon.evaluate, **options)
    terminal.console.print(terminal.score_table({options["run"].name: evaluation.scores}))
    terminal.console.print(f"scores.json, ref.trn and hyp.trn are in {evaluation.folder}")


@options_of(antiphon.transcribe, "run", "files")
def transcribe_command(**options: Any) -> None:
    """Recognise recordings with a run's model."""
    failed = False
    for transcription in antiphon.transcribe(**options):
        if transcription.error:
            failed = True
            terminal.say_error(f"{transcription.file}: {transcription.error}")
        else:
            text = transcription.text
            typer.echo(text if len(options["files"]) == 1 else f"{transcription.file}\t{text}")
    if failed:
        raise typer.Exit(1)


@options_of(antiphon.compare, "first", "second")
def compare_command(**options: Any) -> None:
    """Test whether two runs really differ: matched pairs, and a bootstrap over speakers."""
    _print_comparison(antiphon.compare(**options))
    if options["out"] is not None:
        say(f"wrote {options['out']}")


@options_of(antiphon.alignments, "source")
def alignments_command(*, top: Top = 10, **options: Any) -> None:
    """Align every utterance word for word; show errors by speaker and the most confused words."""
    errors = antiphon.alignments(**options)
    table = _errors_table("Errors by speaker", "speaker", errors.speakers.items())
    table.add_section()
    table.add_row("all", *_figures(sum(errors.speakers.values(), Tally())))
    terminal.console.print(table)
    say(f"text  {errors.normalisation}")
    terminal.console.print(_confusions(errors.confusions, top))
    say(f"alignments.txt and confusions.txt are in {errors.folder}")


def _print_comparison(comparison: Comparison) -> None:
    number = plural(comparison.totals[0].num_utterances, "utterance")
    rows = zip(comparison.names, comparison.totals, strict=True)
    terminal.console.print(_errors_table(f"{number} that both have", "run", rows))
    say(f"text       {comparison.normalisation}")
    for name, left_out in zip(comparison.names, comparison.left_out, strict=True):
        if left_out:
            say(f"left out: {plural(left_out, 'utterance')} that only {name} has")
    say(f"MAPSSWE    {segments_verdict(comparison.segments, comparison.names)}")
    say(f"bootstrap  {speakers_verdict(comparison.speakers, comparison.names)}")
    say(comparison.verdict)


def _errors_table(title: str, label: str, rows: Iterable[tuple[str, Tally]]) -> Table:
    table = terminal.number_table(title, label, "words", "WER %", "S/D/I", "CER %")
    for name, tally in rows:
        table.add_row(escape(name), *_figures(tally))
    return table


def _figures(tally: Tally) -> Sequence[str]:
    words, kinds = tally.words, terminal.error_kinds(tally.words)
    return f"{words.length:,}", percent(words.rate), kinds, percent(tally.characters.rate)


def _confusions(confusions: Confusions, top: int) -> Table:
    table = Table(title="Most frequent", box=SIMPLE_HEAD)
    pairs = [(f"{said} → {heard}", n) for (said, heard), n in most_frequent(confusions.substitutions)]
    lists = (pairs, most_frequent(confusions.deletions), most_frequent(confusions.insertions))
    for title in ("substitutions", "deletions", "insertions"):
        table.add_column(title, no_wrap=True)
    for row in itertools.islice(itertools.zip_longest(*lists), top):
        table.add_row(*(f"{cell[1]} {escape(cell[0])}" if cell else "" for cell in row))
    return table
