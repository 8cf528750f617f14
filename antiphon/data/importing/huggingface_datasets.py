"""Datasets of Hugging Face on disk: audio folders, Parquet files, and folders of `save_to_disk`.

audiofolder: metadata.csv or metadata.jsonl with a column file_name, one file or one in the folder of each
split. hf_dataset: .parquet or .arrow files whose audio column holds encoded files or paths; the split is in
the file's name (train-00000-of-00002.parquet) or is the folder's name. pyarrow reads them; the package
`datasets` is not needed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from antiphon.data.importing import candidates
from antiphon.data.importing.arrow_files import ArrowTable, Row, open_table
from antiphon.data.importing.candidates import (
    Candidate,
    EncodedAudio,
    ImportOptions,
    RefusedError,
    Skipped,
)
from antiphon.data.importing.columns import SPLITS, Columns, audio_finder
from antiphon.data.importing.csv_tables import convert_rows, first_line, header, rows_of
from antiphon.data.importing.formats import FORMATS

METADATA = ("metadata.csv", "metadata.jsonl")
FOLDERS = ("", "*/", "*/*/")
SHARD = re.compile(r"(?P<split>.+?)-\d+(-of-\d+)?(-[0-9a-f]+)?")  # train-00000-of-00002


@FORMATS.named("audiofolder")
class AudioFolder:
    """An `Importer` of audio folders with metadata."""

    looks_for = "a Hugging Face audio folder, metadata.csv or metadata.jsonl with file_name"

    def recognises(self, source: Path) -> bool:
        return bool(_metadata(source))

    def read(self, source: Path, options: ImportOptions) -> Iterator[Candidate | Skipped]:
        for path in candidates.inside(_metadata(source), source, options):
            if isinstance(path, Skipped):
                yield path
                continue
            split = path.parent.name if path.parent.name.lower() in SPLITS else None
            names = header(path) if path.suffix == ".csv" else list(candidates.first_row(path))
            columns = Columns.choose(names, options, f"{path.parent.name}/{path.name}")
            find = audio_finder(path, source, options)
            rows = rows_of(path) if path.suffix == ".csv" else candidates.json_rows(path)
            yield from convert_rows(rows, columns, options, find, split)


def _metadata(source: Path) -> list[Path]:
    if source.is_file():
        paths = [source] if source.name in METADATA else []
    else:
        paths = [path for folder in FOLDERS for name in METADATA for path in source.glob(folder + name)]
    names = {
        path: first_line(path) if path.suffix == ".csv" else candidates.first_row(path) for path in paths
    }
    return sorted(path for path in paths if "file_name" in names[path])


@FORMATS.named("hf_dataset")
class HuggingFaceDataset:
    """An `Importer` of Parquet files and of folders that `save_to_disk` has written."""

    looks_for = "a Hugging Face dataset, .parquet files or the .arrow files of save_to_disk"

    def recognises(self, source: Path) -> bool:
        return bool(_shards(source))

    def read(self, source: Path, options: ImportOptions) -> Iterator[Candidate | Skipped]:
        for path in candidates.inside(_shards(source), source, options):
            if isinstance(path, Skipped):
                yield path
                continue
            try:
                table = open_table(path)
            except OSError as error:
                yield Skipped("", path.name, f"damaged file: it cannot be read ({error})")
                continue
            columns = Columns.choose(table.names, options, path.name)
            find = audio_finder(path, source, options)
            yield from _read_shard(table, columns, find, _split(path), options)


def _shards(source: Path) -> list[Path]:
    if source.is_file():
        return [source] if source.suffix in (".parquet", ".arrow") else []
    paths = [path for folder in FOLDERS for path in source.glob(folder + "*.parquet")]
    saved = [path for folder in FOLDERS[:2] for path in source.glob(folder + "*.arrow")]
    return sorted(paths + [path for path in saved if (path.parent / "state.json").is_file()])


def _split(path: Path) -> str | None:
    """Return the split that the name of a file or of its folder tells.

    >>> _split(Path("data/train-00000-of-00002.parquet")), _split(Path("test/data-00000-of-00001.arrow"))
    ('train', 'test')
    """
    shard = SHARD.fullmatch(path.stem)
    names = (shard["split"] if shard else path.stem, path.parent.name)
    return next((name for name in names if name.lower() in SPLITS), None)


def _read_shard(
    table: ArrowTable,
    columns: Columns,
    find: Callable[[str], EncodedAudio | str],
    split: str | None,
    options: ImportOptions,
) -> Iterator[Candidate | Skipped]:
    column = columns.by_part["audio"]

    def make(where: str, row: Row) -> Iterator[Candidate]:
        if row.audio is None and not row.path:
            raise RefusedError("no audio: the row has neither bytes nor a path")
        # A row without an id and a path is named after its place.
        fields = {**row.fields, column: row.path or row.place}
        audio = row.audio
        yield columns.candidate(
            where, fields, options, find=find if audio is None else lambda path: audio, split=split
        )

    def name_of(row: Row) -> str:
        return str(row.fields.get(columns.by_part.get("id", "")) or row.path or "")

    return candidates.convert_rows(table.rows(column), make, name_of)
