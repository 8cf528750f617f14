"""Parts that all importers share: unchecked utterances, skipped ones, paths, JSON lines.

An importer (`antiphon.data.importing.formats`) turns one format into `Candidate`s and never opens audio.
`antiphon.data.importing.conversion` reads, checks and writes them, in the same way for every format.
"""

from __future__ import annotations

import inspect
import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Protocol, TypeVar, cast

from antiphon.data.importing.import_options import ImportOptions
from antiphon.data.transcripts import DamagedFileError, numbered_lines
from antiphon.records.files import regular
from antiphon.records.reading import parse_json
from antiphon.records.schema import finite, shown

Value = TypeVar("Value")
Result = TypeVar("Result")
Progress = Callable[[int, int | None], None]  # done, total (None until the whole source is listed)
StagedProgress = Callable[[str, int, int | None], None]  # the stage, done, total


class EncodedAudio(Protocol):
    """Encoded audio of one recording. It is opened by `conversion.py` only."""

    def open(self) -> BinaryIO: ...


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
    audio: EncodedAudio | str
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

        >>> Skipped("a-1", "manifest.jsonl:7", "too long: 71.20 s, more than 60 s (--max-seconds)").kind
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
    roots = [source.resolve()] + ([] if options.audio_root is None else [Path(options.audio_root).resolve()])
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
    hint = (
        "--audio-root names one more folder to trust" if options.audio_root is None else "nor in --audio-root"
    )
    raise RefusedError(f"path outside the source folder: {path} ({hint})")


def find_audio(path: str, source: Path, options: ImportOptions) -> Blob | str:
    """Return the file called `path`, or why it cannot be used: the utterance may still be filtered out."""
    try:
        return Blob(locate(path, source, options))
    except RefusedError as reason:
        return str(reason)


def inside(paths: Iterable[Path], source: Path, options: ImportOptions) -> Iterator[Path | Skipped]:
    """Yield files of a source folder; links that leave it are skipped. A source that is a file is trusted."""
    for path in paths:
        try:
            if not source.is_file():
                locate(str(path.relative_to(source)), source, options)
            yield path
        except RefusedError as reason:
            yield Skipped("", path.name, str(reason))


def path_id(path: str) -> str:
    """Return an id made of a path without root and suffix: equal file names in two folders differ.

    >>> path_id("wav/ann/01.wav")
    'wav-ann-01'
    """
    pure = PurePosixPath(path)
    parts = pure.with_suffix("").parts if pure.name else ()
    return "-".join(part for part in parts if part not in ("/", ".."))


def json_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]] | Skipped]:
    """Yield the objects of a JSON-lines file, each with its location; other lines are skipped."""
    try:
        for where, line in numbered_lines(path, regular):
            try:
                row = parse_json(line, is_finite=False)
            except ValueError:
                yield Skipped("", where, "malformed JSON: the line cannot be parsed")
                continue
            if isinstance(row, dict):
                yield where, row
            else:
                yield Skipped("", where, "malformed JSON: the line is not an object")
    except DamagedFileError as error:
        yield Skipped("", path.name, f"damaged file: the rest of it cannot be read ({error})")


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
    try:
        return finite(value)
    except ValueError:
        raise RefusedError(f"bad number: {key!r} is {shown(value)}") from None


def without_stage(progress: StagedProgress | Progress) -> Progress:
    """Return a function of (done, total) that calls `progress`, with the stage if it takes one."""
    try:
        inspect.signature(progress).bind("import", 0, None)
    except TypeError:
        return cast(Progress, progress)
    return partial(cast(StagedProgress, progress), "import")
