"""`antiphon evaluate`, `transcribe`, `compare` and `alignments`: errors of finished runs."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

import antiphon
from antiphon.cli import terminal
from antiphon.cli.options import Device, OtherCorpus, RunFolder, Split, num_cores
from antiphon.cli.terminal import say
from antiphon.experiment.score import Tally
from antiphon.report.formatting import percent
from antiphon.scoring.alignment import Confusions, most_frequent
from antiphon.scoring.significance import segments_verdict, speakers_verdict
from antiphon.scoring.statistics import plural
from antiphon.workflows.compare_runs import Comparison

SOURCE = "A run, an evaluation folder, or a .trn file."
Reference = Annotated[
    Path | None, typer.Option("--ref", help="The reference, if there is no ref.trn beside the hypothesis.")
]
EvaluatedSplit = Annotated[str, typer.Option(help="The split whose evaluation is read from a run.")]
Which = Annotated[str, typer.Option(help="The model whose evaluation is read from a run: best or start.")]
Steps = Annotated[
    list[str],
    typer.Option(
        metavar="STEP",
        help="Normalise texts before errors are counted: nfc, lower_case, strip_punctuation, "
        "collapse_spaces. Repeatable.",
    ),
]
RecordedSteps = Annotated[
    list[str],
    typer.Option(
        metavar="STEP",
        help="Normalise texts before errors are counted: nfc, lower_case, strip_punctuation, "
        "collapse_spaces; by default as scores.json beside the transcripts says. Repeatable.",
    ),
]
Recordings = Annotated[list[Path], typer.Argument(help="Recordings: WAV, FLAC, Opus and others.")]
Alignments = Annotated[
    Path | None,
    typer.Option(help="The folder for alignments.txt and confusions.txt; by default that of hyp.trn."),
]


def evaluate_command(
    run: RunFolder,
    data: OtherCorpus = None,
    split: Split = "test",
    device: Device = "auto",
    normalise: Steps = [],
) -> None:
    """Score a run's model on a split: WER and CER by speaker, and files for sclite."""
    with terminal.Terminal() as progress:
        evaluation = antiphon.evaluate(
            run, data=data, split=split, device=device, normalise=normalise,
            feature_processes=num_cores(), progress=progress,
        )  # fmt: skip
    terminal.console.print(terminal.score_table({run.name: evaluation.scores}))
    terminal.console.print(f"scores.json, ref.trn and hyp.trn are in {evaluation.folder}")


def transcribe_command(run: RunFolder, files: Recordings) -> None:
    """Recognise recordings with a run's model."""
    failed = False
    for transcription in antiphon.transcribe(run, files):
        if transcription.error:
            failed = True
            terminal.say_error(f"{transcription.file}: {transcription.error}")
        else:
            text = transcription.text
            typer.echo(text if len(files) == 1 else f"{transcription.file}\t{text}")
    if failed:
        raise typer.Exit(1)


def compare_command(
    first: Annotated[Path, typer.Argument(metavar="A", help=SOURCE)],
    second: Annotated[Path, typer.Argument(metavar="B", help=SOURCE)],
    reference: Reference = None,
    split: EvaluatedSplit = "test",
    which: Which = "best",
    normalise: RecordedSteps = [],
    out: Annotated[Path | None, typer.Option(help="A JSON file for everything.")] = None,
) -> None:
    """Test whether the difference between two runs is real: matched pairs, and a bootstrap over speakers."""
    comparison = antiphon.compare(
        first, second, reference=reference, split=split, which=which, normalise=normalise, out=out
    )
    _print_comparison(comparison)
    if out is not None:
        say(f"wrote {out}")


def alignments_command(
    source: Annotated[Path, typer.Argument(metavar="RUN", help=SOURCE)],
    reference: Reference = None,
    split: EvaluatedSplit = "test",
    which: Which = "best",
    normalise: RecordedSteps = [],
    out: Alignments = None,
    top: Annotated[int, typer.Option(min=0, help="The number of confusions to show.")] = 10,
) -> None:
    """Align every utterance word for word, and show errors by speaker and the most confused words."""
    errors = antiphon.alignments(
        source, reference=reference, split=split, which=which, normalise=normalise, out=out
    )
    terminal.console.print(_speakers(errors.speakers))
    say(f"text  {errors.normalisation}")
    terminal.console.print(_confusions(errors.confusions, top))
    say(f"alignments.txt and confusions.txt are in {errors.folder}")


def _print_comparison(comparison: Comparison) -> None:
    terminal.console.print(_totals(comparison))
    say(f"text       {comparison.normalisation}")
    for name, number in zip(comparison.names, comparison.left_out, strict=True):
        if number:
            say(f"left out: {plural(number, 'utterance')} that only {name} has")
    say(f"MAPSSWE    {segments_verdict(comparison.segments, comparison.names)}")
    say(f"bootstrap  {speakers_verdict(comparison.speakers, comparison.names)}")
    say(comparison.verdict)


def _totals(comparison: Comparison) -> Table:
    number = plural(comparison.totals[0].num_utterances, "utterance")
    table = _scores_table(f"{number} that both have", "run")
    for name, tally in zip(comparison.names, comparison.totals, strict=True):
        table.add_row(escape(name), *_figures(tally))
    return table


def _speakers(tallies: Mapping[str, Tally]) -> Table:
    table = _scores_table("Errors by speaker", "speaker")
    for name, tally in tallies.items():
        table.add_row(escape(name), *_figures(tally))
    table.add_section()
    table.add_row("all", *_figures(sum(tallies.values(), Tally())))
    return table


def _scores_table(title: str, what: str) -> Table:
    table = Table(title=title, box=SIMPLE_HEAD)
    table.add_column(what, no_wrap=True)
    for column in ("words", "WER %", "S/D/I", "CER %"):
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _figures(tally: Tally) -> Sequence[str]:
    words = tally.words
    kinds = f"{words.substitutions}/{words.deletions}/{words.insertions}"
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
