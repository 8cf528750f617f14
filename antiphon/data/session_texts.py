"""Texts of sessions: read, split into sentences, and written as transcripts.

A session is a file of plain text, or all lines of a .jsonl file that name it (fields session and text). Every
line of plain text ends a sentence, as on slides; `wrapped` text is joined paragraph by paragraph first.

A sentence has two forms. Its *spoken* form keeps capitals and commas for the voice, but no characters that an
engine could take for commands. Its *written* form, for training, is that of transcripts: lower case, hyphens
and dashes as spaces, no other punctuation but apostrophes within words. All its characters must be in the
corpus's alphabet and the model's tokens: a sentence with digits, for example, is skipped with its reason,
never changed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from antiphon.data.importing.candidates import Skipped
from antiphon.data.overlap import Forbidden
from antiphon.data.transcripts import (
    numbered_lines,
    spoken_form,
    strange_characters,
    text_fields,
    written_form,
)

LEAK = "in the test speech: shares a sequence of words with what the model is tested on"
# An end, closing marks, then space; not after a title or an initial.
ENDS = re.compile(r"[.!?…]+[\"'”’)\]]*\s+")
NO_END = re.compile(r"(?:\b(?:mr|mrs|ms|dr|st|prof|vs|no|e\.g|i\.e|etc)|\b[A-Za-z])\.$", re.IGNORECASE)
PAUSES = re.compile(r"[,;:—–]\s+")


@dataclass(frozen=True)
class Sentence:
    """A sentence for a voice, and as a transcript has it."""

    spoken: str
    written: str


@dataclass(frozen=True)
class SessionText:
    """A session's sentences, and those that were skipped, by their number."""

    name: str
    sentences: tuple[Sentence, ...]
    skipped: tuple[Skipped, ...] = ()

    @property
    def num_words(self) -> int:
        return sum(len(sentence.written.split()) for sentence in self.sentences)

    def without(self, forbidden: Forbidden) -> SessionText:
        """The text without the sentences that share sequences of words with forbidden texts."""
        touched = forbidden.touched([sentence.written for sentence in self.sentences])
        kept = tuple(one for index, one in enumerate(self.sentences) if index not in touched)
        dropped = (Skipped(f"kept sentence {index + 1}", self.name, LEAK) for index in sorted(touched))
        return replace(self, sentences=kept, skipped=(*self.skipped, *dropped))


@dataclass(frozen=True)
class TextRules:
    """How text is split into sentences; `holds` says whether the model has tokens for a sentence."""

    alphabet: str | None
    wrapped: bool = False
    max_words: int = 25  # longer sentences are cut, at a pause where there is one
    holds: Callable[[str], bool] = field(default=lambda written: True, compare=False)

    def __post_init__(self) -> None:
        if self.max_words < 1:
            raise ValueError(f"max_words must be at least 1, not {self.max_words}")

    def read(self, name: str, lines: Sequence[str]) -> SessionText:
        """The sentences of a session, without repetitions."""
        sentences: dict[str, Sentence] = {}
        skipped: list[Skipped] = []
        pieces = (
            piece for text in self._paragraphs(lines) for piece in split_sentences(text, self.max_words)
        )
        for number, piece in enumerate(pieces, 1):
            written = written_form(piece)
            if reason := self._reason(written):
                skipped.append(Skipped(f"sentence {number}", name, reason))
            else:
                sentences.setdefault(written, Sentence(spoken_form(piece), written))
        return SessionText(name, tuple(sentences.values()), tuple(skipped))

    def _paragraphs(self, lines: Sequence[str]) -> Iterator[str]:
        if not self.wrapped:
            yield from (line for line in lines if line.strip())
            return
        for paragraph in "\n".join(lines).split("\n\n"):
            if joined := " ".join(paragraph.split()):
                yield joined

    def _reason(self, written: str) -> str:
        """Why a sentence cannot be used; empty if it can."""
        if not written.strip("' "):
            return "nothing to say"
        if strange := strange_characters(written, self.alphabet):
            return f"characters outside the alphabet: {' '.join(strange)}"
        return "" if self.holds(written) else "characters that the model has no tokens for"


def split_sentences(text: str, max_words: int) -> Iterator[str]:
    """Sentences of a text, none longer than `max_words`.

    >>> list(split_sentences("Dr. Who came. He saw, as he used to, everything!", 5))
    ['Dr. Who came.', 'He saw,', 'as he used to, everything!']
    """
    begin = 0
    for end in ENDS.finditer(text):
        if not NO_END.search(text[begin : end.end()].rstrip()):
            yield from _cut(text[begin : end.end()].strip(), max_words)
            begin = end.end()
    yield from _cut(text[begin:].strip(), max_words)


def _cut(sentence: str, max_words: int) -> Iterator[str]:
    while len(sentence.split()) > max_words:
        words = [match.end() for match in re.finditer(r"\S+", sentence)]
        limit = words[max_words - 1]
        pauses = [match.end() for match in PAUSES.finditer(sentence) if match.start() < limit]
        at = pauses[-1] if pauses else limit
        yield sentence[:at].strip()
        sentence = sentence[at:].strip()
    if sentence:
        yield sentence


def read_session_texts(paths: Sequence[Path], rules: TextRules) -> list[SessionText]:
    """The sessions in files and folders of files, including sessions without a usable sentence."""
    if not paths:
        raise ValueError("no text was given: name a file for each session")
    lines: dict[str, list[str]] = {}
    for path in _files(paths):
        sessions = _rows(path) if ".jsonl" in path.suffixes else _plain(path)
        for name in sessions:
            if name in lines:
                raise ValueError(f"{path}: there is a session {name!r} already: give it another name")
        lines |= sessions
    return [rules.read(name, text) for name, text in lines.items()]


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            inside = sorted(p for p in path.iterdir() if p.is_file() and not p.name.startswith("."))
            if not inside:
                raise ValueError(f"the folder {path} holds no text")
            yield from inside
        elif path.is_file():
            yield path
        else:
            raise ValueError(f"there is no text {path}")


def _plain(path: Path) -> dict[str, list[str]]:
    """The lines of a file, with the blank lines, which separate paragraphs."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text ({error}): save it as plain text") from None
    return {path.stem: [line.strip() for line in text.splitlines()]}


def _rows(path: Path) -> dict[str, list[str]]:
    sessions: dict[str, list[str]] = {}
    for where, line in numbered_lines(path):
        name, text = text_fields(line, where, "session", "text")
        if not name:
            raise ValueError(f"{where}: the field 'session' is empty")
        sessions.setdefault(name, []).extend(text.splitlines())
    return sessions
