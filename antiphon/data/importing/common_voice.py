"""Common Voice as downloaded: train.tsv, dev.tsv, test.tsv, validated.tsv and others beside clips/.

A client is a `client_id`. The train, dev and test tables become pool, heldout and test; validated.tsv is read
if there are none of them, or if it is the source itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from antiphon.data.importing.candidates import Candidate, ImportOptions, Skipped, inside
from antiphon.data.importing.columns import Columns, audio_finder
from antiphon.data.importing.csv_tables import convert_rows, first_line, header, rows_of
from antiphon.data.importing.formats import FORMATS

COLUMNS = {"client_id", "path", "sentence"}
CLIPS = "clips"


@FORMATS.named("common_voice")
class CommonVoice:
    """An `Importer` of Common Voice folders."""

    looks_for = "a language of Common Voice: train.tsv, dev.tsv, test.tsv or validated.tsv beside clips/"

    def recognises(self, source: Path) -> bool:
        return bool(_tables(source))

    def read(self, source: Path, options: ImportOptions) -> Iterator[Candidate | Skipped]:
        for table in inside(_tables(source), source, options):
            if isinstance(table, Skipped):
                yield table
                continue
            columns = Columns.choose(header(table), options, table.name)
            find = audio_finder(table, source, options, CLIPS)
            yield from convert_rows(rows_of(table), columns, options, find, _split(table))


def _tables(source: Path) -> list[Path]:
    if source.is_file():
        paths = [source]
    else:
        paths = [source / f"{name}.tsv" for name in ("train", "dev", "test")]
        paths = [path for path in paths if path.is_file()] or [source / "validated.tsv"]
    return [path for path in paths if _is_table(path)]


def _is_table(path: Path) -> bool:
    is_tsv = path.suffix == ".tsv" and path.is_file() and (path.parent / CLIPS).is_dir()
    return is_tsv and set(first_line(path)) >= COLUMNS


def _split(table: Path) -> str | None:
    return table.stem if table.stem in ("train", "dev", "test", "validated") else None
