"""A manifest for a folder of audio, as people have it: what can be found out is found out, and said.

Looked for, in this order: the formats that `antiphon corpus import` knows (LibriSpeech, Common Voice and
others), tables such as metadata.csv, and a .txt file beside each recording. Speakers come from a column, from
folders, or from the beginnings of file names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from antiphon.data.importing.candidates import Blob, Candidate, Skipped
from antiphon.data.importing.columns import GUESSES, SPLITS, choose_tables
from antiphon.data.importing.csv_tables import first_line, rows_of, tables_in
from antiphon.data.importing.formats import FORMATS
from antiphon.data.importing.import_options import ImportOptions

AUDIO = {".wav", ".flac", ".ogg", ".opus", ".mp3"}


@dataclass(frozen=True)
class AudioListing:
    """The rows of a manifest, and sentences that say what was assumed."""

    rows: tuple[Mapping[str, str], ...]
    assumptions: tuple[str, ...]

    @property
    def num_speakers(self) -> int:
        return len({row["speaker"] for row in self.rows})

    @property
    def has_splits(self) -> bool:
        """Whether the utterances are divided into pool, heldout and test."""
        return {"pool", "heldout", "test"} <= {row.get("split", "") for row in self.rows}


def list_audio(folder: Path) -> AudioListing:
    """Find the utterances of a folder; paths in the rows are relative to it."""
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder of audio")
    audio = sorted(path for path in folder.rglob("*") if path.suffix.lower() in AUDIO and path.is_file())
    if not audio:
        raise ValueError(f"{folder} holds no audio: looked for {', '.join(sorted(AUDIO))}")
    for find in (_from_formats, _from_tables, _from_texts):
        if (listing := find(folder, [path.relative_to(folder) for path in audio])) is not None:
            return listing
    raise ValueError(
        f"{folder} holds recordings ({len(audio):,}) but no transcripts: put NAME.txt beside "
        f"NAME{audio[0].suffix}, or a metadata.csv with the columns path, text and speaker"
    )


def _from_tables(folder: Path, audio: Sequence[Path]) -> AudioListing | None:
    tables = [table for table in tables_in(folder) if {"audio", "text"} <= _columns(table).keys()]
    if not tables:
        return None
    by_name = {name: path for path in audio for name in (path.stem, path.name, path.as_posix())}
    tables, rows, num_missing = choose_tables(tables, folder), [], 0
    for table in tables:
        columns = _columns(table)
        for entry in rows_of(table):
            values = {} if isinstance(entry, Skipped) else {p: entry[1][name] for p, name in columns.items()}
            path = by_name.get(values.get("audio", ""))
            if path is None or not values["text"]:
                num_missing += 1
                continue
            split = SPLITS.get((values.get("split") or table.stem).lower(), values.get("split"))
            rows.append(_row(path, values["text"], values.get("speaker"), split))
    names = ", ".join(f"{name} is the {part}" for part, name in _columns(tables[0]).items())
    assumptions = [f"transcripts are in {', '.join(table.name for table in tables)}: {names}"]
    if num_missing:
        assumptions.append(f"lines left out, because there is no such file or no text: {num_missing:,}")
    return _with_speakers(rows, assumptions) if rows else None


def _columns(table: Path) -> dict[str, str]:
    """Return the columns of a table by what they hold, as far as they have usual names."""
    names = {name.lower(): name for name in first_line(table)}
    parts = {part: GUESSES[part] for part in ("audio", "text", "speaker", "split")}
    chosen = {part: next((names[n] for n in guesses if n in names), "") for part, guesses in parts.items()}
    return {part: name for part, name in chosen.items() if name}


def _from_formats(folder: Path, audio: Sequence[Path]) -> AudioListing | None:
    special = [name for name in FORMATS if not getattr(FORMATS[name], "is_general", False)]
    name = next((name for name in special if FORMATS[name]().recognises(folder)), "")
    if not name:
        return None
    try:
        items = list(FORMATS[name]().read(folder, ImportOptions()))
    except ValueError:  # such as a table without a column of speakers, which folders may name
        return None
    rows, num_missing = [], 0
    for item in items:
        if not isinstance(item, Candidate) or isinstance(item.audio, str):
            num_missing += 1
            continue
        if not isinstance(item.audio, Blob) or not _is_whole_file(item, item.audio):
            raise ValueError(
                f"{folder} is in the format {name}, with utterances inside longer files, and needs no "
                f"manifest: import it with antiphon corpus import {folder} corpus"
            )
        path = item.audio.path.resolve().relative_to(folder.resolve())
        row = _row(path, item.text, item.speaker, item.split) | {"id": item.id, "session": item.session}
        rows.append(row)
    assumptions = [f"the folder is in the format {name}"]
    if num_missing:
        assumptions.append(f"utterances left out, because there is no audio or no text: {num_missing:,}")
    return AudioListing(tuple(rows), tuple(assumptions)) if rows else None


def _is_whole_file(candidate: Candidate, audio: Blob) -> bool:
    """Return whether an utterance is a whole file, which a line of a manifest can name."""
    is_cut = candidate.start > 0 or candidate.stop is not None or candidate.channel is not None
    return audio.size is None and not is_cut


def _from_texts(folder: Path, audio: Sequence[Path]) -> AudioListing | None:
    rows = []
    for path in audio:
        text = (folder / path).with_suffix(".txt")
        if text.is_file():
            split = SPLITS.get(path.parts[0].lower()) if len(path.parts) > 1 else None
            rows.append(_row(path, text.read_text(encoding="utf-8", errors="replace"), None, split))
    assumptions = ["the transcript of a recording is the .txt file beside it"]
    if len(rows) < len(audio):
        assumptions.append(f"recordings left out, because there is no .txt file: {len(audio) - len(rows):,}")
    return _with_speakers(rows, assumptions) if rows else None


def _row(path: Path, text: str, speaker: str | None, split: str | None) -> dict[str, Any]:
    id = "-".join(path.with_suffix("").parts)
    fields = {"id": id, "path": path.as_posix(), "speaker": speaker, "split": split}
    return {key: value for key, value in fields.items() if value} | {"text": " ".join(text.split())}


def _with_speakers(rows: Sequence[dict[str, Any]], assumptions: Sequence[str]) -> AudioListing:
    """Add speakers to rows that have none, and say where they come from."""
    said = list(assumptions)
    if not all("speaker" in row for row in rows):
        name_of, reason = _speaker_rule([PurePosixPath(row["path"]) for row in rows])
        rows = [{**row, "speaker": row.get("speaker") or name_of(PurePosixPath(row["path"]))} for row in rows]
        said.append(reason)
    if all("split" in row for row in rows):
        said.append("splits come from the source: pool (training), heldout (validation) and test")
    else:
        rows = [{key: value for key, value in row.items() if key != "split"} for row in rows]
        said.append("the source has no splits: the import divides the speakers (--split-speakers)")
    return AudioListing(tuple(rows), tuple(said))


def _speaker_rule(paths: Sequence[PurePosixPath]) -> tuple[Callable[[PurePosixPath], str], str]:
    """Return how to name the speaker of a file, and a sentence that says it."""

    def folder_of(path: PurePosixPath) -> str:
        names = [part for part in path.parts[:-1] if part.lower() not in {*SPLITS, "clips", "wav", "audio"}]
        return names[0] if names else ""

    def prefix_of(path: PurePosixPath) -> str:
        return path.stem.replace("_", "-").partition("-")[0]

    if len({folder_of(path) for path in paths}) > 1 and all(map(folder_of, paths)):
        return folder_of, "the speaker is the name of the first folder"
    prefixes = Counter(map(prefix_of, paths))
    if 1 < len(prefixes) <= len(paths) / 2:
        return prefix_of, "the speaker is the beginning of the file name, up to - or _"
    return lambda path: "speaker", (
        "no speakers were found, so all files belong to one: give each speaker a folder, or add a column "
        "speaker to metadata.csv"
    )
