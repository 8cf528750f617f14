"""Parts that all importers share: unchecked utterances, skipped ones, the user's options, JSON lines.

An importer (`antiphon.data.importing.formats`) turns one format into `Candidate`s and never opens audio.
`antiphon.data.importing.conversion` reads, checks and writes them, in the same way for every format.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from antiphon.data.transcripts import ALPHABET, numbered_lines

Value = TypeVar("Value")
Result = TypeVar("Result")


@dataclass(frozen=True)
class ImportOptions:
    """Options of an import.

    Args:
        format: The format of the source; by default it is recognised.
        split: The split of utterances whose source names no split.
        splits: New names of splits by their old names, such as dev-clean=heldout.
        split_speakers: Fractions of the speakers for pool, heldout and test, whatever the source says.
        seed: The seed of `split_speakers`.
        where: Take only utterances whose field (split, speaker, session or another) has this value.
        lowercase: Change texts to lower case.
        alphabet: The characters that texts may have; others are skipped. None allows all characters.
        min_seconds: Skip shorter utterances.
        max_seconds: Skip longer utterances.
        speeds: Add the utterances of the pool also at these speeds (0.9 is slower and lower).
        client_key: The field that names the speaker, in formats that have named fields.
        session_key: The field that names the session, in formats that have named fields.
        audio_root: Another folder, besides the source, that may hold audio files.
        num_threads: The number of threads that read audio; by default one for each core.
        overwrite: Replace the corpus in the destination.
    """

    format: str | None = None
    split: str = "pool"
    splits: Mapping[str, str] = field(default_factory=dict)
    split_speakers: tuple[float, float, float] | None = None
    seed: int = 0
    where: Mapping[str, str] = field(default_factory=dict)
    lowercase: bool = True
    alphabet: str | None = ALPHABET
    min_seconds: float = 0.1
    max_seconds: float = 60.0
    speeds: tuple[float, ...] = ()
    client_key: str = "speaker"
    session_key: str = "session"
    audio_root: Path | None = None
    num_threads: int | None = None
    overwrite: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.min_seconds < self.max_seconds:
            bounds = f"{self.min_seconds:g} and {self.max_seconds:g}"
            raise ValueError(f"--min-seconds must be at least 0 and below --max-seconds, got {bounds}")
        fractions = self.split_speakers
        if fractions and (len(fractions) != 3 or min(fractions) < 0 or not math.isclose(sum(fractions), 1)):
            raise ValueError(f"--split-speakers takes three fractions that add up to 1, got {fractions}")
        if self.alphabet == "":
            raise ValueError("--alphabet is empty: 'any' (in Python: alphabet=None) takes every character")
        if bad := [speed for speed in self.speeds if not 0.5 <= speed <= 2 or speed == 1]:
            raise ValueError(f"--speeds are between 0.5 and 2, and 1 is always included: got {bad[0]:g}")
        if len(set(self.speeds)) < len(self.speeds):
            raise ValueError(f"a speed is given twice: {', '.join(f'{speed:g}' for speed in self.speeds)}")
        if self.num_threads is not None and self.num_threads < 1:
            raise ValueError(f"num_threads must be at least 1, got {self.num_threads}")


@dataclass(frozen=True)
class Blob:
    """The location of encoded audio: a file, or a part of one (a member of a tar)."""

    path: Path
    offset: int = 0
    size: int | None = None

    def open(self) -> BinaryIO:
        if self.size is None:
            return open(self.path, "rb")
        with open(self.path, "rb") as file:
            file.seek(self.offset)
            return io.BytesIO(file.read(self.size))


@dataclass(frozen=True)
class Candidate:
    """An utterance as its source describes it, unchecked.

    split: None if the source has none. audio: its location, or why it cannot be used. where: file and line
    of the description. start, stop: the part of the audio in seconds; stop=None is its end. channel: None for
    the mean of all. duration: the length of the whole audio according to the source. speed: a factor for
    playing it, which also changes the pitch.
    """

    id: str
    speaker: str
    session: str
    split: str | None
    text: str
    audio: Blob | str
    where: str
    start: float = 0.0
    stop: float | None = None
    channel: int | None = None
    duration: float | None = None
    speed: float = 1.0
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Skipped:
    """An utterance that was left out: where it is described, and the reason. Never holds its text."""

    id: str
    where: str
    reason: str

    def __post_init__(self) -> None:
        # Names from unknown sources go to terminals: control characters and broken UTF-8 are escaped.
        for name in ("id", "where", "reason"):
            object.__setattr__(self, name, printable(getattr(self, name)))

    @property
    def kind(self) -> str:
        """The kind of fault: the reason without its details.

        >>> Skipped("a-1", "manifest.jsonl:7", "too long: 71.20 s, more than 60 s (max_seconds)").kind
        'too long'
        """
        return self.reason.partition(":")[0]


def printable(text: str) -> str:
    """Escape characters that cannot be printed.

    >>> print(printable("caf\u00e9\x1b"))
    café\\x1b
    """
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


class RefusedError(ValueError):
    """One utterance cannot be used; the message becomes the reason for skipping it."""


def locate(path: str, source: Path, options: ImportOptions) -> Path:
    """Return the regular file called `path`; after links it must be in the source or in `audio_root`."""
    roots = [source.resolve()] + ([] if options.audio_root is None else [options.audio_root.resolve()])
    is_inside = True
    for root in roots:
        try:
            file = (root / path).resolve()
            # A link in one folder may lead into the other one.
            if not any(file.is_relative_to(trusted) for trusted in roots):
                is_inside = False
            elif file.is_file():
                return file
        except (OSError, ValueError, RuntimeError) as error:  # a NUL, a name too long, a loop of links
            raise RefusedError(f"bad path: {path!r} ({error})") from None
    if is_inside:
        raise RefusedError(f"missing file: {path}")
    hint = "audio_root names one more folder to trust" if options.audio_root is None else "nor in audio_root"
    raise RefusedError(f"path outside the source folder: {path} ({hint})")


def find_audio(path: str, source: Path, options: ImportOptions) -> Blob | str:
    """Return the file called `path`, or why it cannot be used: the utterance may still be filtered out."""
    try:
        return Blob(locate(path, source, options))
    except RefusedError as reason:
        return str(reason)


def json_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]] | Skipped]:
    """Yield the objects of a JSON-lines file, each with its location; other lines are skipped."""
    try:
        for where, line in numbered_lines(path):
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                yield Skipped("", where, "malformed JSON: the line cannot be parsed")
                continue
            if isinstance(row, dict):
                yield where, row
            else:
                yield Skipped("", where, "malformed JSON: the line is not an object")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        yield Skipped("", path.name, f"damaged file: the rest of it cannot be unpacked ({error})")


def convert_rows(
    rows: Iterable[tuple[str, Value] | Skipped],
    make: Callable[[str, Value], Iterable[Result]],
    name: Callable[[Value], str],
) -> Iterator[Result | Skipped]:
    """Yield what `make` makes of each location and value; a value that it refuses is skipped by its name."""
    for row in rows:
        if isinstance(row, Skipped):
            yield row
            continue
        where, value = row
        try:
            yield from make(where, value)
        except RefusedError as reason:
            yield Skipped(name(value), where, str(reason))


def read_candidates(
    path: Path,
    client_key: str,
    make: Callable[[str, Mapping[str, Any]], Candidate],
    name: Callable[[Mapping[str, Any]], str],
) -> Iterator[Candidate | Skipped]:
    """Make a candidate of each object of a JSON-lines file. The first one must name its client."""
    first = next((row for row in json_rows(path) if not isinstance(row, Skipped)), None)
    if first is not None and client_key not in first[1]:
        raise ValueError(
            f"{first[0]} has no field {client_key!r}, the name of the client: set client_key (--client-key) "
            f"to one of {', '.join(sorted(first[1]))}"
        )
    return convert_rows(json_rows(path), lambda where, row: [make(where, row)], name)


def common_fields(row: Mapping[str, Any], options: ImportOptions, id: str, *others: str) -> dict[str, Any]:
    """Return the fields of a `Candidate` that JSON lines of all formats have.

    Fields of the row that are neither among them nor among `others` go to `extra`.
    """
    used = {"id", "split", "text", options.client_key, options.session_key, *others}
    speaker = take_text(row, options.client_key)
    return {
        "id": id,
        "speaker": speaker,
        "session": speaker if row.get(options.session_key) is None else take_text(row, options.session_key),
        "split": None if row.get("split") is None else take_text(row, "split"),
        "text": take_text(row, "text"),
        "extra": {key: value for key, value in row.items() if key not in used},
    }


def first_row(path: Path) -> dict[str, Any]:
    """Return the first object of a JSON-lines file, to recognise its format; empty without early objects."""
    try:
        rows = [row for row in islice(json_rows(path), 5) if not isinstance(row, Skipped)]
    except OSError:
        return {}
    return rows[0][1] if rows else {}


def take_text(row: Mapping[str, Any], key: str) -> str:
    """Return a required field; whole numbers (speaker: 84) become text."""
    value = row.get(key)
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise RefusedError(f"no field {key!r}: " + ("it is missing" if value is None else "it is not text"))
    return str(value)


def take_number(row: Mapping[str, Any], key: str) -> float | None:
    """Return an optional field that must be a finite number."""
    value = row.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise RefusedError(f"bad number: {key!r} is {value!r}")
    return float(value)
