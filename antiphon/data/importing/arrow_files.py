"""Tables in Parquet and Arrow files, read by pyarrow: columns at once, audio when it is opened.

An audio column holds paths, or encoded files with their paths (`{"bytes": ..., "path": ...}`), as the package
`datasets` writes them. Audio in Arrow files is read where it lies. Row groups of Parquet files are packed, so
each is unpacked once, at the first use, to a temporary file (in the folder TMPDIR) that has no name and
vanishes with the process.
"""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import IO, Any, BinaryIO, Protocol

import numpy as np

from antiphon.data.audio import BadAudioError
from antiphon.data.importing.arrow_trial import survives
from antiphon.data.importing.candidates import Blob, EncodedAudio, Skipped
from antiphon.records.files import regular

BYTES, PATH = "bytes", "path"


@dataclass(frozen=True)
class Row:
    """One row: simple values by column, and the audio, or its path, or both."""

    place: str
    fields: dict[str, Any]
    path: str | None
    audio: EncodedAudio | None


class ArrowTable(Protocol):
    """A table in one file."""

    path: Path
    names: list[str]

    def rows(self, audio: str) -> Iterator[tuple[str, Row] | Skipped]:
        """Yield the rows, each with its location. `audio` is the column of the audio, which is not opened."""
        ...


def open_table(path: Path) -> ArrowTable:
    """Open a file without reading its rows; OSError if it is damaged."""
    try:
        import pyarrow
    except ImportError:
        raise ValueError(f"{path.name} needs pyarrow: pip install 'antiphon[parquet]'") from None
    with open(path, "rb", opener=regular):
        pass
    if not survives(path):
        raise OSError("pyarrow cannot read it, and ends the process")
    try:
        table = ParquetTable(path) if path.suffix == ".parquet" else ArrowFile(path)
    except (pyarrow.ArrowException, ValueError) as error:
        raise OSError(first_line_of(error)) from None
    if len(set(table.names)) < len(table.names):
        raise OSError("two columns have the same name")
    return table


def first_line_of(error: Exception) -> str:
    """Return a message of pyarrow without the traces that follow it."""
    return str(error).partition("\n")[0]


@dataclass(frozen=True)
class AudioColumn:
    """The form of an audio column: paths, bytes, or a struct of both."""

    name: str
    is_struct: bool
    has_bytes: bool
    has_path: bool

    @classmethod
    def of(cls, schema: Any, name: str) -> AudioColumn:
        from pyarrow import null, types

        kind = schema.field(name).type
        is_struct = types.is_struct(kind)
        fields = _parts_of(kind) or {BYTES: kind, PATH: kind}
        has_bytes = any(test(fields.get(BYTES, null())) for test in (types.is_binary, types.is_large_binary))
        has_path = any(test(fields.get(PATH, null())) for test in (types.is_string, types.is_large_string))
        return cls(name, is_struct, has_bytes, has_path)

    def column_of(self, part: str) -> str:
        return f"{self.name}.{part}" if self.is_struct else self.name

    def part(self, column: Any, part: str) -> Any:
        """Return the bytes or the paths of a column."""
        return column.field(part) if self.is_struct else column

    def path_in(self, value: Any) -> str | None:
        """Return the path in a value of the column, if it has one."""
        path = value.get(PATH) if isinstance(value, dict) else value
        return path if isinstance(path, str) else None


def _parts_of(kind: Any) -> dict[str, Any]:
    """Return the types of the parts of a struct by name; nothing of another type."""
    from pyarrow import types

    parts = [kind.field(number) for number in range(kind.num_fields)] if types.is_struct(kind) else []
    return {part.name: part.type for part in parts}


def _names_of(schema: Any) -> list[str]:
    """Return the names of the columns; ValueError if one of them or of their parts is not UTF-8 text."""
    for column in schema:
        _parts_of(column.type)
    return list(schema.names)


def _simple_columns(schema: Any, audio: str) -> list[str]:
    """Return the names of the columns with text or numbers, without the audio."""
    from pyarrow import types

    simple = (types.is_string, types.is_large_string, types.is_integer, types.is_floating, types.is_boolean)
    return [one.name for one in schema if one.name != audio and any(test(one.type) for test in simple)]


class ParquetTable:
    """A Parquet file."""

    def __init__(self, path: Path) -> None:
        from pyarrow import parquet

        self.path = path
        self.file = parquet.ParquetFile(path)
        self.names = _names_of(self.file.schema_arrow)

    def rows(self, audio: str) -> Iterator[tuple[str, Row] | Skipped]:
        import pyarrow

        column = AudioColumn.of(self.file.schema_arrow, audio)
        wanted = _simple_columns(self.file.schema_arrow, audio)
        wanted += [column.column_of(PATH)] if column.has_path else []
        groups = RowGroups(self.path, column)
        for group in range(self.file.num_row_groups):
            try:
                has_bytes = column.has_bytes and not self._is_empty(group, column.column_of(BYTES))
                rows = self.file.read_row_group(group, columns=wanted).to_pylist()
            except (pyarrow.ArrowException, OSError, ValueError) as error:
                place, why = f"{self.path.name}:{group}", first_line_of(error)
                yield Skipped("", place, f"damaged file: row group {group} cannot be read ({why})")
                continue
            for number, fields in enumerate(rows):
                path = column.path_in(fields.pop(audio, None))
                place = f"{self.path.stem}-{group}-{number}"
                blob = PackedAudio(groups, group, number) if has_bytes else None
                yield f"{self.path.name}:{group}:{number}", Row(place, fields, path, blob)

    def _is_empty(self, group: int, name: str) -> bool:
        """Return whether a column of a row group holds nothing: then the audio is in files."""
        about = self.file.metadata.row_group(group)
        parts = [about.column(number) for number in range(about.num_columns)]
        (part,) = (part for part in parts if part.path_in_schema == name)
        return part.statistics is not None and part.statistics.null_count == about.num_rows


