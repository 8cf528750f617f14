"""Kaldi data directories: wav.scp, text, utt2spk and, if recordings hold several utterances, segments.

The session is speaker-recording if there are segments, else the speaker. `wav.scp` may hold shell commands
("sox … |"), which are refused and never run. Lhotse is not used here, because it would run them to learn the
length of the audio. If there is an utt2dur, the length of each whole file is checked against it.

ESPnet's data directories (dump/raw/train) are Kaldi data directories. Their paths start in the folder of the
recipe: name it as `audio_root`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from antiphon.data.importing.candidates import Candidate, ImportOptions, RefusedError, Skipped, find_audio
from antiphon.data.importing.formats import FORMATS
from antiphon.data.transcripts import numbered_lines
from antiphon.records.schema import parse_number

ARCHIVE = re.compile(r"\.ark:\d+$")
FILES = ("wav.scp", "text", "utt2spk", "segments", "utt2dur")
Table = dict[str, tuple[str, str]]  # key -> location, rest of the line


@FORMATS.named("kaldi")
class Kaldi:
    """An `Importer` of Kaldi data directories."""

    looks_for = "a Kaldi or ESPnet data directory with wav.scp and text"

    def recognises(self, source: Path) -> bool:
        return (source / "wav.scp").is_file() and (source / "text").is_file()

    def read(self, source: Path, options: ImportOptions) -> Iterator[Candidate | Skipped]:
        repeated: list[tuple[str, str]] = []
        tables = {name: _read_table(source / name, repeated) for name in FILES}
        for utterance, (where, text) in tables["text"].items():
            try:
                yield _candidate(utterance, text, where, tables, source, options)
            except RefusedError as reason:
                yield Skipped(utterance, where, str(reason))
        for utterance, (where, _) in (tables["segments"] or tables["wav.scp"]).items():
            if utterance not in tables["text"]:
                yield Skipped(utterance, where, "no text: the utterance has no line in text")
        for where, utterance in repeated:
            yield Skipped(utterance, where, "duplicate id: an earlier line of the same file has it too")


def _read_table(path: Path, repeated: list[tuple[str, str]]) -> Table:
    """Read a file of "key rest" lines; empty if it does not exist. Only the first line of a key is used."""
    table: Table = {}
    for where, line in numbered_lines(path) if path.is_file() else ():
        key, *rest = line.split(maxsplit=1)
        if key in table:
            repeated.append((where, key))
        else:
            table[key] = (where, rest[0] if rest else "")
    return table


def _candidate(
    utterance: str, text: str, where: str, tables: dict[str, Table], source: Path, options: ImportOptions
) -> Candidate:
    recording, start, stop, duration = utterance, 0.0, None, None
    if tables["segments"]:
        recording, start, stop = _segment(_entry("segments", utterance, tables, "missing segment"))
    elif utterance in tables["utt2dur"]:
        try:
            duration = parse_number(tables["utt2dur"][utterance][1])
        except ValueError:
            raise RefusedError("bad number: utt2dur does not hold seconds for the utterance") from None
    path = _entry("wav.scp", recording, tables, "missing file")
    if path.endswith("|"):
        raise RefusedError("command in wav.scp: commands are not run, write its audio to a file first")
    if ARCHIVE.search(path):
        raise RefusedError("archive in wav.scp: .ark files are not read, write WAV or FLAC files")
    # Kaldi's convention without utt2spk is one speaker per utterance, which makes no sense as a client.
    speaker = _entry("utt2spk", utterance, tables, "no speaker")
    return Candidate(
        id=utterance,
        speaker=speaker,
        session=f"{speaker}-{recording}" if tables["segments"] else speaker,
        split=None,
        text=text,
        audio=find_audio(path, source, options),
        where=where,
        start=start,
        stop=stop,
        duration=duration,
    )


def _entry(file: str, key: str, tables: dict[str, Table], fault: str) -> str:
    if key not in tables[file]:
        raise RefusedError(f"{fault}: {file} has no entry {key!r}")
    return tables[file][key][1]


def _segment(line: str) -> tuple[str, float, float | None]:
    """Return a recording, start and stop in seconds; a stop of -1 is the end."""
    try:
        recording, start, stop = line.split()
        return recording, parse_number(start), None if parse_number(stop) == -1 else parse_number(stop)
    except ValueError:
        raise RefusedError("malformed segment: expected `utterance recording start stop`") from None
