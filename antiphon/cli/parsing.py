"""Options that hold several values in one text: NAME=VALUE, and numbers with commas between them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def pairs(option: str, texts: Sequence[str]) -> dict[str, str]:
    """Read KEY=VALUE.

    >>> pairs("--where", ["tar=core.tar"])
    {'tar': 'core.tar'}
    """
    parts = [text.partition("=") for text in texts]
    for text, (key, equals, value) in zip(texts, parts, strict=True):
        if not (key and equals and value):
            raise ValueError(f"{option} takes KEY=VALUE, not {text!r}")
    return {key: value for key, _, value in parts}


def named_paths(texts: Sequence[str]) -> dict[str, Path]:
    """Read [NAME=]PATH; a path without a name is named by its last part.

    >>> named_paths(["out/books.arpa", "own=lm"])
    {'books': PosixPath('out/books.arpa'), 'own': PosixPath('lm')}
    """
    paths = {}
    for text in texts:
        name, equals, path = text.partition("=")
        path = path if equals else text
        paths[name if equals else Path(path).name.split(".")[0]] = Path(path)
    return paths


def named_numbers(option: str, texts: Sequence[str], default: str = "") -> dict[str, float]:
    """Read NAME=NUMBER; where there is a default, NAME alone takes it.

    >>> named_numbers("--search", ["books", "words=0.5"], default="1")
    {'books': 1.0, 'words': 0.5}
    """
    numbers = {}
    for text in texts:
        name, equals, value = text.partition("=")
        try:
            numbers[name] = float(value if equals else default)
        except ValueError:
            raise ValueError(
                f"{option} takes a name and a number, such as {name or 'books'}=0.5, not {text!r}"
            ) from None
    return numbers


def numbers(option: str, text: str) -> tuple[float, ...]:
    """Read numbers with commas between them.

    >>> numbers("--alpha", "0.25,0.5")
    (0.25, 0.5)
    """
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"{option} takes numbers such as 0.5 or 0.25,0.5, not {text!r}") from None


def whole_numbers(option: str, text: str) -> tuple[int, ...]:
    """Read whole numbers with commas between them.

    >>> whole_numbers("--rounds", "1,10")
    (1, 10)
    """
    try:
        parts = [float(part) for part in text.split(",")]
    except ValueError:
        parts = [0.5]
    if any(part != int(part) for part in parts):
        raise ValueError(f"{option} takes whole numbers such as 1 or 1,2,5, not {text!r}")
    return tuple(int(part) for part in parts)


def fractions(option: str, text: str) -> tuple[float, float, float] | None:
    """Read three numbers with commas between them; None if there is no text."""
    if not text:
        return None
    try:
        first, second, third = (float(part) for part in text.split(","))
    except ValueError as error:
        raise ValueError(f"{option} takes three fractions such as 0.8,0.1,0.1, not {text!r}") from error
    return first, second, third
