"""What is done to reference and hypothesis before errors are counted: said in full, and kept with the scores.

A corpus is normalised once when it is imported (`data/transcripts.py`); this is about two texts that were
written by different hands, and by default nothing is done to them.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from antiphon import config

APOSTROPHES = {"'", "’"}


@dataclass(frozen=True)
class Normalisation:
    """Steps in the order they are taken; none of them is the default, and leaves a text as it is.

    nfc: Unicode's composed form, a letter and its accent as one character
    lower_case: no capitals
    strip_punctuation: every mark of Unicode's classes P becomes a space, but an apostrophe inside a word
        stays (and becomes '); then single spaces. Symbols such as + and $ stay.
    collapse_spaces: single spaces between words, none around. Words are parted at any white space anyway:
        this matters to characters.

    >>> Normalisation(lower_case=True, strip_punctuation=True)("Don’t stop -- twenty-one!")
    "don't stop twenty one"
    """

    nfc: bool = False
    lower_case: bool = False
    strip_punctuation: bool = False
    collapse_spaces: bool = False

    @classmethod
    def of(cls, steps: Iterable[str]) -> Normalisation:
        """The steps of these names.

        >>> Normalisation.of(["nfc", "lower_case"]).steps
        ('nfc', 'lower_case')
        """
        valid = [field.name for field in fields(cls)]
        chosen = list(steps)
        for step in chosen:
            if step not in valid:
                raise config.unknown(step, valid, "normalisation", "step")
        return cls(**dict.fromkeys(chosen, True))

    @classmethod
    def recorded(cls, scores: Mapping[str, Any]) -> Normalisation:
        """What the scores of a scores.json were counted after; older ones, that do not say, after nothing."""
        return cls.of(step for step, taken in scores.get("normalisation", {}).items() if taken)

    @property
    def steps(self) -> tuple[str, ...]:
        return tuple(step for step, taken in asdict(self).items() if taken)

    def __str__(self) -> str:
        return ", ".join(self.steps) or "as is"

    def __call__(self, text: str) -> str:
        if self.nfc:
            text = unicodedata.normalize("NFC", text)
        if self.lower_case:
            text = text.lower()
            # Lower-casing can leave a letter and its accent apart that have a form together.
            text = unicodedata.normalize("NFC", text) if self.nfc else text
        if self.strip_punctuation:
            text = without_punctuation(text)
        return " ".join(text.split()) if self.collapse_spaces else text


def without_punctuation(text: str) -> str:
    """
    >>> without_punctuation("rock 'n' roll, o'clock; a.m.")
    "rock n roll o'clock a m"
    """
    kept = []
    for place, mark in enumerate(text):
        if not unicodedata.category(mark).startswith("P"):
            kept.append(mark)
            continue
        around = text[place - 1 : place] + text[place + 1 : place + 2]
        kept.append("'" if mark in APOSTROPHES and len(around) == 2 and around.isalnum() else " ")
    return " ".join("".join(kept).split())
