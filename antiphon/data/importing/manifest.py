"""antiphon's own manifest: JSON lines beside tars or folders of audio.

Fields: id, path, split, speaker, session (default: the speaker), duration, text, and tar, the archive that
`path` is in (default: `audio.tar` if there is one beside the manifest, else `path` is a plain file). Other
fields are kept. Tars must not be compressed: members are read in place and never unpacked.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from antiphon.data.importing.candidates import (
    Blob,
    Candidate,
    ImportOptions,
    RefusedError,
    Skipped,
    candidates_of,
    common_fields,
    first_row,
    locate,
    take_number,
    take_text,
)
from antiphon.data.importing.formats import FORMATS


@FORMATS.named("manifest")
class Manifest:
    """An `Importer` of antiphon's own manifests."""

    looks_for = "a manifest.jsonl (the file or its folder) with the fields id, path, speaker, text"

    def recognises(self, source: Path) -> bool:
        return {"id", "path"} <= first_row(_manifest(source)).keys()

    def read(self, source: Path, options: ImportOptions) -> Iterator[Candidate | Skipped]:
        manifest = _manifest(source)
        audio = _Audio(manifest.parent, options)
        yield from candidates_of(
            manifest,
            options.client_key,
            make=lambda row, where: _candidate(row, where, audio, options),
            name=lambda row: str(row.get("id", "")),
        )


def _manifest(source: Path) -> Path:
    return source / "manifest.jsonl" if source.is_dir() else source


def _candidate(row: Mapping[str, Any], where: str, audio: _Audio, options: ImportOptions) -> Candidate:
    return Candidate(
        **common_fields(row, options, lambda row: take_text(row, "id"), "path", "duration"),
        audio=audio.find(take_text(row, "path"), row.get("tar")),
        where=where,
        duration=take_number(row, "duration"),
    )


@dataclass(frozen=True)
class _Tar:
    """The places of the members of a tar, and what is wrong with the tar (empty: nothing)."""

    members: Mapping[str, Blob | str]
    damage: str

    @classmethod
    def index(cls, path: Path) -> _Tar:
        members: dict[str, Blob | str] = {}
        damage = ""
        try:
            with tarfile.open(path, "r:") as tar:
                for member in tar:
                    members[member.name] = _blob(path, member)
        except (tarfile.TarError, OSError, EOFError, ValueError) as error:
            damage = f" ({path.name} is damaged or compressed: {error})"
        return cls(members, damage)


def _blob(path: Path, member: tarfile.TarInfo) -> Blob | str:
    """The place of a member, or why it is refused."""
    if not member.isreg() or member.issparse():
        return "is a link, a folder or a device, not a file"
    if member.offset_data + member.size > path.stat().st_size:
        return "is cut off at the end of the tar"
    return Blob(path, member.offset_data, member.size)


class _Audio:
    """Finds audio in the folder of a manifest; each tar is indexed once, when it is first needed."""

    def __init__(self, folder: Path, options: ImportOptions) -> None:
        self.folder, self.options = folder, options
        self.default = "audio.tar" if (folder / "audio.tar").is_file() else None
        self.tars: dict[str, _Tar] = {}

    def find(self, path: str, tar: object) -> Blob | str:
        """The place of a file, or why it cannot be used."""
        try:
            return self._find(path, tar)
        except RefusedError as reason:
            return str(reason)

    def _find(self, path: str, tar: object) -> Blob:
        tar = self.default if tar is None else tar
        if tar is None:
            return Blob(locate(path, self.folder, self.options))
        if not isinstance(tar, str):
            raise RefusedError("no field 'tar': it is not text")
        if tar not in self.tars:
            self.tars[tar] = _Tar.index(locate(tar, self.folder, self.options))
        pure = PurePosixPath(path)
        if pure.is_absolute() or ".." in pure.parts:
            raise RefusedError(f"path outside the source folder: {path} (in {tar})")
        member = self.tars[tar].members.get(path)
        if member is None:
            raise RefusedError(f"missing file: {path} is not in {tar}{self.tars[tar].damage}")
        if isinstance(member, str):
            raise RefusedError(f"bad tar member: {path} {member}")
        return member
