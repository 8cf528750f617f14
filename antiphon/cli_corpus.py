"""`antiphon corpus import` and `antiphon corpus show`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from antiphon import screen
from antiphon.data.candidates import ImportOptions
from antiphon.data.importers import FORMATS
from antiphon.data.text import ALPHABET

corpus_commands = typer.Typer(no_args_is_help=True, help="Bring in a corpus, and look at one.")


@corpus_commands.command("import")
def import_command(
    source: Annotated[Path, typer.Argument(help=f"A folder or manifest: {', '.join(FORMATS)}.")],
    destination: Annotated[Path, typer.Argument(help="The corpus folder to make.")],
    format: Annotated[
        str | None, typer.Option(help="The source's format, where looking is not enough.")
    ] = None,
    client_key: Annotated[
        str, typer.Option(help="The field that names the speaker (NeMo, manifests).")
    ] = "speaker",
    session_key: Annotated[str, typer.Option(help="The field that names the session.")] = "session",
    split: Annotated[str, typer.Option(help="The split of a source that names none.")] = "pool",
    rename_split: Annotated[
        list[str], typer.Option(metavar="OLD=NEW", help="Rename a split: dev-clean=heldout.")
    ] = [],
    split_speakers: Annotated[
        str, typer.Option(metavar="POOL,HELDOUT,TEST", help="Part speakers anew: 0.8,0.1,0.1.")
    ] = "",
    where: Annotated[
        list[str],
        typer.Option(metavar="KEY=VALUE", help="Take only utterances with this field: tar=core.tar."),
    ] = [],
    alphabet: Annotated[str, typer.Option(help="Characters allowed in texts; 'any' takes all.")] = ALPHABET,
    keep_case: Annotated[bool, typer.Option(help="Do not lower-case texts.")] = False,
    min_seconds: Annotated[float, typer.Option(help="Shorter utterances are skipped.")] = 0.1,
    max_seconds: Annotated[float, typer.Option(help="Longer utterances are skipped.")] = 60.0,
    speeds: Annotated[
        str, typer.Option(metavar="0.9,1.1", help="Take the pool's utterances at these speeds as well.")
    ] = "",
    audio_root: Annotated[Path | None, typer.Option(help="Another folder that audio may lie in.")] = None,
    seed: Annotated[int, typer.Option(help="Decides --split-speakers.")] = 0,
    overwrite: Annotated[bool, typer.Option(help="Replace the corpus that is there.")] = False,
) -> None:
    """Import speech: every file is read and checked; what cannot be used is listed with its reason."""
    from antiphon.data.importing import import_corpus
    from antiphon.data.summary import skipped_table

    options = ImportOptions(
        format=format,
        split=split,
        splits=_pairs("--rename-split", rename_split),
        split_speakers=_fractions(split_speakers),
        seed=seed,
        where=_pairs("--where", where),
        lowercase=not keep_case,
        alphabet=None if alphabet == "any" else alphabet,
        min_seconds=min_seconds,
        max_seconds=max_seconds,
        speeds=_speeds(speeds),
        client_key=client_key,
        session_key=session_key,
        audio_root=audio_root,
        overwrite=overwrite,
    )
    with screen.bar("import") as progress:
        summary = import_corpus(source, destination, options, progress)
    if summary.skipped:
        screen.console.print(skipped_table(summary.skipped))
        screen.console.print(f"All of them are listed in {destination / 'skipped.jsonl'}")
    screen.console.print(
        f"{destination}: {summary.num_utterances:,} utterances, {summary.num_speakers:,} speakers, "
        f"{summary.seconds / 3600:.2f} h from {summary.format}; {len(summary.skipped):,} skipped, "
        f"{summary.num_resampled:,} resampled, {summary.num_mixed:,} mixed down to one channel"
    )


@corpus_commands.command("show")
def show_command(
    corpus: Annotated[Path, typer.Argument(help="A corpus folder.")],
    plot: Annotated[
        Path | None, typer.Option(help="Where the plot goes; beside the corpus by default.")
    ] = None,
) -> None:
    """Show a corpus: speakers, hours per client, utterances, vocabulary; a table and a plot."""
    from antiphon.data.corpus import Corpus
    from antiphon.data.summary import plot_hours, summarise, tables

    summary = summarise(Corpus.open(corpus))
    for table in tables(summary):
        screen.console.print(table)
    target = plot or corpus.with_name(f"{corpus.name}-clients.png")
    plot_hours(summary, target)
    screen.console.print(f"plot: {target}")


def _pairs(option: str, texts: list[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts]
    for text, (key, equals, value) in zip(texts, pairs, strict=True):
        if not (key and equals and value):
            raise ValueError(f"{option} takes KEY=VALUE, not {text!r}")
    return {key: value for key, _, value in pairs}


def _speeds(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(",") if part)
    except ValueError as error:
        raise ValueError(f"--speeds takes numbers such as 0.9,1.1, not {text!r}") from error


def _fractions(text: str) -> tuple[float, float, float] | None:
    if not text:
        return None
    try:
        pool, heldout, test = (float(part) for part in text.split(","))
    except ValueError as error:
        raise ValueError(
            f"--split-speakers takes three fractions such as 0.8,0.1,0.1, not {text!r}"
        ) from error
    return pool, heldout, test
