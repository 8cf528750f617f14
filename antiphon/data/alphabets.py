"""Alphabets: the letters of some languages, and the characters that a corpus has.

Letters are in lower case and in Unicode's composed form, as the import writes texts. An apostrophe is part of
an alphabet if it stands inside words of the language. Languages whose lower case needs more than
`str.lower` (Turkish) are not here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

LATIN = "abcdefghijklmnopqrstuvwxyz"
ALPHABETS = {
    "en": LATIN + "' ",
    "cs": LATIN + "áčďéěíňóřšťúůýž ",
    "da": LATIN + "åæéø ",
    "de": LATIN + "äöüß ",
    "el": "αβγδεζηθικλμνξοπρσςτυφχψωάέήίόύώϊϋΐΰ ",
    "es": LATIN + "áéíñóúü ",
    "fi": LATIN + "åäöšž ",
    "fr": LATIN + "àâæçèéêëîïôùûüÿœ' ",
    "hu": LATIN + "áéíóöőúüű ",
    "it": LATIN + "àèéìíîòóùú' ",
    "nb": LATIN + "åæøàéèêóòô ",
    "nl": LATIN + "áäèéëíïóöúü' ",
    "pl": LATIN + "ąćęłńóśźż ",
    "pt": LATIN + "áàâãçéêíóôõúü ",
    "ro": LATIN + "ăâîșț ",
    "ru": "абвгдежзийклмнопрстуфхцчшщъыьэюяё ",
    "sv": LATIN + "åäöàé ",
    "uk": "абвгґдеєжзиіїйклмнопрстуфхцчшщьюя' ",
}

RARE_COUNT, RARE_SHARE = 5, 1e-4


def characters_of(texts: Iterable[str]) -> Counter[str]:
    """Count the characters of texts; the space is always one of them.

    >>> sorted(characters_of(["ja", "aj"]).items())
    [(' ', 0), ('a', 2), ('j', 2)]
    """
    counts: Counter[str] = Counter({" ": 0})
    for text in texts:
        counts.update(text)
    return counts


def rare_characters(counts: Counter[str]) -> dict[str, int]:
    """Return characters that may be typos, with their counts, rarest first.

    They occur fewer than 5 times, or less than once in 10,000 characters.

    >>> rare_characters(Counter({"a": 90_000, "b": 5, "ø": 1}))
    {'ø': 1, 'b': 5}
    """
    threshold = max(RARE_COUNT, RARE_SHARE * counts.total())
    rare = {character: count for character, count in counts.items() if count < threshold and character != " "}
    return dict(sorted(rare.items(), key=lambda item: (item[1], item[0])))
