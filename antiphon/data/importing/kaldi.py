"""Kaldi data directories: wav.scp, text, utt2spk and, if recordings hold several utterances, segments.

The session is speaker-recording if there are segments, else the speaker. `wav.scp` may hold shell commands
("sox … |"), which are refused and never run. Lhotse is not used here, because it would run them to learn the
length of the audio. If there is an utt2dur, the length of each whole file is checked against it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from antiphon.data.importing.candidates import Candidate, ImportOptions, RefusedError, Skipped, find_audio
from antiphon.data.importing.formats import FORMATS
from antiphon.data.transcripts import numbered_lines


@FORMATS.named("kaldi")
class Kaldi:
    """An `Importer` of Kaldi data directories."""

    looks_for = "a Kaldi data directory with wav.scp and text"

    def recognises(self, source: Path) -> bool:
        return (source / "wav.scp").is_file() and (source / "text").is_file()

    def read(self, source: Path, options: ImportOptions) -> Iterator[Candidate | Skipped]:
        tables = _Tables.read(source)
        for utterance, (where, text) in tables.text.items():
            try:
                yield _candidate(utterance, text, where, tables, source, options)
            except RefusedError as reason:
                yield Skipped(utterance, where, str(reason))
        for utterance, (where, _) in (tables.segments or tables.wav).items():
            if utterance not in tables.text:
                yield Skipped(utterance, where, "no text: the utterance has no line in text")
        for where, utterance in tables.repeated:
            yield Skipped(utterance, where, "duplicate id: an earlier line of the same file has it too")


Table = Mapping[str, tuple[str, str]]  # key -> place, rest of the line


@dataclass(frozen=True)
class _Tables:
    wav: Table
    text: Table
    speakers: Table
    segments: Table
    durations: Table
    repeated: list[tuple[str, str]]

    @classmethod
    def read(cls, source: Path) -> _Tables:
        repeated: list[tuple[str, str]] = []
        return cls(
            wav=_table(source / "wav.scp", repeated),
            text=_table(source / "text", repeated),
            speakers=_table(source / "utt2spk", repeated),
            segments=_table(source / "segments", repeated),
            durations=_table(source / "utt2dur", repeated),
            repeated=repeated,
        )


def _table(path: Path, repeated: list[tuple[str, str]]) -> Table:
    """A file of "key rest" lines; empty if there is no such file. Only the first line of a key is used."""
    table: dict[str, tuple[str, str]] = {}
    if not path.is_file():
        return table
    for where, line in numbered_lines(path):
        key, *rest = line.split(maxsplit=1)
        if key in table:
            repeated.append((where, key))
        else:
            table[key] = (where, rest[0] if rest else "")
    return table


def _candidate(
    utterance: str, text: str, where: str, tables: _Tables, source: Path, options: ImportOptions
) -> Candidate:
    recording, start, stop = _segment(utterance, tables)
    if recording not in tables.wav:
        raise RefusedError(f"missing file: wav.scp has no entry {recording!r}")
    path = tables.wav[recording][1]
    if path.endswith("|"):
        raise RefusedError("command in wav.scp: commands are not run, write its audio to a file first")
    # Kaldi's convention without utt2spk is one speaker per utterance, which makes no sense as a client.
    if utterance not in tables.speakers:
        raise RefusedError("no speaker: utt2spk has no entry for the utterance")
    speaker = tables.speakers[utterance][1]
    return Candidate(
        id=utterance,
        speaker=speaker,
        session=f"{speaker}-{recording}" if tables.segments else speaker,
        split=None,
        text=text,
        audio=find_audio(path, source, options),
        where=where,
        start=start,
        stop=stop,
        duration=None if tables.segments else _duration(utterance, tables),
    )


def _segment(utterance: str, tables: _Tables) -> tuple[str, float, float | None]:
    """An utterance's recording, start and stop in seconds; a stop of -1 or none is the end."""
    if not tables.segments:
        return utterance, 0.0, None
    if utterance not in tables.segments:
        raise RefusedError("missing segment: segments has no entry for the utterance")
    try:
        recording, start, stop = tables.segments[utterance][1].split()
        return recording, float(start), None if float(stop) == -1 else float(stop)
    except ValueError:
        raise RefusedError("malformed segment: expected `utterance recording start stop`") from None


def _duration(utterance: str, tables: _Tables) -> float | None:
    if utterance not in tables.durations:
        return None
    try:
        return float(tables.durations[utterance][1])
    except ValueError:
        raise RefusedError("bad number: utt2dur does not hold seconds for the utterance") from None
