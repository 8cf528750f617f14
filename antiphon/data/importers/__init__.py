"""Formats that can be imported: one module each, and one line in `FORMATS`.

A module has `LOOKS_FOR` (for people), `recognises(source)` and `read(source, options)`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

from antiphon.data.candidates import Candidate, ImportOptions, Skipped
from antiphon.data.importers import kaldi, lhotse_manifests, librispeech, manifest, nemo


class Importer(Protocol):
    """What a module of this package offers."""

    LOOKS_FOR: str

    def recognises(self, source: Path) -> bool: ...
    def read(self, source: Path, options: ImportOptions) -> Iterator[Candidate | Skipped]: ...


FORMATS: Mapping[str, Importer] = {
    "manifest": manifest,
    "librispeech": librispeech,
    "kaldi": kaldi,
    "lhotse": lhotse_manifests,
    "nemo": nemo,
}


def choose_format(source: Path, name: str | None) -> str:
    """The name of the format to read a source with: the one asked for, or the only one that recognises it."""
    if not source.exists():
        raise ValueError(f"nothing to import: {source} does not exist")
    looked_for = "".join(f"\n  {known:<12} {importer.LOOKS_FOR}" for known, importer in FORMATS.items())
    if name is not None:
        if name not in FORMATS:
            near = difflib.get_close_matches(name, FORMATS, n=1)
            raise ValueError(
                f"unknown format {name!r}"
                + (f", did you mean {near[0]!r}?" if near else "")
                + f" Formats:{looked_for}"
            )
        if not FORMATS[name].recognises(source):
            raise ValueError(f"{source} is not {name!r}, which is {FORMATS[name].LOOKS_FOR}")
        return name
    names = [known for known, importer in FORMATS.items() if importer.recognises(source)]
    if not names:
        raise ValueError(f"the format of {source} is not known. Looked for:{looked_for}")
    if len(names) > 1:
        raise ValueError(f"{source} could be any of {', '.join(names)}: say which format to read it as")
    return names[0]
