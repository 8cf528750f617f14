"""Normalisation of reference and hypothesis before errors are counted. The scores say which steps were taken.

Two texts from different sources are compared; by default they stay as they are. The texts of a corpus are
normalised once, when they are imported, by the same steps (`data/importing/texts.py`).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields

from antiphon import config

APOSTROPHES = {"'", "’"}


@dataclass(frozen=True)
class Normalisation:
    """The steps, in the order in which they are taken. By default there are none, and a text stays as it is.

    nfc: Unicode's composed form, in which a letter and its accent are one character
    lower_case: no capitals
    strip_punctuation: every mark of Unicode's classes P becomes a space, except that an apostrophe inside a
        word becomes '; then single spaces. Symbols such as + and $ stay.
    collapse_spaces: single spaces between words, none around. Errors are the same with and without this step:
        words and characters are counted as if it was taken.

    >>> Normalisation(lower_case=True, strip_punctuation=True)("Don’t stop -- twenty-one!")
    "don't stop twenty one"
    """

    nfc: bool = False
    lower_case: bool = False
    strip_punctuation: bool = False
    collapse_spaces: bool = False

    @classmethod
    def of(cls, steps: str | Iterable[str]) -> Normalisation:
        """Return the normalisation with these steps.

        >>> Normalisation.of(["nfc", "lower_case"]).steps
        ('nfc', 'lower_case')
        """
        valid = [field.name for field in fields(cls)]
        chosen = [steps] if isinstance(steps, str) else list(steps)
        for step in chosen:
            if step not in valid:
                raise config.unknown(step, valid, "normalisation", "step")
        return cls(**dict.fromkeys(chosen, True))

    @property
    def steps(self) -> tuple[str, ...]:
        return tuple(step for step, taken in asdict(self).items() if taken)

    def __str__(self) -> str:
        return ", ".join(self.steps) or "as is"

    def __call__(self, text: str) -> str:
        return ([text] + [after for _, after in self.walk(text)])[-1]

    def walk(self, text: str, keep: str = "") -> Iterator[tuple[str, str]]:
        """Yield each step with the text after it. Punctuation marks in `keep` are not stripped."""
        if self.nfc:
            text = unicodedata.normalize("NFC", text)
            yield "nfc", text
        if self.lower_case:
            text = text.lower()
            # Lower-casing can separate a letter from its accent although a composed form exists.
            text = unicodedata.normalize("NFC", text) if self.nfc else text
            yield "lower_case", text
        if self.strip_punctuation:
            text = strip_punctuation(text, keep)
            yield "strip_punctuation", text
        if self.collapse_spaces:
            yield "collapse_spaces", " ".join(text.split())


def strip_punctuation(text: str, keep: str = "") -> str:
    """Replace punctuation by spaces, except the marks in `keep` and apostrophes inside words.

    >>> strip_punctuation("rock 'n' roll, o'clock; a.m.")
    "rock n roll o'clock a m"
    """
    characters = list(text)
    for position, mark in enumerate(text):
        if mark not in keep and unicodedata.category(mark).startswith("P"):
            around = text[position - 1 : position] + text[position + 1 : position + 2]
            is_inside = mark in APOSTROPHES and len(around) == 2 and around.isalnum()
            characters[position] = "'" if is_inside else " "
    return " ".join("".join(characters).split())
