"""What importers and the import share: unchecked utterances, skipped ones, and the user's options.

An importer (`antiphon.data.importing.formats`) turns one format into `Candidate`s and never opens audio:
`antiphon.data.importing.conversion` reads, checks and writes them, the same for every format.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from antiphon.data.transcripts import ALPHABET, numbered_lines


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
            raise ValueError(f"min_seconds must be at least 0 and below max_seconds, got {bounds}")
        fractions = self.split_speakers
        if fractions and (len(fractions) != 3 or min(fractions) < 0 or not math.isclose(sum(fractions), 1)):
            raise ValueError(f"split_speakers takes three fractions that add up to 1, got {fractions}")
        if self.alphabet == "":
            raise ValueError("the alphabet is empty: no text could be taken (None takes every character)")
        if bad := [speed for speed in self.speeds if not 0.5 <= speed <= 2 or speed == 1]:
            raise ValueError(f"speeds are between 0.5 and 2, and 1 is there already: got {bad[0]:g}")
        if len(set(self.speeds)) < len(self.speeds):
            raise ValueError(f"a speed is given twice: {', '.join(f'{speed:g}' for speed in self.speeds)}")
        if self.num_threads is not None and self.num_threads < 1:
            raise ValueError(f"num_threads must be at least 1, got {self.num_threads}")


@dataclass(frozen=True)
class Blob:
    """Where encoded audio is: a file, or a part of one (a member of a tar)."""

    path: Path
    offset: int = 0
    size: int | None = None

    def read(self) -> bytes:
        with open(self.path, "rb") as file:
            file.seek(self.offset)
            return file.read(-1 if self.size is None else self.size)

    def open(self) -> BinaryIO:
        return open(self.path, "rb") if self.size is None else io.BytesIO(self.read())


@dataclass(frozen=True)
class Candidate:
    """An utterance as its source describes it, unchecked.

    split: None if the source has none. audio: where it is, or why it cannot be used. start, stop: the part of
    the audio in seconds; stop=None is its end. channel: None for the mean of all. duration: the length of the
    whole audio according to the source. speed: a factor for playing it, which also changes the pitch.
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
    """An utterance that was left out: where it was described, and why. Never holds its text."""

    id: str
    where: str
    reason: str

    def __post_init__(self) -> None:
        # Names come from strangers and go to terminals: control characters and broken UTF-8 are escaped.
        for name in ("id", "where", "reason"):
            object.__setattr__(self, name, printable(getattr(self, name)))

    @property
    def kind(self) -> str:
        """The kind of fault: the reason without its details.

        >>> Skipped("a-1", "manifest.jsonl:7", "too long: 71.20 s, at most 60 s are taken").kind
        'too long'
        """
        return self.reason.partition(":")[0]


def printable(text: str) -> str:
    """Text that can be printed and written anywhere.

    >>> print(printable("caf\u00e9\x1b"))
    café\\x1b
    """
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


class RefusedError(ValueError):
    """Something about one utterance that makes it unusable; becomes the reason it was skipped."""


def locate(path: str, source: Path, options: ImportOptions) -> Path:
    """The regular file called `path`; with links followed, it must be in the source or in `audio_root`."""
    roots = [source] if options.audio_root is None else [source, options.audio_root]
    is_inside = False
    for root in (root.resolve() for root in roots):
        try:
            found = (root / path).resolve()
            if found.is_relative_to(root):
                is_inside = True
                if found.is_file():
                    return found
        except (OSError, ValueError, RuntimeError) as error:  # a NUL, a name too long, a loop of links
            raise RefusedError(f"bad path: {path!r} ({error})") from None
    if is_inside:
        raise RefusedError(f"missing file: {path}")
    hint = "audio_root names one more folder to trust" if options.audio_root is None else "nor in audio_root"
    raise RefusedError(f"path outside the source folder: {path} ({hint})")


def find_audio(path: str, source: Path, options: ImportOptions) -> Blob | str:
    """The file called `path`, or why it cannot be used: no error, as the utterance may be filtered out."""
    try:
        return Blob(locate(path, source, options))
    except RefusedError as reason:
        return str(reason)


def json_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]] | Skipped]:
    """Objects of a JSON-lines file, each with its place; other lines are skipped by their number."""
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


def candidates_of(
    path: Path,
    client_key: str,
    make: Callable[[Mapping[str, Any], str], Candidate],
    name: Callable[[Mapping[str, Any]], str],
) -> Iterator[Candidate | Skipped]:
    """A candidate made of each object of a JSON-lines file; an object that `make` refuses is skipped."""
    is_first = True
    for row in json_rows(path):
        if isinstance(row, Skipped):
            yield row
            continue
        where, fields = row
        if is_first:
            require_key(fields, client_key, where)
            is_first = False
        try:
            yield make(fields, where)
        except RefusedError as reason:
            yield Skipped(name(fields), where, str(reason))


def common_fields(
    row: Mapping[str, Any], options: ImportOptions, take_id: Callable[[Mapping[str, Any]], str], *others: str
) -> dict[str, Any]:
    """The fields of a `Candidate` that JSON lines of all formats have.

    Fields of the row that are neither among them nor among `others` are kept in `extra`.
    """
    taken = {"id", "split", "text", options.client_key, options.session_key, *others}
    speaker = take_text(row, options.client_key)
    return {
        "id": take_id(row),
        "speaker": speaker,
        "session": speaker if row.get(options.session_key) is None else take_text(row, options.session_key),
        "split": None if row.get("split") is None else take_text(row, "split"),
        "text": take_text(row, "text"),
        "extra": {key: value for key, value in row.items() if key not in taken},
    }


def first_row(path: Path) -> dict[str, Any]:
    """The first object of a JSON-lines file, to tell formats apart; empty if there is none near the top."""
    try:
        for _, row in zip(range(5), json_rows(path), strict=False):
            if not isinstance(row, Skipped):
                return row[1]
    except OSError:
        pass
    return {}


def take_text(row: Mapping[str, Any], key: str) -> str:
    """A required field; whole numbers (speaker: 84) become text."""
    value = row.get(key)
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise RefusedError(f"no field {key!r}: " + ("it is missing" if value is None else "it is not text"))
    return str(value)


def take_number(row: Mapping[str, Any], key: str) -> float | None:
    """An optional field that must be a finite number."""
    value = row.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise RefusedError(f"bad number: {key!r} is {value!r}")
    return float(value)


def require_key(row: Mapping[str, Any], key: str, where: str) -> None:
    """Stop the import if the first utterance does not have the field that names the client."""
    if key not in row:
        raise ValueError(
            f"{where} has no field {key!r} to tell clients apart: set client_key (--client-key) to one of "
            + ", ".join(sorted(map(str, row)))
        )
