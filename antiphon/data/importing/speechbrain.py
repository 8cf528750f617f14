"""Data files of SpeechBrain recipes: train.csv, valid.csv, test.csv with ID, duration, wav; or JSON.

Paths may begin with {data_root}, which is the folder of the data file or `audio_root`. A column for the text
is usually called wrd, one for the speaker spk_id. The ESPnet recipes have Kaldi data directories instead.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from antiphon.data.importing import candidates
from antiphon.data.importing.candidates import Candidate, ImportOptions, RefusedError, Skipped
from antiphon.data.importing.columns import Columns, audio_finder, choose_tables
from antiphon.data.importing.csv_tables import first_line, header, rows_of
from antiphon.data.importing.formats import FORMATS
from antiphon.records.files import regular
from antiphon.records.reading import parse_json, read_text

COLUMNS = {"ID", "duration", "wav"}
ROOT = re.compile(r"^(\{\w+\}|\$\w+|\$\{\w+\})/+")  # {data_root}, {data_folder}, $data_root
START = re.compile(r'\s*\{\s*"(?:[^"\\]|\\.)*"\s*:\s*\{')  # {"utterance": {
HEAD_BYTES = 4096


@FORMATS.named("speechbrain")
class SpeechBrain:
    """An `Importer` of SpeechBrain's CSV and JSON files."""

    looks_for = "SpeechBrain data files, .csv with ID, duration, wav, or .json of utterances with wav"

    def recognises(self, source: Path) -> bool:
        return bool(_files(source))

    def read(self, source: Path, options: ImportOptions) -> Iterator[Candidate | Skipped]:
        for path in candidates.inside(choose_tables(_files(source), source), source, options):
            if isinstance(path, Skipped):
                yield path
                continue
            columns = Columns.choose(_names(path), options, path.name)
            rows = _json_rows(path) if path.suffix == ".json" else rows_of(path)
            find = audio_finder(path, source, options)
            make = partial(_candidates, columns=columns, find=find, split=path.stem, options=options)
            yield from candidates.convert_rows(rows, make, lambda row: str(row.get("ID", "")))


def _files(source: Path) -> list[Path]:
    paths = [source] if source.is_file() else source.iterdir() if source.is_dir() else ()
    return sorted(path for path in paths if path.is_file() and _is_data_file(path))


def _is_data_file(path: Path) -> bool:
    if path.suffix == ".csv":
        return set(first_line(path)) >= COLUMNS
    if path.suffix != ".json":
        return False
    try:
        with open(path, encoding="utf-8", errors="replace", opener=regular) as file:
            head = file.read(HEAD_BYTES)
    except OSError:
        return False
    return START.match(head) is not None and '"wav"' in head


def _json_rows(path: Path) -> Iterator[tuple[str, Mapping[str, Any]] | Skipped]:
    """Yield the utterances of a JSON file, each with its id in the field ID."""
    try:
        utterances = parse_json(read_text(path, opener=regular), is_finite=False)
    except ValueError as error:
        raise ValueError(f"{path.name} is not JSON: it cannot be parsed ({error})") from None
    for name, fields in utterances.items():
        if isinstance(fields, dict):
            yield f"{path.name}:{name}", {"ID": name, **fields}
        else:
            yield Skipped(name, path.name, "malformed JSON: the utterance is not an object")


def _names(path: Path) -> list[str]:
    """Return the names of the columns; those of a JSON file are the fields of its first utterance."""
    if path.suffix != ".json":
        return header(path)
    rows = (row for row in _json_rows(path) if not isinstance(row, Skipped))
    return list(next(rows, ("", {}))[1])


def _candidates(
    where: str,
    row: Mapping[str, Any],
    columns: Columns,
    find: Callable[[str], candidates.Blob | str],
    split: str,
    options: ImportOptions,
) -> Iterator[Candidate]:
    if isinstance(row.get(columns.by_part["audio"]), dict):
        raise RefusedError("part of a file: start and stop are not supported, write the part to a file")
    length = row.get("duration", row.get("length"))
    fields = {key: value for key, value in row.items() if key != "length"} | {"duration": length}
    yield columns.candidate(where, fields, options, find=lambda name: find(ROOT.sub("", name)), split=split)
