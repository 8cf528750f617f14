"""Text for language models, a sentence a line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from antiphon.data.candidates import numbered_lines
from antiphon.data.text import normalise


def read_sentences(path: str | Path) -> Iterator[str]:
    """Sentences of a file, plain or .gz, in one form (`normalise`).

    Of a line with tabs, what stands after the last; of an object in .jsonl, its field "text".
    """
    path = Path(path)
    is_json = ".jsonl" in path.suffixes
    try:
        for where, line in numbered_lines(path):
            text = normalise(_text_field(line, where) if is_json else line.rpartition("\t")[2])
            if any("\ud800" <= character <= "\udfff" for character in text):
                raise ValueError(f"{where}: not UTF-8 text")
            if text:
                yield text
    except EOFError as error:
        raise ValueError(f"{path} is damaged: it cannot be unpacked to its end ({error})") from error


def _text_field(line: str, where: str) -> str:
    try:
        text = json.loads(line)["text"]
    except (ValueError, KeyError, TypeError):
        text = None
    if not isinstance(text, str):
        raise ValueError(f"{where}: not an object with a field 'text'")
    return text
