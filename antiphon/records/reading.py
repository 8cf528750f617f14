"""Files that may be damaged, edited or made to do harm: JSON, YAML and tensors, read within limits.

The contents of a JSON file are checked by a dataclass (`antiphon.records.schema`). Its class variables say
`format`, the value of the key "format"; `what`, a name for the folder's contents; and `advice`, what to do
about a damaged file. All errors are ValueErrors that name the file, and the line and the key where there is
one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, AnyStr, TypeVar

import yaml

from antiphon.records.files import ADVICE, CHECKSUM, Damaged, check_files, regular, without_checksum
from antiphon.records.schema import checked, parse_number, shown, whole

MAX_FILE = 1 << 28  # bytes of a file that is read at once, and of a line that we wrote
MAX_LINE = 1 << 24  # characters of a line of others
MAX_YAML = 1 << 20  # characters of a YAML text: this many take seconds
MAX_NODES = 100_000  # values of a YAML text, with aliases written out
MAX_DEPTH = 64  # nesting of objects and lists
MAX_DIGITS = 20  # of an integer
MAX_MESSAGE = 200  # characters of a message of a library

T = TypeVar("T")
Opener = Callable[[str, int], int]  # of `open`


# --- JSON and YAML --------------------------------------------------------------------------------


def parse_json(text: str | bytes, is_finite: bool = True) -> Any:
    """Parse JSON: UTF-8, nested at most MAX_DEPTH times; all numbers finite, and integers of 64 bits.

    Without `is_finite`, numbers are as they are: for files of others, whose unused fields may hold anything.
    """
    text = text.decode() if isinstance(text, bytes) else text
    hooks: Any = {"parse_int": _whole_number, "parse_float": parse_number, "parse_constant": parse_number}
    try:
        value = json.loads(text, **(hooks if is_finite else {}))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if text.count("[") + text.count("{") > MAX_DEPTH and _depth(value) > MAX_DEPTH:
        raise ValueError("it is nested too deeply")
    if is_finite and ("\\ud" in text or "\\uD" in text):  # half a pair of surrogates cannot be written
        json.dumps(value, ensure_ascii=False).encode()
    return value


def _whole_number(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"an integer of {len(digits)} digits is too large")
    return whole(int(digits))


def _depth(value: Any) -> int:
    """Return how often objects and lists are nested; counts without recursion, up to MAX_DEPTH + 1."""
    level, depth = [value], 0
    while level and depth <= MAX_DEPTH:
        inner: list[Any] = []
        for one in level:
            inner += one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()
        level, depth = inner, depth + 1
    return depth


def parse_yaml(text: str) -> Any:
    """Parse YAML within limits, which count what aliases stand for; ValueError with the line of a mistake."""
    if len(text) > MAX_YAML:
        raise ValueError(f"it has {len(text):,} characters, more than {MAX_YAML:,}")
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        _measure(node, {}, 0)
        return loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        place = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise ValueError(place + _on_a_line(error.problem or error.context)) from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except Exception as error:  # of many kinds, such as those of dates and numbers that are none
        raise ValueError(_on_a_line(error)) from None


def _on_a_line(message: object) -> str:
    """Return the message of a library on one line, without the long values that it may quote."""
    return " ".join(str(message).split())[:MAX_MESSAGE]


def _measure(node: yaml.Node, known: dict[int, tuple[int, int]], depth: int) -> tuple[int, int]:
    """Return the number of values in a node and their nesting, with its aliases written out; refuse too many.

    An alias of a node that contains it has no end: `depth` finds it.
    """
    if id(node) not in known:
        pairs = [] if isinstance(node, yaml.ScalarNode) else node.value
        parts = [part for pair in pairs for part in (pair if isinstance(pair, tuple) else (pair,))]
        if depth > MAX_DEPTH:
            raise ValueError("it is nested too deeply")
        sizes = [_measure(part, known, depth + 1) for part in parts]
        count, nesting = 1 + sum(size[0] for size in sizes), 1 + max((size[1] for size in sizes), default=0)
        if count > MAX_NODES or nesting > MAX_DEPTH:
            raise ValueError(
                f"it has more than {MAX_NODES:,} values or is nested too deeply, with its aliases"
            )
        known[id(node)] = count, nesting
    return known[id(node)]


# --- Files ----------------------------------------------------------------------------------------


def read_text(path: Path, limit: int = MAX_FILE, opener: Opener | None = None) -> str:
    """Return the text of a file; ValueError if it is longer than `limit` bytes or not UTF-8."""
    with open(path, "rb", opener=opener) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise ValueError(f"{path} has more than {limit:,} bytes: it is too large to be read")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text (byte {error.start + 1}): save it as UTF-8") from None


class LongLineError(ValueError):
    """A line is too long to be read into memory."""


def limited_lines(file: IO[AnyStr], name: str, limit: int = MAX_FILE) -> Iterator[AnyStr]:
    """Yield the lines of an open file; refuse a line that would fill the memory."""
    while line := file.readline(limit + 1):
        if len(line) > limit:
            raise LongLineError(f"{name} has a line of more than {limit:,} characters")
        yield line


def read_yaml(path: Path) -> Any:
    """Read a YAML file within limits."""
    try:
        return parse_yaml(read_text(path, MAX_YAML))
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"cannot read {path}: {error}") from None


def read_object(
    path: Path, format: str = "", what: str = "", advice: str = ADVICE, check_all: bool = True
) -> dict[str, Any]:
    """Read a file with one JSON object, whose key "format" must be `format` if there is one.

    The object is compared with its checksum, and with `check_all` the files that it lists with theirs; older
    files have none. If there is no such file, the error says that its folder holds no `what`.
    """
    return _read(path, format, what, advice, check_all)[0]


def _read(path: Path, format: str, what: str, advice: str, check_all: bool) -> tuple[dict[str, Any], str]:
    """Return the object in a file, and its checksum: "" if it has none."""
    try:
        body = parse_json(read_text(path, opener=regular))
    except OSError as error:
        reason = f"cannot read {path.name}: {error.strerror}"
        raise ValueError(f"{path.parent} holds no {what or path.name} ({reason})") from None
    except ValueError as error:
        raise Damaged(f"{path} is not JSON ({error}), it is damaged. {advice}") from None
    if not isinstance(body, dict):
        raise Damaged(f"{path} is not a JSON object, it is damaged. {advice}")
    if format and body.get("format") != format:
        actual = shown(body.get("format"))
        raise ValueError(f"{path} has format {actual}, this antiphon reads {format!r}. {advice}")
    checksum = str(body.get(CHECKSUM, ""))
    body = without_checksum(body, path, advice)
    if check_all:
        listed = vars(fields_of(ListedFiles, body, str(path)))
        check_files(path.parent, listed, advice=advice, doubtful="" if checksum else path.name)
    return body, checksum


@dataclass(frozen=True)
class ListedFiles:
    """The key of a JSON object that lists files with their checksums."""

    files: Mapping[str, str] = field(default_factory=dict)


def read_as(cls: type[T], path: Path, advice: str = "", check_all: bool = True) -> T:
    """Read a file with one JSON object that has the fields of a dataclass; see `read_object`.

    A field `sha256` gets the object's own checksum.
    """
    advice = advice or getattr(cls, "advice", ADVICE)
    names = getattr(cls, "format", ""), getattr(cls, "what", "")
    body, checksum = _read(path, *names, advice, check_all)
    return fields_of(cls, {**body, CHECKSUM: checksum}, str(path), advice)


def fields_of(cls: type[T], body: Any, where: str, advice: str = "") -> T:
    """Return a JSON object as a dataclass. `where` names the file, and the line if it has many objects."""
    try:
        value: T = checked(cls, body)
    except ValueError as error:
        advice = advice or getattr(cls, "advice", ADVICE)
        raise Damaged(f"{where} is damaged ({error}). {advice}") from None
    return value


def read_lines_as(cls: type[T], path: Path) -> Iterator[T]:
    """Yield the objects of a file of JSON lines, which have the fields of a dataclass."""
    advice = getattr(cls, "advice", ADVICE)
    with open(path, "rb", opener=regular) as file:
        for number, line in enumerate(limited_lines(file, str(path)), 1):
            yield fields_of(cls, parse_line(line, f"{path}:{number}", advice), f"{path}:{number}", advice)


def parse_line(line: str | bytes, where: str, advice: str = ADVICE) -> dict[str, Any]:
    """Parse a line that holds a JSON object; `where` names its file and its number."""
    try:
        body = parse_json(line)
    except ValueError as error:
        raise Damaged(f"{where} is not JSON ({error}), the file is damaged. {advice}") from None
    if not isinstance(body, dict):
        raise Damaged(f"{where} is not a JSON object, the file is damaged. {advice}")
    return body


def read_tensors(
    path: Path, advice: str = ADVICE, framework: str = "pt", device: str = "cpu"
) -> dict[str, Any]:
    """Read a safetensors file, in its order: as tensors of PyTorch ("pt") or as arrays of NumPy ("np")."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file as load_arrays

    try:
        open(path, "rb", opener=regular).close()
        if framework == "np":
            return load_arrays(path)
        from safetensors.torch import load_file as load_tensors  # the report works without torch

        return load_tensors(path, device=device)
    except (OSError, SafetensorError, ValueError) as error:
        raise Damaged(f"{path} is damaged ({error}). {advice}") from None
