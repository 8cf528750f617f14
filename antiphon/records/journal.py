"""The journal: one JSON object a line, only ever added to, cut back exactly when a run resumes."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)


class Journal:
    """Appends entries to a JSON-lines file; they outlive a killed process, and after `sync` a machine.

    A last line without its newline was never finished: it is cut off when the file is opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        self.truncate(path.read_bytes().rfind(b"\n") + 1)

    @property
    def size(self) -> int:
        """Bytes written so far: keep it in a checkpoint and hand it to `truncate` on resume."""
        return self.path.stat().st_size

    def append(self, entry: Mapping[str, Any]) -> None:
        """Writes one line, keys in the order given."""
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
        """Waits until all entries are on disk. Before a checkpoint counts on them, and no more often: it is
        the most costly part of a short round."""
        with self.path.open("rb") as file:
            os.fsync(file.fileno())

    def truncate(self, size: int) -> None:
        """Cuts the file back to its first `size` bytes, which must end a line."""
        if size > self.size:
            raise ValueError(
                f"{self.path} holds {self.size} bytes but {size} were recorded: it was cut short"
            )
        with self.path.open("r+b") as file:
            if size:
                file.seek(size - 1)
                if file.read(1) != b"\n":
                    raise ValueError(f"{self.path}: byte {size} is not the end of a line; it was edited")
            file.truncate(size)
            file.flush()
            os.fsync(file.fileno())


def read(path: Path, note: Callable[[str], None] = log.warning) -> list[dict[str, Any]]:
    """All finished entries. A torn last line is left out and `note` is told; other damage is an error."""
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
