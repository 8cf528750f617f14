"""Transcripts brought to one form before anything is counted or trained on them."""

from __future__ import annotations

import unicodedata

ALPHABET = "abcdefghijklmnopqrstuvwxyz' "


def normalise(text: str, lowercase: bool = True) -> str:
    """Unicode NFC, lower case, single spaces. Doing it twice changes nothing.

    >>> normalise("  Don't   STOP\\n")
    "don't stop"
    """
    text = unicodedata.normalize("NFC", text)
    if lowercase:
        # Lower-casing can leave a letter and its accent apart that have a form together.
        text = unicodedata.normalize("NFC", text.lower())
    return " ".join(text.split())


def strange_characters(text: str, alphabet: str | None) -> list[str]:
    """The characters of a text that are not in the alphabet, sorted. Without an alphabet, none.

    >>> strange_characters("zwölf 12", "abcdefghijklmnopqrstuvwxyz ")
    ['1', '2', 'ö']
    """
    return [] if alphabet is None else sorted(set(text) - set(alphabet))
