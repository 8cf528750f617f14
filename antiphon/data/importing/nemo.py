"""NeMo manifests: JSON lines with audio_filepath, duration, text and, for a part of a file, offset.

They have no ids and no fixed name for the speaker: `client_key` names the field. An utterance is named after
its file, followed by its offset in milliseconds if it has one. Lhotse is not used here, because all other
fields of a line are kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from antiphon.data.importing import candidates
from antiphon.data.importing.candidates import Candidate, ImportOptions, Skipped, take_number, take_text
from antiphon.data.importing.formats import FORMATS


@FORMATS.named("nemo")
class NemoManifest:
    """An `Importer` of NeMo manifests."""

    looks_for = "a NeMo manifest, a .json or .jsonl file of lines with audio_filepath (or a folder with one)"

    def recognises(self, source: Path) -> bool:
        return bool(_manifests(source))

    def read(self, source: Path, options: ImportOptions) -> Iterator[Candidate | Skipped]:
        manifests = _manifests(source)
        if len(manifests) > 1:
            names = ", ".join(path.name for path in manifests)
            raise ValueError(f"{source} holds several NeMo manifests: import one of {names}")
        (manifest,) = manifests

        def make(where: str, row: Mapping[str, Any]) -> Candidate:
            offset, duration = take_number(row, "offset"), take_number(row, "duration")
            is_part = offset is not None and duration is not None
            return Candidate(
                **candidates.common_fields(row, options, _name(row), "audio_filepath", "duration", "offset"),
                audio=candidates.find_audio(take_text(row, "audio_filepath"), manifest.parent, options),
                where=where,
                start=offset or 0.0,
                stop=(offset or 0.0) + (duration or 0.0) if is_part else None,
                duration=None if is_part else duration,
            )

        yield from candidates.read_candidates(manifest, options.client_key, make, _name)


def _manifests(source: Path) -> list[Path]:
    paths = [source] if source.is_file() else [*source.glob("*.json"), *source.glob("*.jsonl")]
    return sorted(path for path in paths if path.is_file() and "audio_filepath" in candidates.first_row(path))


def _name(row: Mapping[str, Any]) -> str:
    """Return the id, or the path without root and suffix, so that equal file names in two folders differ.

    >>> _name({"audio_filepath": "wav/ann/01.wav", "offset": 1.5})
    'wav-ann-01-1500'
    """
    if row.get("id") is not None:
        return str(row["id"])
    path = PurePosixPath(str(row.get("audio_filepath", "")))
    parts = [part for part in path.with_suffix("").parts if part not in ("/", "..")] if path.name else []
    offset = row.get("offset")
    return "-".join([*parts, *([str(round(offset * 1000))] if isinstance(offset, int | float) else [])])
