"""Transcripts for NIST sclite: one `text (speaker-utterance)` per line.

For sclite, the speaker is everything before the first `-` or `_`, and parentheses, braces, `@` and a leading
`;;` have a special meaning. These characters are percent-encoded where sclite would misread them, in
reference and hypothesis alike. So words still match, and `read_trn` returns what `write_trn` was given.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import unquote

from antiphon.records.reading import read_text

Row = tuple[str, str, str]  # text, speaker, utterance id

_LINE = re.compile(r"(?:(.*) )?\(([^-_()\s]+)-([^()\s]+)\)")


def write_trn(path: Path, rows: Iterable[Row]) -> None:
    """Write (text, speaker, utterance id) rows in the order given."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for text, speaker, utterance in rows:
            file.write(format_line(text, speaker, utterance) + "\n")


def read_trn(path: Path) -> list[Row]:
    """Read the rows of a file that `write_trn` wrote, or of any file with ids `speaker-utterance`."""
    rows: list[Row] = []
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if not line or line.startswith(";;"):
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise ValueError(f"{path}: line {number} does not end in (speaker-utterance)")
        text, speaker, utterance = (unquote(part or "") for part in match.groups())
        rows.append((text.strip(), speaker, utterance))
    return rows


def format_line(text: str, speaker: str, utterance: str) -> str:
    """Return one line, without its newline.

    >>> format_line("the cat sat", "84", "84-121123-0001")
    'the cat sat (84-84-121123-0001)'
    >>> format_line("", "mary_ann", "u(1)")
    '(mary%5Fann-u%281%29)'
    """
    if not speaker or not utterance:
        raise ValueError(
            f"a transcript needs a speaker and an utterance id, not {speaker!r} and {utterance!r}"
        )
    words = [_encode(r"@" if word == "@" else r"[(){}%]", word) for word in text.split()]
    if words and words[0].startswith(";;"):
        words[0] = "%3B" + words[0][1:]
    speaker, utterance = _encode(r"[-_()%\s]", speaker), _encode(r"[()%\s]", utterance)
    return " ".join([*words, f"({speaker}-{utterance})"])


def _encode(unsafe: str, text: str) -> str:
    return re.sub(unsafe, lambda match: "".join(f"%{byte:02X}" for byte in match[0].encode()), text)
