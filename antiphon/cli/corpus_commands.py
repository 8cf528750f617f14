"""`antiphon corpus import` and `antiphon corpus show`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import antiphon
from antiphon.cli import terminal
from antiphon.cli.parsing import fractions, numbers, pairs
from antiphon.data.importing.formats import FORMATS
from antiphon.data.summary import skipped_table, tables
from antiphon.data.transcripts import ALPHABET

corpus_commands = typer.Typer(no_args_is_help=True, help="Import a corpus, or describe one.")

Source = Annotated[Path, typer.Argument(help=f"A folder or a manifest: {', '.join(FORMATS)}.")]
Destination = Annotated[Path, typer.Argument(help="The corpus folder to make.")]
Format = Annotated[str | None, typer.Option(help="The format of the source, if it is not recognised.")]
ClientKey = Annotated[str, typer.Option(help="The field that names the speaker (NeMo, manifests).")]
SessionKey = Annotated[str, typer.Option(help="The field that names the session.")]
DefaultSplit = Annotated[str, typer.Option(help="The split of a source that names none.")]
RenameSplit = Annotated[
    list[str], typer.Option(metavar="OLD=NEW", help="Rename a split: dev-clean=heldout. Repeatable.")
]
SplitSpeakers = Annotated[
    str, typer.Option(metavar="POOL,HELDOUT,TEST", help="Divide the speakers again: 0.8,0.1,0.1.")
]
Where = Annotated[
    list[str],
    typer.Option(metavar="KEY=VALUE", help="Take only utterances with this field: tar=core.tar. Repeatable."),
]
Alphabet = Annotated[str, typer.Option(help="The characters that texts may have; 'any' allows all.")]
KeepCase = Annotated[bool, typer.Option(help="Do not lower-case texts.")]
MinSeconds = Annotated[float, typer.Option(help="Skip shorter utterances.")]
MaxSeconds = Annotated[float, typer.Option(help="Skip longer utterances.")]
Speeds = Annotated[
    str, typer.Option(metavar="0.9,1.1", help="Take the utterances of the pool at these speeds too.")
]
AudioRoot = Annotated[Path | None, typer.Option(help="Another folder that may hold the audio.")]
Seed = Annotated[int, typer.Option(help="The seed of --split-speakers.")]
Overwrite = Annotated[bool, typer.Option(help="Replace the corpus in the destination.")]


@corpus_commands.command("import")
def import_command(
    source: Source,
    destination: Destination,
    format: Format = None,
    client_key: ClientKey = "speaker",
    session_key: SessionKey = "session",
    split: DefaultSplit = "pool",
    rename_split: RenameSplit = [],
    split_speakers: SplitSpeakers = "",
    where: Where = [],
    alphabet: Alphabet = ALPHABET,
    keep_case: KeepCase = False,
    min_seconds: MinSeconds = 0.1,
    max_seconds: MaxSeconds = 60.0,
    speeds: Speeds = "",
    audio_root: AudioRoot = None,
    seed: Seed = 0,
    overwrite: Overwrite = False,
) -> None:
    """Import speech: read and check every file, and list what cannot be used with the reason."""
    options = antiphon.ImportOptions(
        format=format, client_key=client_key, session_key=session_key, split=split, seed=seed,
        splits=pairs("--rename-split", rename_split), where=pairs("--where", where),
        split_speakers=fractions("--split-speakers", split_speakers), lowercase=not keep_case,
        alphabet=None if alphabet == "any" else alphabet, min_seconds=min_seconds, max_seconds=max_seconds,
        speeds=numbers("--speeds", speeds) if speeds else (), audio_root=audio_root, overwrite=overwrite,
    )  # fmt: skip
    with terminal.Terminal() as progress:
        summary = antiphon.import_corpus(
            source, destination, options, lambda done, total: progress("import", done, total)
        )
    if summary.skipped:
        terminal.console.print(skipped_table(summary.skipped))
        terminal.console.print(f"All of them are listed in {destination / 'skipped.jsonl'}")
    terminal.console.print(
        f"{destination}: {summary.num_utterances:,} utterances, {summary.num_speakers:,} speakers, "
        f"{summary.seconds / 3600:.2f} h from {summary.format}; {len(summary.skipped):,} skipped, "
        f"{summary.num_resampled:,} resampled, {summary.num_mixed:,} mixed down to one channel"
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
