"""LibriSpeech as its official archives unpack: made again of the repacked speech in ANTIPHON_DATA.

`dev-clean.tar.gz` and `test-clean.tar.gz` of openslr.org/12 share one folder, LibriSpeech/. It has five files
of text, and PART/SPEAKER/CHAPTER/ with FLAC files and SPEAKER-CHAPTER.trans.txt, in capitals.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

RATE = 16000
SPEAKERS_HEADER = """; Some pipe(|) separated metadata about all LibriSpeech's speakers
;
;ID  |SEX| SUBSET           |MINUTES| NAME
"""
CHAPTERS_HEADER = """; Some pipe(|) separated metadata about all LibriSpeech's chapters
;
;ID    |READER|MINUTES| SUBSET           | PROJ.|BOOK ID| CH. TITLE | PROJECT TITLE
"""


def rows_of(manifest: Path) -> list[dict[str, Any]]:
    """Read the lines of a manifest."""
    return [json.loads(line) for line in manifest.read_text().splitlines()]


def as_int16(samples: np.ndarray) -> np.ndarray:
    """Round samples in [-1, 1] to the 16 bits of a FLAC file."""
    return np.clip(np.rint(samples * 32768), -32768, 32767).astype(np.int16)


def write_archives(data: Path, folder: Path) -> Path:
    """Write LibriSpeech/ into a folder, with every utterance of the repacked speech; return its path.

    The 70 original FLAC files are written as they are. The others are decoded from Opus.
    """
    root, rows = folder / "LibriSpeech", rows_of(data / "manifest.jsonl")
    chapters = defaultdict(list)
    for row in rows:
        chapters[row["part"], row["session"]].append(row)
        _chapter_folder(root, row).mkdir(parents=True, exist_ok=True)
    for (_, session), members in chapters.items():
        lines = [f"{row['id']} {row['text'].upper()}\n" for row in sorted(members, key=lambda row: row["id"])]
        (_chapter_folder(root, members[0]) / f"{session}.trans.txt").write_text("".join(lines))
    originals = rows_of(data / "manifest_lossless70.jsonl")
    for row, encoded in _members(data, originals):
        _flac_of(root, row).write_bytes(encoded)
    without = {row["id"] for row in originals}
    with ThreadPoolExecutor(2) as threads:
        others = _members(data, [row for row in rows if row["id"] not in without])
        for written in [threads.submit(_write_decoded, root, *member) for member in others]:
            written.result()
    _write_lists(root, chapters)
    return root


def _chapter_folder(root: Path, row: dict[str, Any]) -> Path:
    speaker, chapter = row["session"].split("-")
    return root / row["part"] / speaker / chapter


def _flac_of(root: Path, row: dict[str, Any]) -> Path:
    return _chapter_folder(root, row) / f"{row['id']}.flac"


def _members(data: Path, rows: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Read the encoded audio of rows from the tars that they name."""
    for name in sorted({row["tar"] for row in rows}):
        with tarfile.open(data / name) as tar:
            for row in rows:
                if row["tar"] == name:
                    member = tar.extractfile(row["path"])
                    assert member is not None
                    yield row, member.read()


def _write_decoded(root: Path, row: dict[str, Any], encoded: bytes) -> None:
    samples, rate = soundfile.read(io.BytesIO(encoded), dtype="float32")
    assert rate == RATE
    soundfile.write(_flac_of(root, row), as_int16(samples), rate, compression_level=0)


def _write_lists(root: Path, chapters: dict[tuple[str, str], list[dict[str, Any]]]) -> None:
    """Write the five files of text beside the parts. antiphon must not take them for speech."""
    speakers, lines = {}, []
    for (part, session), members in sorted(chapters.items()):
        speaker, chapter = session.split("-")
        minutes = sum(row["duration"] for row in members) / 60
        speakers[speaker] = f"{speaker:<5}| {members[0]['sex']} | {part:<17}| {minutes:5.2f} | -\n"
        title = members[0]["book_title"]
        lines.append(f"{chapter:<7}| {speaker:<5}| {minutes:5.2f} | {part:<17}| 0    | 0 | - | {title}\n")
    (root / "SPEAKERS.TXT").write_text(SPEAKERS_HEADER + "".join(speakers.values()))
    (root / "CHAPTERS.TXT").write_text(CHAPTERS_HEADER + "".join(lines))
    books = {(row["book"], row["book_title"]) for members in chapters.values() for row in members}
    (root / "BOOKS.TXT").write_text("".join(f"{book:<6}| {title}\n" for book, title in sorted(books)))
    (root / "LICENSE.TXT").write_text("Creative Commons Attribution 4.0\n")
    (root / "README.TXT").write_text("LibriSpeech: dev-clean and test-clean\n")