@dataclass(frozen=True)
class PackedAudio:
    """The audio of one row of a row group."""

    groups: RowGroups
    group: int
    number: int

    def open(self) -> BinaryIO:
        return io.BytesIO(self.groups.read(self.group, self.number))


@dataclass
class RowGroups:
    """The audio of a Parquet file. A row group is unpacked once, whatever the order of its rows."""

    path: Path
    column: AudioColumn
    spool: IO[bytes] | None = None
    places: dict[int, list[tuple[int, int]]] = field(default_factory=dict)  # group -> offsets and sizes
    lock: Lock = field(default_factory=Lock)

    def read(self, group: int, number: int) -> bytes:
        with self.lock:
            if group not in self.places:
                self.places[group] = self._unpack(group)
            assert self.spool is not None
            offset, size = self.places[group][number]
            if size == 0:
                raise BadAudioError("no audio: the row has no bytes")
            return os.pread(self.spool.fileno(), size, offset)

    def _unpack(self, group: int) -> list[tuple[int, int]]:
        import pyarrow
        from pyarrow import parquet

        name = self.column.column_of(BYTES)
        self.spool = self.spool or tempfile.TemporaryFile()  # noqa: SIM115
        try:
            column = parquet.ParquetFile(self.path).read_row_group(group, columns=[name]).column(0)
        except (pyarrow.ArrowException, OSError) as error:
            why = first_line_of(error)
            raise BadAudioError(f"unreadable audio: row group {group} is damaged ({why})") from None
        places = []
        for chunk in column.chunks:
            for item in self.column.part(chunk, BYTES):
                data = item.as_buffer()
                places.append((self.spool.tell(), 0 if data is None else data.size))
                self.spool.write(data or b"")
        self.spool.flush()
        return places


class ArrowFile:
    """An Arrow file: a stream (`save_to_disk`), or one with a footer. Audio is read where it lies."""

    def __init__(self, path: Path) -> None:
        import pyarrow

        self.path = path
        self.buffer = pyarrow.memory_map(str(path)).read_buffer()
        try:
            self.reader = pyarrow.ipc.open_stream(self.buffer)
        except pyarrow.ArrowInvalid:
            self.reader = pyarrow.ipc.open_file(self.buffer)
        self.names = _names_of(self.reader.schema)

    def rows(self, audio: str) -> Iterator[tuple[str, Row] | Skipped]:
        import pyarrow

        column = AudioColumn.of(self.reader.schema, audio)
        wanted = _simple_columns(self.reader.schema, audio)
        number = 0
        try:
            for batch in self._batches():
                batch.validate(full=True)
                values = batch.column(audio)
                paths = column.part(values, PATH).to_pylist() if column.has_path else [None] * len(values)
                blobs = self._blobs(column.part(values, BYTES)) if column.has_bytes else [None] * len(values)
                rows = zip(batch.select(wanted).to_pylist(), paths, blobs, strict=True)
                for fields, path, blob in rows:
                    yield f"{self.path.name}:{number}", Row(f"{self.path.stem}-{number}", fields, path, blob)
                    number += 1
        except (pyarrow.ArrowException, OSError, ValueError) as error:
            why = first_line_of(error)
            yield Skipped("", self.path.name, f"damaged file: the rest of it cannot be read ({why})")

    def _batches(self) -> Iterator[Any]:
        if hasattr(self.reader, "get_batch"):
            return (self.reader.get_batch(number) for number in range(self.reader.num_record_batches))
        return iter(self.reader)

    def _blobs(self, array: Any) -> list[Blob | None]:
        """Return the places in the file of the values of a binary array."""
        from pyarrow import types

        _, offsets, data = array.buffers()
        if data is None or offsets is None:  # all values are null
            return [None] * len(array)
        start = data.address - self.buffer.address
        if not 0 <= start <= self.buffer.size - data.size:
            raise OSError("it is compressed: save it without compression")
        kind = np.int64 if types.is_large_binary(array.type) else np.int32
        ends = np.frombuffer(offsets, kind)[array.offset : array.offset + len(array) + 1].tolist()
        places = zip(array.is_null().to_pylist(), ends[:-1], ends[1:], strict=True)
        return [
            None if null else Blob(self.path, start + first, last - first) for null, first, last in places
        ]
