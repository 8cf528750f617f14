"""The journal: one JSON object per line. Lines are only added; when a run resumes, the file is cut back.

Lines of clock.jsonl have their own checksum, and that of journal.jsonl up to the same round. So the bytes of
the journal are those that the seed and the data decide, and a line that was changed later is found.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from antiphon.records.files import (
    Damaged,
    NotWritten,
    make_folder,
    read_whole,
    regular,
    saving,
    sync,
    with_checksum,
    without_checksum,
)
from antiphon.records.reading import fields_of, parse_line
from antiphon.records.schema import Amount, Count

SO_FAR = "journal_sha256"  # key of a line of clock.jsonl: the checksum of the journal up to the same line
ADVICE = "Restore the file"
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RoundFields:
    """The fields of an entry of journal.jsonl or clock.jsonl that are read again; it may have others."""

    round: Count
    cohort: Sequence[str] = ()
    clients: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)
    failures: Mapping[str, str] = field(default_factory=dict)
    valid: Mapping[str, float | None] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(default_factory=dict)
    loss: float | None = None
    bytes_down: Count = 0
    bytes_up: Count = 0
    simulated_seconds: Amount | None = None
    simulated_time: Amount | None = None
    simulated_joules: Amount | None = None
    seconds: Amount | None = None
    rss_mib: Amount | None = None
    gpu_mib: Amount | None = None


class Journal:
    """Appends entries to a JSON-lines file. They survive a killed process, and after `sync` a crash.

    A last line without a newline is incomplete: it is removed when the file is opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        make_folder(path.parent)
        with saving(path):
            path.touch()
            sync(path.parent)
        self._so_far = hashlib.sha256()
        self.truncate(read_whole(path).rfind(b"\n") + 1)

    @property
    def size(self) -> int:
        """Bytes written so far. A checkpoint stores it, and `truncate` gets it on resume."""
        return self.path.stat().st_size

    def append(self, entry: Mapping[str, Any]) -> None:
        """Write one line, keys in the order given."""
        try:
            line = json.dumps(entry, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        except ValueError as error:
            raise ValueError(
                f"{self.path}: entry {entry.get('round', '?')} cannot be written ({error}); "
                "write None for a number that is not finite"
            ) from None
        data, size = line.encode() + b"\n", self.size
        try:
            with saving(self.path, "Finished rounds are saved. "), self.path.open("ab") as file:
                file.write(data)
        except NotWritten:
            os.truncate(self.path, size)  # no part of a line stays
            raise
        self._so_far.update(data)

    @property
    def digest(self) -> str:
        """The SHA-256 checksum of all entries."""
        return self._so_far.hexdigest()

    def sync(self) -> None:
        """Wait until all entries are on disk. This is slow: only a checkpoint needs it."""
        with saving(self.path, "Finished rounds are saved. "):
            sync(self.path)

    def check_end(self, size: int) -> None:
        """Refuse a number of bytes that the file does not have, or after which no line ends."""
        if size > self.size:
            raise Damaged(f"{self.path} has {self.size} bytes but {size} were recorded: it was cut short")
        with open(self.path, "rb", opener=regular) as file:
            file.seek(max(0, size - 1))
            if size and file.read(1) != b"\n":
                raise Damaged(f"{self.path}: byte {size} is not the end of a line; it was edited")

    def truncate(self, size: int) -> None:
        """Cut the file back to its first `size` bytes, which must end a line."""
        self.check_end(size)
        with self.path.open("r+b") as file:
            file.truncate(size)
            file.seek(0)
            self._so_far = hashlib.file_digest(file, "sha256")
        self.sync()


def read(
    path: Path, note: Callable[[str], None] = log.warning, size: int | None = None
) -> list[dict[str, Any]]:
    """Return all complete entries, or those of the first `size` bytes.

    `note` is called for an incomplete last line; other damage is an error.
    """
    entries: list[dict[str, Any]] = []
    with open(path, "rb", opener=regular) as file:
        for number, line in enumerate(io.BytesIO(file.read(size)), start=1):
            if not line.endswith(b"\n"):
                note(f"{path.name}: line {number} is unfinished (stopped while writing it); left out")
                break
            entries.append(parse_entry(line, f"{path}: line {number}"))
    return entries


def parse_entry(line: str | bytes, where: str) -> dict[str, Any]:
    """Return the entry on a line; `Damaged` if a field that is read again is not as it was written."""
    entry = without_checksum(parse_line(line, where, ADVICE), where, ADVICE)
    fields_of(RoundFields, entry, where, ADVICE)
    return entry


def clock_entry(entry: Mapping[str, Any], journal: Journal) -> dict[str, Any]:
    """Return a line of the clock with checksums of itself and of the journal, which has its line already."""
    return with_checksum({**entry, SO_FAR: journal.digest})


def check_journal(path: Path, clock: Sequence[Mapping[str, Any]]) -> None:
    """Compare a journal with the checksums that the lines of the clock have; `Damaged` names the line."""
    so_far = hashlib.sha256()
    with open(path, "rb", opener=regular) as file:
        for number, entry in enumerate(clock, start=1):
            so_far.update(file.readline())
            if SO_FAR in entry and entry[SO_FAR] != so_far.hexdigest():
                raise Damaged(
                    f"{path}: line {number} is damaged, missing or was edited: its checksum in clock.jsonl "
                    f"does not match. {ADVICE}"
                )
