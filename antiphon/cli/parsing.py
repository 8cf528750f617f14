"""Options that hold several values in one text: NAME=VALUE, and numbers with commas between them.

Every function takes the name of the option, for its error message, and its text or texts.
"""

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


def named_paths(option: str, texts: Sequence[str]) -> dict[str, Path]:
    """Read [NAME=]PATH; a path without a name is named by its last part.

    >>> named_paths("--lm", ["out/books.arpa", "own=lm"])
    {'books': PosixPath('out/books.arpa'), 'own': PosixPath('lm')}
    """
    named = [text if "=" in text else f"{Path(text).name.split('.')[0]}={text}" for text in texts]
    return {name: Path(path) for name, _, path in (text.partition("=") for text in named)}


def named_numbers(option: str, texts: Sequence[str], default: str = "") -> dict[str, float]:
    """Read NAME=NUMBER; if there is a default, NAME alone takes it.

    >>> named_numbers("--search", ["books", "words=0.5"], default="1")
    {'books': 1.0, 'words': 0.5}
    """
    values = {}
    for text in texts:
        name, equals, value = text.partition("=")
        try:
            values[name] = float(value if equals else default)
        except ValueError:
            example = f"{name or 'books'}=0.5"
            raise ValueError(f"{option} takes a name and a number, such as {example}, not {text!r}") from None
    return values


def numbers(option: str, text: str) -> tuple[float, ...]:
    """Read numbers with commas between them.

    >>> numbers("--alpha", "0.25,0.5"), numbers("--alpha", "")
    ((0.25, 0.5), ())
    """
    try:
        return tuple(float(part) for part in text.split(",")) if text else ()
    except ValueError:
        raise ValueError(f"{option} takes numbers such as 0.5 or 0.25,0.5, not {text!r}") from None


def whole_numbers(option: str, text: str) -> tuple[int, ...]:
    """Read whole numbers with commas between them.

    >>> whole_numbers("--rounds", "1,10")
    (1, 10)
    """
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"{option} takes whole numbers such as 1 or 1,2,5, not {text!r}") from None
