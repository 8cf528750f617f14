"""The journal: one JSON object per line. Lines are only added; when a run resumes, the file is cut back."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from antiphon.records.files import sync

log = logging.getLogger(__name__)


class Journal:
    """Appends entries to a JSON-lines file. They survive a killed process, and after `sync` a crash.

    A last line without a newline is incomplete: it is removed when the file is opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        self.truncate(path.read_bytes().rfind(b"\n") + 1)

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
        with self.path.open("ab") as file:
            file.write(line.encode() + b"\n")

    def sync(self) -> None:
        """Wait until all entries are on disk. This is slow: only a checkpoint needs it."""
        sync(self.path)

    def truncate(self, size: int) -> None:
        """Cut the file back to its first `size` bytes, which must end a line."""
        if size > self.size:
            raise ValueError(f"{self.path} has {self.size} bytes but {size} were recorded: it was cut short")
        with self.path.open("r+b") as file:
            if size:
                file.seek(size - 1)
                if file.read(1) != b"\n":
                    raise ValueError(f"{self.path}: byte {size} is not the end of a line; it was edited")
            file.truncate(size)
        self.sync()


def read(path: Path, note: Callable[[str], None] = log.warning) -> list[dict[str, Any]]:
    """Return all complete entries. `note` is called for an incomplete last line; other damage is an error."""
    entries: list[dict[str, Any]] = []
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                note(f"{path.name}: line {number} is unfinished (stopped while writing it); left out")
                break
            try:
                entry = json.loads(line)
            except ValueError as error:
                raise ValueError(
                    f"{path}: line {number} is not JSON ({error}); the file is damaged"
                ) from None
            if not isinstance(entry, dict):
                raise ValueError(f"{path}: line {number} is not a JSON object; the file is damaged")
            entries.append(entry)
    return entries
