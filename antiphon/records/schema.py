"""Values from outside, checked: numbers that are finite and not too large, and objects by a schema.

A schema is a dataclass: the keys of a JSON object must have the types of its annotations. Keys of fields with
defaults may be missing, unless the class variable `needs_all` is true. Keys that the schema does not have are
ignored, because later versions may write more. Messages name the key and quote no text of a file: it may be a
transcript.

>>> @dataclass(frozen=True)
... class Speaker:
...     name: str
...     num_utterances: Count = 0
>>> checked(Speaker, {"name": "ada", "num_utterances": 3})
Speaker(name='ada', num_utterances=3)
>>> checked(Speaker, {"name": "ada", "num_utterances": -1})
Traceback (most recent call last):
antiphon.records.schema.Mismatch: num_utterances: -1 is below 0
"""

from __future__ import annotations

import math
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from typing import Annotated, Any, TypeVar

NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
MAX_WHOLE = 1 << 63
MAX_SHOWN = 60  # characters of a value in a message
NAMES = {dict: "an object", list: "a list", str: "text", bool: "true or false", types.NoneType: "null"}

T = TypeVar("T")
Check = Callable[[Any], Any]


@dataclass(frozen=True)
class AtLeast:
    """The lowest value of a number, in the annotation of a field."""

    lowest: float


Count = Annotated[int, AtLeast(0)]
Amount = Annotated[float, AtLeast(0)]


class Mismatch(ValueError):
    """A value is not what the schema says; `keys` lead to it."""

    def __init__(self, problem: str, keys: tuple[str, ...] = ()) -> None:
        super().__init__(problem)
        self.problem, self.keys = problem, keys

    def __str__(self) -> str:
        path = ".".join(key[:MAX_SHOWN] for key in self.keys).replace(".[", "[")
        return f"{path}: {self.problem}" if path else self.problem

    def within(self, key: str) -> Mismatch:
        return Mismatch(self.problem, (key, *self.keys))


# --- Numbers --------------------------------------------------------------------------------------


def finite(value: Any) -> float:
    """Return a value as a float; ValueError if it is not a number, not finite, or too large for a float.

    >>> finite(3)
    3.0
    """
    if type(value) is not float and type(value) is not int:
        raise Mismatch(f"expected a number, not {kind_of_value(value)}")
    try:
        if math.isfinite(value):
            return float(value)
    except OverflowError:
        pass
    raise Mismatch(f"{shown(value)} is not a finite number")


def parse_number(text: str) -> float:
    """Return the finite number that a text holds.

    >>> parse_number("1e-3")
    0.001
    """
    try:
        return finite(float(text))
    except ValueError:
        raise Mismatch(f"{shown(text)} is not a finite number") from None


def whole(value: Any) -> int:
    """Return a value that is an integer of 64 bits; ValueError for all others."""
    if type(value) is not int:
        raise Mismatch(f"expected a whole number, not {kind_of_value(value)}")
    if not -MAX_WHOLE <= value < MAX_WHOLE:
        raise Mismatch(f"{shown(value)} is too large a number")
    return value


def number_of(value: Any, is_whole: bool, is_float: bool) -> float | None:
    """Return the number that a setting holds, if it may be whole or a float; None if it is no such number.

    An int is accepted for a float, but not a float for an int; bool is not a number here. YAML 1.1 reads 1e-3
    as text, because it has no dot.

    >>> number_of(3, False, True), number_of("1e-3", False, True), number_of(0.5, True, False)
    (3.0, 0.001, None)
    """
    if type(value) is int and is_whole:
        return whole(value)
    if type(value) in (int, float) and is_float:
        return finite(value)
    return parse_number(value) if is_float and type(value) is str and NUMBER.fullmatch(value) else None


def shown(value: Any) -> str:
    """Return a value as a message shows it: long ones are cut.

    >>> shown(10 ** 400), shown(0.5)
    ('a number of many digits', '0.5')
    """
    is_long = type(value) is int and value.bit_length() > 4 * MAX_SHOWN  # Python cannot write the longest
    text = "a number of many digits" if is_long else repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"


def kind_of_value(value: Any) -> str:
    """Return what a value is, without its contents, which may be private; numbers as they are."""
    return NAMES.get(type(value)) or shown(value)


# --- Objects --------------------------------------------------------------------------------------


def checked(kind: Any, value: Any) -> Any:
    """Return a value of JSON as the type of an annotation, such as a dataclass; `Mismatch` if it is another.

    Types are str, int, float, bool, Any, dataclasses, containers of them (dict, Mapping, list, tuple,
    Sequence), and each of them or None.
    """
    return _checker(kind)(value)


@cache
def _checker(kind: Any) -> Check:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return lambda value: value
    if origin is Annotated:
        return _bounded(_checker(args[0]), args[1].lowest)
    if origin in (typing.Union, types.UnionType):
        (inner,) = (_checker(arg) for arg in args if arg is not types.NoneType)
        return lambda value: None if value is None else inner(value)
    if is_dataclass(kind):
        return _object(kind)
    if origin in (dict, Mapping):
        return _mapping(_checker(args[1]))
    if origin in (list, tuple, Sequence):
        return _sequence(_checker(args[0]), tuple if origin is tuple else list)
    return {int: whole, float: finite}.get(kind) or _plain(kind)


def _bounded(inner: Check, lowest: float) -> Check:
    def check(value: Any) -> Any:
        if inner(value) < lowest:
            raise Mismatch(f"{shown(value)} is below {lowest:g}")
        return inner(value)

    return check


def _plain(kind: type) -> Check:
    assert kind in NAMES, f"{kind} is not a type of JSON"

    def check(value: Any) -> Any:
        if type(value) is not kind:
            raise Mismatch(f"expected {NAMES[kind]}, not {kind_of_value(value)}")
        return value

    return check


def _mapping(inner: Check) -> Check:
    def check(value: Any) -> Any:
        items = _plain(dict)(value).items()
        return {key: _check_part(inner, one, key) for key, one in items}

    return check


def _sequence(inner: Check, kind: type) -> Check:
    def check(value: Any) -> Any:
        return kind(_check_part(inner, one, f"[{i}]") for i, one in enumerate(_plain(list)(value)))

    return check


def _check_part(inner: Check, value: Any, key: str) -> Any:
    try:
        return inner(value)
    except Mismatch as error:
        raise error.within(key) from None


def _object(cls: Any) -> Check:
    """Return the check of a dataclass; it is fast, for a corpus has many utterances."""
    hints = typing.get_type_hints(cls, include_extras=True)
    needs_all = getattr(cls, "needs_all", False)
    parts = [
        (one.name, _checker(hints[one.name]), needs_all or one.default is one.default_factory is MISSING)
        for one in fields(cls)
    ]

    def check(value: Any) -> Any:
        if type(value) is not dict:
            raise Mismatch(f"expected an object, not {kind_of_value(value)}")
        found = {}
        for name, inner, is_required in parts:
            if name in value:
                try:
                    found[name] = inner(value[name])
                except Mismatch as error:
                    raise error.within(name) from None
            elif is_required:
                raise Mismatch("it is missing").within(name)
        try:
            return cls(**found)
        except ValueError as error:  # its own checks
            raise Mismatch(str(error)) from None

    return check
