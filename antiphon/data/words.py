"""Whole words as tokens, for language models: id 0 is the boundary, id 1 any word not in the vocabulary."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from antiphon.data.tokens import BOUNDARY, UNKNOWN, UNKNOWN_TEXT

FORMAT = "antiphon-words/1"
FILE = "words.json"


@dataclass(frozen=True)
class Words:
    """One token a word: id 2 is the first of the vocabulary.

    >>> Words(("go", "on")).encode("go on now")
    [2, 3, 1]
    """

    vocabulary: tuple[str, ...]

    @property
    def size(self) -> int:
        return 2 + len(self.vocabulary)

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {word: 2 + place for place, word in enumerate(self.vocabulary)}

    def encode(self, text: str) -> list[int]:
        return [self._ids.get(word, UNKNOWN) for word in text.split()]

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(
            UNKNOWN_TEXT if id == UNKNOWN else self.vocabulary[id - 2] for id in ids if id != BOUNDARY
        )

    def save(self, folder: str | Path) -> None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        text = json.dumps({"format": FORMAT, "words": self.vocabulary}, ensure_ascii=False)
        (Path(folder) / FILE).write_text(text, encoding="utf-8")


@dataclass(frozen=True)
class WordsConfig:
    """The most frequent words of the texts: at most `size` tokens, boundary and unknown among them."""

    size: int = 20_000

    def fit(self, texts: Iterable[str], alphabet: str | None) -> Words:
        counts = Counter(word for text in texts for word in text.split())
        if not counts:
            raise ValueError("no words to make tokens of: the texts are empty")
        ordered = sorted(counts, key=lambda word: (-counts[word], word))
        return Words(tuple(ordered[: self.size - 2]))


def load_words(folder: str | Path) -> Words:
    """The words saved in `folder`."""
    path = Path(folder) / FILE
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{folder} holds no words (cannot read {FILE}: {error})") from error
    if body.get("format") != FORMAT:
        raise ValueError(f"{path} has format {body.get('format')!r}, not {FORMAT!r}")
    return Words(tuple(body["words"]))
