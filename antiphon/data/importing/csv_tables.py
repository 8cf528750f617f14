"""Tables with a header: CSV (comma, semicolon or |) with quotes, and TSV, in which quotes have no meaning.

A folder may hold one table, or tables named after splits, such as train.csv and test.csv.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from antiphon.data.importing import candidates
from antiphon.data.importing.candidates import Candidate, ImportOptions, Skipped
from antiphon.data.importing.columns import Columns, audio_finder, choose_tables
from antiphon.data.importing.formats import FORMATS
from antiphon.records.files import regular
from antiphon.records.reading import MAX_LINE, LongLineError, limited_lines

SUFFIXES = (".csv", ".tsv")
DELIMITERS = ",;\t|"
AUDIO = re.compile(r".*\.(wav|flac|mp3|ogg|opus|m4a)", re.IGNORECASE)
MAX_NAME, MAX_WORDS = 40, 4  # longer "names" of columns are data: transcripts must not be printed


@FORMATS.named("csv")
class CsvTable:
    """An `Importer` of tables of any origin."""

    looks_for = "a .csv or .tsv file with a header (or a folder with one) that names audio, text and speaker"
    is_general = True

    def recognises(self, source: Path) -> bool:
        return bool(tables_in(source))

    def read(self, source: Path, options: ImportOptions) -> Iterator[Candidate | Skipped]:
        tables = choose_tables(tables_in(source), source)
        for table in candidates.inside(tables, source, options):
            if isinstance(table, Skipped):
                yield table
                continue
            columns = Columns.choose(header(table), options, table.name)
            split = table.stem if len(tables) > 1 else None
            find = audio_finder(table, source, options)
            yield from convert_rows(rows_of(table), columns, options, find, split)


def tables_in(source: Path) -> list[Path]:
    """Return the tables of a source: the file itself, or those directly in the folder."""
    paths = [source] if source.is_file() else source.iterdir() if source.is_dir() else ()
    return sorted(path for path in paths if path.suffix.lower() in SUFFIXES and path.is_file())


def header(table: Path) -> list[str]:
    """Return the names of the columns; ValueError if the first line does not name columns."""
    names = first_line(table)
    if not names or any(
        AUDIO.fullmatch(name) or len(name) > MAX_NAME or len(name.split()) > MAX_WORDS for name in names
    ):
        raise ValueError(f"{table.name} has no header: its first line must name the columns")
    return names


def first_line(table: Path) -> list[str]:
    """Return the fields of the first line of a table; empty if it cannot be read."""
    try:
        with _open(table) as file:
            return [name.strip() for name in next(_reader(table, file), [])]
    except (OSError, csv.Error, LongLineError):
        return []


def convert_rows(
    rows: Iterable[tuple[str, Mapping[str, Any]] | Skipped],
    columns: Columns,
    options: ImportOptions,
    find: Callable[[str], candidates.Blob | str],
    split: str | None,
) -> Iterator[Candidate | Skipped]:
    """Yield the utterances of the rows of a table; `find` finds their audio."""
    names = [columns.by_part[part] for part in ("id", "audio") if part in columns.by_part]
    make = partial(columns.candidate, options=options, find=find, split=split)
    return candidates.convert_rows(
        rows,
        lambda where, row: [make(where, row)],
        lambda row: next((str(row[name]) for name in names if row.get(name)), ""),
    )


def rows_of(table: Path) -> Iterator[tuple[str, dict[str, str]] | Skipped]:
    """Yield the rows of a table as dictionaries, each with its location."""
    with _open(table) as file:
        reader = _reader(table, file)
        names = [name.strip() for name in next(reader, [])]
        while True:
            where = f"{table.name}:{reader.line_num + 1}"
            try:
                fields = next(reader, None)
            except csv.Error as error:
                yield Skipped("", where, f"malformed row: {error}")
                continue
            if fields is None:
                return
            if len(fields) == len(names):
                values = fields if reader.dialect.quoting != csv.QUOTE_NONE else map(_unquoted, fields)
                yield where, {name: value for name, value in zip(names, values, strict=True) if name}
            elif fields:
                yield Skipped("", where, f"malformed row: {len(fields)} fields, the header has {len(names)}")


def _unquoted(field: str) -> str:
    """Remove the quotes that some programs write around a field of a TSV."""
    is_quoted = len(field) > 1 and field[0] == field[-1] == '"'
    return field[1:-1].replace('""', '"') if is_quoted else field


def _open(table: Path) -> TextIO:
    return open(table, encoding="utf-8-sig", errors="surrogateescape", newline="", opener=regular)


def _reader(table: Path, file: TextIO) -> Any:
    """Return a reader. A TSV has no quotes: one that is not closed would swallow the lines after it."""
    lines = limited_lines(file, table.name, MAX_LINE)
    if table.suffix.lower() == ".tsv":
        return csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
    line = file.readline(MAX_LINE)
    file.seek(0)
    return csv.reader(lines, delimiter=max(DELIMITERS, key=line.count))
