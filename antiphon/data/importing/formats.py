"""Formats that can be imported, by name: one module each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from antiphon.data.importing.candidates import Candidate, ImportOptions, Skipped
from antiphon.registry import Registry, unknown_name


class Importer(Protocol):
    """Reads a source in one format. Built without arguments.

    An importer with the attribute `is_general = True` is used only if no other one recognises the source.
    """

    @property
    def looks_for(self) -> str:
        """A description of a source in this format, for people to read."""
        ...

    def recognises(self, source: Path) -> bool:
        """Return whether a file or folder is in this format."""
        ...

    def read(self, source: Path, options: ImportOptions) -> Iterator[Candidate | Skipped]:
        """Describe every utterance, or why it is left out. Open no audio, run no command, fetch no URL."""
        ...


# A new file in this package that registers an importer is found without any other edit.
FORMATS = Registry(
    "antiphon.importers",
    ("looks_for", "recognises", "read"),
    homes=["antiphon.data.importing"],
    default="manifest",
    is_config=False,
)


def choose_format(source: Path, name: str | None) -> str:
    """Return the name of a source's format: the requested one, or the only one that recognises it."""
    if not source.exists():
        raise ValueError(f"nothing to import: {source} does not exist")
    if not (source.is_file() or source.is_dir()):
        raise ValueError(f"{source} is a pipe or a device: write its contents to a file first")
    if name is not None and name in FORMATS:
        importer: Importer = FORMATS[name]()
        if not importer.recognises(source):
            raise ValueError(f"{source} is not {name!r}, which is {importer.looks_for}")
        return name
    if name is not None:
        raise unknown_name(name, FORMATS, "format")
    importers: dict[str, Importer] = {known: FORMATS[known]() for known in FORMATS}
    names = [known for known, importer in importers.items() if importer.recognises(source)]
    specific = [known for known in names if not getattr(importers[known], "is_general", False)]
    names = specific or names
    if not names:
        looked_for = "".join(f"\n  {known:<12} {importer.looks_for}" for known, importer in importers.items())
        raise ValueError(f"the format of {source} is not known{_oddities(source)}. Looked for:{looked_for}")
    if len(names) > 1:
        raise ValueError(f"{source} could be any of {', '.join(names)}: say which format to read it as")
    return names[0]


def _oddities(source: Path) -> str:
    """Return a remark on what a folder holds in place of files."""
    paths = source.iterdir() if source.is_dir() else ()
    odd = sorted(path.name for path in paths if not path.is_file() and not path.is_dir())
    return f" (not read, because they are no regular files: {', '.join(odd)})" if odd else ""
