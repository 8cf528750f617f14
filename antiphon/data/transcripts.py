"""Forms of text, alphabets, and files of text.

Transcripts of a corpus are normalised once, when they are imported (`normalise`). A sentence of other text
has two forms: one for a voice to speak (`spoken_form`), and one as a transcript has it (`written_form`).

Alphabets have letters in lower case and in Unicode's composed form, as the import writes texts. An apostrophe
is part of an alphabet if it stands inside words of the language. Languages whose lower case needs more than
`str.lower` (Turkish) are not here.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from antiphon.records.reading import MAX_LINE, LongLineError, Opener, limited_lines, parse_json
from antiphon.scoring.normalisation import Normalisation

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
APOSTROPHES = str.maketrans(dict.fromkeys("’‘ʼ`´", "'"))
DASHES = re.compile(r"[-‐‑‒–—―/_]")
DROPPED = re.compile(r"[^\w\s'$%&@#+=€£°§]|_", re.UNICODE)
CASELESS = Normalisation(nfc=True, lower_case=True, collapse_spaces=True)
NOT_SPOKEN = re.compile(r"[^\w\s.,;:!?'\"()-]", re.UNICODE)


class DamagedFileError(ValueError):
    """The rest of a file of text cannot be read."""


def normalise(text: str) -> str:
    """Return text in Unicode NFC, lower case, with single spaces. Doing it twice changes nothing.

    >>> normalise("  Don't   STOP\\n")
    "don't stop"
    """
    return CASELESS(text)


def written_form(sentence: str) -> str:
    """Write a sentence as a transcript. Characters that transcripts do not have stay, for a later check.

    >>> written_form("“Don’t stop,” she said – twenty-one of us!")
    "don't stop she said twenty one of us"
    """
    text = DROPPED.sub(" ", DASHES.sub(" ", sentence.translate(APOSTROPHES)))
    return normalise(" ".join(word.strip("'") for word in text.split()))


def spoken_form(sentence: str) -> str:
    """Write a sentence for a voice, without characters that are neither words nor pauses."""
    return " ".join(NOT_SPOKEN.sub(" ", sentence.translate(APOSTROPHES)).split())


def strange_characters(text: str, alphabet: str | None) -> list[str]:
    """Return the characters of a text that are not in the alphabet, sorted. Without an alphabet, none.

    >>> strange_characters("zwölf 12", "abcdefghijklmnopqrstuvwxyz ")
    ['1', '2', 'ö']
    """
    return [] if alphabet is None else sorted(set(text) - set(alphabet))


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


def numbered_lines(path: Path, opener: Opener | None = None) -> Iterator[tuple[str, str]]:
    """Yield the lines of a text file, plain or .gz, each with its location ("text:3"), without blank lines.

    Bytes that are not UTF-8 become surrogates: see `is_utf8`. DamagedFileError if it cannot be read on.
    """
    encoding: Any = {"encoding": "utf-8-sig", "errors": "surrogateescape", "newline": "\n"}
    with (
        open(path, "rb", opener=opener) as raw,
        gzip.open(raw, "rt", **encoding) if path.suffix == ".gz" else TextIOWrapper(raw, **encoding) as file,
    ):
        try:
            for number, line in enumerate(limited_lines(file, path.name, MAX_LINE), 1):
                if line.strip():
                    yield f"{path.name}:{number}", line.strip()
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise DamagedFileError(f"{path} is damaged: it cannot be unpacked to its end ({error})") from None
        except LongLineError as error:
            raise DamagedFileError(f"{path} is damaged: {error}") from None


def is_utf8(text: str) -> bool:
    """Return whether a text was UTF-8 in its file: it holds no surrogates."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def text_fields(line: str, where: str, *names: str) -> list[str]:
    """Return the values of a JSON object that must have these fields, all of them text."""
    try:
        row = parse_json(line, is_finite=False)
        values = [row[name] for name in names]
    except (ValueError, KeyError, TypeError):
        values = [None]
    if not all(isinstance(value, str) for value in values):
        fields = "the fields" if len(names) > 1 else "a field"
        raise ValueError(f"{where}: not an object with {fields} {' and '.join(map(repr, names))}")
    return values


def read_sentences(path: str | Path) -> Iterator[str]:
    """Yield the normalised sentences of a file, plain or .gz, one per line.

    In a line with tabs, the sentence is after the last tab; in a .jsonl file, it is the field "text".
    """
    path = Path(path)
    is_json = ".jsonl" in path.suffixes
    for where, line in numbered_lines(path):
        text = normalise(text_fields(line, where, "text")[0] if is_json else line.rpartition("\t")[2])
        if not is_utf8(text):
            raise ValueError(f"{where}: not UTF-8 text")
        if text:
            yield text
