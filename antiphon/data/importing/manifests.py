"""Manifests of JSON lines: antiphon's own, beside tars or folders of audio, and NeMo's.

antiphon: the fields id, path, split, speaker, session (default: the speaker), duration, text, and tar, the
archive that `path` is in (default: `audio.tar` if there is one beside the manifest, else `path` is a plain
file). Tars must not be compressed: members are read in place and never unpacked.

NeMo: the fields audio_filepath, duration, text and, for a part of a file, offset. There are no ids and no
fixed name for the speaker: `client_key` names the field. An utterance is named after its file, followed by
its offset in milliseconds if it has one. Lhotse is not used, because all other fields of a line are kept.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from antiphon.data.importing import candidates
from antiphon.data.importing.candidates import Blob, Candidate, ImportOptions, RefusedError, Skipped
from antiphon.data.importing.formats import FORMATS
from antiphon.records.schema import finite


@FORMATS.named("manifest")
class Manifest:
    """An `Importer` of antiphon's own manifests."""

    looks_for = "a manifest.jsonl (the file or its folder) with the fields id, path, speaker, text"

    def recognises(self, source: Path) -> bool:
        return {"id", "path"} <= candidates.first_row(_manifest(source)).keys()

    def read(self, source: Path, options: ImportOptions) -> Iterator[Candidate | Skipped]:
        manifest = _manifest(source)
        audio = _Audio(manifest.parent, options)

        def make(where: str, row: Mapping[str, Any]) -> Candidate:
            return Candidate(
                **candidates.common_fields(row, options, candidates.take_text(row, "id"), "path", "duration"),
                audio=audio.find(candidates.take_text(row, "path"), row.get("tar")),
                where=where,
                duration=candidates.take_number(row, "duration"),
            )

        yield from candidates.read_candidates(manifest, options.client_key, make, _name)


def _manifest(source: Path) -> Path:
    return source / "manifest.jsonl" if source.is_dir() else source


class _Audio:
    """Finds audio in the folder of a manifest. Each tar is indexed once, when it is first needed."""

    def __init__(self, folder: Path, options: ImportOptions) -> None:
        self.folder, self.options = folder, options
        self.default_tar = "audio.tar" if (folder / "audio.tar").is_file() else None
        self.tars: dict[str, tuple[dict[str, Blob | str], str]] = {}

    def find(self, path: str, tar: object) -> Blob | str:
        """Return the location of a file, or why it cannot be used."""
        tar = self.default_tar if tar is None else tar
        if tar is None:
            return candidates.find_audio(path, self.folder, self.options)
        if not isinstance(tar, str):
            return "no field 'tar': it is not text"
        if tar not in self.tars:
            try:
                self.tars[tar] = _index(candidates.locate(tar, self.folder, self.options))
            except RefusedError as reason:
                return str(reason)
        if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
            return f"path outside the source folder: {path} (in {tar})"
        members, damage = self.tars[tar]
        if path not in members:
            return f"missing file: {path} is not in {tar}{damage}"
        member = members[path]
        return f"bad tar member: {path} {member}" if isinstance(member, str) else member


def _index(path: Path) -> tuple[dict[str, Blob | str], str]:
    """Return the location of each member of a tar, or why it is refused, and any damage of the tar."""
    members: dict[str, Blob | str] = {}
    try:
        with tarfile.open(path, "r:") as tar:
            for member in tar:
                if not member.isreg() or member.issparse():
                    members[member.name] = "is a link, a folder or a device, not a file"
                elif member.offset_data + member.size > path.stat().st_size:
                    members[member.name] = "is cut off at the end of the tar"
                else:
                    members[member.name] = Blob(path, member.offset_data, member.size)
    except (tarfile.TarError, OSError, EOFError, ValueError) as error:
        return members, f" ({path.name} is damaged or compressed: {error})"
    return members, ""


@FORMATS.named("nemo")
class NemoManifest:
    """An `Importer` of NeMo manifests."""

    looks_for = "a NeMo manifest, a .json or .jsonl file of lines with audio_filepath (or a folder with one)"

    def recognises(self, source: Path) -> bool:
        return bool(_nemo_manifests(source))

    def read(self, source: Path, options: ImportOptions) -> Iterator[Candidate | Skipped]:
        manifests = _nemo_manifests(source)
        if len(manifests) > 1:
            names = ", ".join(path.name for path in manifests)
            raise ValueError(f"{source} holds several NeMo manifests: import one of {names}")
        (manifest,) = manifests

        def make(where: str, row: Mapping[str, Any]) -> Candidate:
            offset, duration = candidates.take_number(row, "offset"), candidates.take_number(row, "duration")
            is_part = offset is not None and duration is not None
            return Candidate(
                **candidates.common_fields(row, options, _name(row), "audio_filepath", "duration", "offset"),
                audio=candidates.find_audio(
                    candidates.take_text(row, "audio_filepath"), manifest.parent, options
                ),
                where=where,
                start=offset or 0.0,
                stop=(offset or 0.0) + (duration or 0.0) if is_part else None,
                duration=None if is_part else duration,
            )

        yield from candidates.read_candidates(manifest, options.client_key, make, _name)


def _nemo_manifests(source: Path) -> list[Path]:
    paths = [source] if source.is_file() else [*source.glob("*.json"), *source.glob("*.jsonl")]
    return sorted(path for path in paths if path.is_file() and "audio_filepath" in candidates.first_row(path))


def _name(row: Mapping[str, Any]) -> str:
    """Return the id, or one made of NeMo's path and offset.

    >>> _name({"audio_filepath": "wav/ann/01.wav", "offset": 1.5})
    'wav-ann-01-1500'
    """
    if row.get("id") is not None:
        return str(row["id"])
    name = candidates.path_id(str(row.get("audio_filepath", "")))
    try:
        return name if row.get("offset") is None else f"{name}-{1000 * finite(row['offset']):.0f}"
    except ValueError:
        return name
