"""Files that list the utterances to import: a line is an id, a tab and a split."""

from __future__ import annotations

from pathlib import Path

from antiphon.data.importing.candidates import Skipped
from antiphon.data.transcripts import numbered_lines

HEADER = ("id", "split")


class Selection:
    """The splits of the utterances to take, by id. It remembers which ids were met in the source."""

    def __init__(self, path: str | Path) -> None:
        path = Path(path)
        if not path.is_file():
            raise ValueError(f"--select: there is no file {path}")
        self.path = path
        self.entries: dict[str, tuple[str, str]] = {}  # id -> split, location
        for number, (where, line) in enumerate(numbered_lines(path)):
            fields = tuple(field.strip() for field in line.split("\t"))
            if number == 0 and fields == HEADER:
                continue
            if len(fields) != 2 or not all(fields):
                raise ValueError(f"{where} is not an id, a tab and a split")
            name, split = fields
            if name in self.entries:
                raise ValueError(f"{where} lists {name} again: it is already at {self.entries[name][1]}")
            self.entries[name] = (split, where)
        if not self.entries:
            raise ValueError(f"{path} lists no utterances: each line is an id, a tab and a split")
        self.unmet = set(self.entries)

    def split_of(self, name: str) -> str | None:
        """Return the split of an utterance of the source, or None if it is not listed."""
        self.unmet.discard(name)
        return self.entries[name][0] if name in self.entries else None

    def missing(self) -> list[Skipped]:
        """Return the listed utterances that the source does not have."""
        reason = "not in the source: the selection lists it, but the source does not have it"
        return [Skipped(id, where, reason) for id, (_, where) in self.entries.items() if id in self.unmet]
