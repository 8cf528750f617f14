"""Tokens: the letters of the server's texts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from antiphon.data.tokens import UNKNOWN, UNKNOWN_TEXT, write_tokens


@dataclass(frozen=True)
class Letters:
    letters: str

    @property
    def size(self) -> int:
        return 2 + len(self.letters)

    def encode(self, text: str) -> list[int]:
        return [2 + self.letters.index(letter) if letter in self.letters else UNKNOWN for letter in text]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(UNKNOWN_TEXT if id == UNKNOWN else self.letters[id - 2] for id in ids if id != 0)

    def save(self, folder: str | Path) -> None:
        write_tokens(Path(folder), {"kind": "extension.letters:LettersConfig", "letters": self.letters})


@dataclass(frozen=True)
class LettersConfig:
    def fit(self, texts: Iterable[str], alphabet: str | None) -> Letters:
        return Letters("".join(sorted(set("".join(texts)))))

    @staticmethod
    def load(folder: Path, about: Mapping[str, Any]) -> Letters:
        return Letters(about["letters"])
