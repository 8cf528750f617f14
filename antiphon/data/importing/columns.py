"""Columns of tables: which one holds the audio, the text, the speaker and so on, and names of splits.

The user names a column with `--column PART=NAME`; otherwise usual names are recognised.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from antiphon.data.importing import candidates
from antiphon.data.importing.candidates import Candidate, EncodedAudio
from antiphon.data.importing.import_options import ImportOptions
from antiphon.records.schema import finite, parse_number, shown

AUDIO_NAMES = ("audio_path", "audio_filepath", "audio_file", "wav_path", "wav_file", "file_path", "filepath")
# Usual names in lower case, the best first.
GUESSES = {
    "audio": ("audio", "path", "file_name", "filename", "file", "wav", *AUDIO_NAMES),
    "text": ("text", "sentence", "transcript", "transcription", "wrd", "words", "normalized_text"),
    "speaker": ("speaker", "speaker_id", "client_id", "spk_id", "spk", "speakerid", "client", "user_id"),
    "split": ("split", "subset", "partition"),
    "session": ("session", "session_id", "chapter_id", "recording_id", "conversation_id"),
    "id": ("id", "utterance_id", "utt_id", "uttid", "segment_id"),
}
REQUIRED = ("audio", "text", "speaker")
SPLITS = {
    "train": "pool",
    "training": "pool",
    "validated": "pool",
    "dev": "heldout",
    "valid": "heldout",
    "validation": "heldout",
    "test": "test",
}


def usual_split(name: str | None, options: ImportOptions) -> str | None:
    """Return antiphon's name of a split: train is the pool, dev is heldout; `splits` can say otherwise.

    >>> usual_split("validation", ImportOptions()), usual_split("dev", ImportOptions(splits={"dev": "mine"}))
    ('heldout', 'dev')
    """
    return name if name is None or name in options.splits else SPLITS.get(name.lower(), name)


def choose_tables(paths: Sequence[Path], source: Path) -> list[Path]:
    """Return the tables of a folder to import: a single one, or those named after splits.

    If there is train.csv, then train-clean-100.csv is not read: its utterances are in the former.
    """
    groups: dict[str, list[Path]] = {}
    for path in sorted(paths):
        first = re.split(r"[-_.]", path.name.lower())[0]
        if first in SPLITS:
            groups.setdefault(SPLITS[first], []).append(path)
    if len(paths) > 1 and not groups:
        names = ", ".join(path.name for path in sorted(paths))
        raise ValueError(f"{source} holds several tables: import one of {names}")
    chosen = []
    for members in groups.values():
        chosen += [path for path in members if path.stem.lower() in SPLITS] or members
    return chosen or list(paths)


def audio_finder(
    table: Path, source: Path, options: ImportOptions, folder: str = ""
) -> Callable[[str], candidates.Blob | str]:
    """Return a function that finds the files a table names: they start in its folder, or in one beside it."""
    root = table.parent if source.is_file() else source
    start = table.parent.relative_to(root) / folder
    return lambda path: candidates.find_audio(str(start / path), root, options)


@dataclass(frozen=True)
class Columns:
    """Names of columns by the part that they hold. The parts are those of `ImportOptions.columns`."""

    by_part: Mapping[str, str]

    @classmethod
    def choose(cls, names: Iterable[str], options: ImportOptions, table: str) -> Columns:
        """Choose columns by the options, else by usual names; an error lists the columns of the table."""
        names = list(names)
        by_lower = {name.lower(): name for name in reversed(names)}
        wanted = dict(options.columns)
        for part, key in (("speaker", options.client_key), ("session", options.session_key)):
            if key != part:
                wanted.setdefault(part, key)
        chosen = {}
        for part, guesses in GUESSES.items():
            name = wanted.get(part) or next((by_lower[one] for one in guesses if one in by_lower), None)
            listed = f"the columns are {', '.join(names)}"
            flag = f"--column {part}=NAME"
            if name is None and part in REQUIRED:
                raise ValueError(
                    f"{table}: no column is known to hold the {part}. Name it with {flag}; {listed}"
                )
            if name is not None and name not in names:
                raise ValueError(f"{table} has no column {name!r}; {listed}")
            if name is not None:
                chosen[part] = name
        return cls(chosen)

    def candidate(
        self,
        where: str,
        row: Mapping[str, Any],
        options: ImportOptions,
        *,
        find: Callable[[str], EncodedAudio | str],
        split: str | None = None,
        id: str | None = None,
    ) -> Candidate:
        """Return the utterance of a row. `find` returns its audio from the value of the column."""
        value: dict[str, Any] = {part: row.get(name) for part, name in self.by_part.items()}
        audio = candidates.take_text(row, self.by_part["audio"])
        speaker = candidates.take_text(row, self.by_part["speaker"])
        duration = _seconds(row.get("duration"))
        used = {*self.by_part.values(), "duration"}
        return Candidate(
            id=id or str(value.get("id") or candidates.path_id(audio)),
            speaker=speaker,
            session=str(value.get("session") or speaker),
            split=usual_split(str(value["split"]) if value.get("split") else split, options),
            text=candidates.take_text(row, self.by_part["text"]),
            audio=find(audio),
            where=where,
            duration=duration,
            extra={key: item for key, item in row.items() if key not in used and item not in ("", None)},
        )


def _seconds(value: Any) -> float | None:
    if value in (None, ""):
        return None
    try:
        return parse_number(value) if isinstance(value, str) else finite(value)
    except ValueError:
        raise candidates.RefusedError(f"bad number: 'duration' is {shown(value)}") from None
