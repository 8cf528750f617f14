"""`antiphon compare` and `antiphon alignments`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from antiphon import screen
from antiphon.decoding.alignment import (
    Confusions,
    find_confusions,
    format_alignments,
    format_confusions,
    most_frequent,
)
from antiphon.decoding.normalisation import Normalisation
from antiphon.recipes.comparison import Comparison, compare, read_transcripts, shared_normalisation
from antiphon.recipes.scoring import Tally, write_json
from antiphon.report.formatting import percent, plural
from antiphon.report.significance import segments_verdict, speakers_verdict

WHERE = "A run, an evaluation folder, or a .trn file."
Reference = Annotated[
    Path | None, typer.Option("--ref", help="The reference, where no ref.trn lies beside the hypothesis.")
]
Split = Annotated[str, typer.Option(help="Which evaluation of a run: its split …")]
Which = Annotated[str, typer.Option(help="… and its model, best or start.")]
Steps = Annotated[
    list[str],
    typer.Option(
        metavar="STEP",
        help="Before counting: nfc, lower_case, strip_punctuation, collapse_spaces. Repeatable; "
        "without it, as the scores beside the transcripts say.",
    ),
]


def compare_command(
    first: Annotated[Path, typer.Argument(metavar="A", help=WHERE)],
    second: Annotated[Path, typer.Argument(metavar="B", help=WHERE)],
    reference: Reference = None,
    split: Split = "test",
    which: Which = "best",
    normalise: Steps = [],
    out: Annotated[Path | None, typer.Option(help="Write everything to this file, as JSON.")] = None,
) -> None:
    """Say whether the difference between two runs is real: matched pairs, and a bootstrap over speakers."""
    one, other = (read_transcripts(source, split, which, reference) for source in (first, second))
    steps = Normalisation.of(normalise) if normalise else shared_normalisation(one, other)
    comparison = compare(one, other, steps)
    screen.console.print(_totals(comparison))
    _say(f"text       {steps}")
    for name, number in zip(comparison.names, comparison.left_out, strict=True):
        if number:
            _say(f"left out: {plural(number, 'utterance')} that only {name} has")
    _say(f"MAPSSWE    {segments_verdict(comparison.segments, comparison.names)}")
    _say(f"bootstrap  {speakers_verdict(comparison.speakers, comparison.names)}")
    _say(comparison.verdict)
    if out is not None:
        write_json(out, comparison.to_json())
        _say(f"wrote {out}")


def alignments_command(
    source: Annotated[Path, typer.Argument(metavar="RUN", help=WHERE)],
    reference: Reference = None,
    split: Split = "test",
    which: Which = "best",
    normalise: Steps = [],
    out: Annotated[
        Path | None, typer.Option(help="Folder for alignments.txt and confusions.txt; else beside hyp.trn.")
    ] = None,
    top: Annotated[int, typer.Option(min=0, help="How many confusions to show.")] = 10,
) -> None:
    """List every utterance word for word, who was scored how, and which words are confused most."""
    read = read_transcripts(source, split, which, reference)
    steps = Normalisation.of(normalise) if normalise else read.normalisation or Normalisation()
    normalised = read.normalised(steps)
    utterances = normalised.aligned()
    confusions = find_confusions(utterances)
    folder = out or read.folder
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "alignments.txt").write_text(format_alignments(str(source), utterances), encoding="utf-8")
    (folder / "confusions.txt").write_text(format_confusions(confusions), encoding="utf-8")
    screen.console.print(_speakers(normalised.by_speaker()))
    _say(f"text  {steps}")
    screen.console.print(_confusions(confusions, top))
    _say(f"alignments.txt and confusions.txt are in {folder}")


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
    for place in range(min(top, max(map(len, lists)))):
        table.add_row(
            *(f"{own[place][1]} {escape(own[place][0])}" if place < len(own) else "" for own in lists)
        )
    return table


def _say(text: str) -> None:
    screen.console.print(escape(text), soft_wrap=True, highlight=False)
