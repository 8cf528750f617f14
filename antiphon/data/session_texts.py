"""Texts of sessions: read, split into sentences, and written as transcripts.

A session is a file of plain text, or all lines of a .jsonl file with its name (fields session and text).
Every line of plain text ends a sentence, as on slides; `wrapped` text is joined paragraph by paragraph first.

A sentence has two forms. The *spoken* form keeps capitals and commas for the voice, but no characters that an
engine could take for commands. The *written* form, for training, is that of transcripts: lower case, hyphens
and dashes as spaces, no punctuation but apostrophes within words. All its characters must be in the corpus's
alphabet and the model's tokens. A sentence with digits, for example, is skipped with its reason, not changed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

from antiphon.data import transcripts
from antiphon.data.importing.candidates import Skipped

NGRAM = 8
MIN_WORDS = 4  # shorter utterances are too common to be a leak
LEAK = "in the test speech: shares a sequence of words with what the model is tested on"
# An end, closing marks, then space; not after a title or an initial.
ENDS = re.compile(r"[.!?…]+[\"'”’)\]]*\s+")
NO_END = re.compile(r"(?:\b(?:mr|mrs|ms|dr|st|prof|vs|no|e\.g|i\.e|etc)|\b[A-Za-z])\.$", re.IGNORECASE)
PAUSES = re.compile(r"[,;:—–]\s+")


@dataclass(frozen=True)
class ForbiddenSequences:
    """Sequences of words that a model is tested on, and must not be trained on.

    They are all sequences of 8 words of the texts, and shorter texts as a whole.

    >>> forbidden = ForbiddenSequences.of(["the sea was calm and the ship lay still at last"])
    >>> forbidden.overlaps(["it was late", "calm and the ship lay still at last they", "slept"])
    {1}
    """

    sequences: frozenset[tuple[str, ...]]

    @classmethod
    def of(cls, texts: Iterable[str], length: int = NGRAM) -> ForbiddenSequences:
        sequences: set[tuple[str, ...]] = set()
        for text in texts:
            words = tuple(text.split())
            if len(words) >= length:
                sequences.update(words[start : start + length] for start in range(len(words) - length + 1))
            elif len(words) >= MIN_WORDS:
                sequences.add(words)
        return cls(frozenset(sequences))

    def overlaps(self, sentences: Sequence[str]) -> set[int]:
        """Return the indices of sentences with words of a forbidden sequence, which may cross sentences."""
        words = [(word, index) for index, sentence in enumerate(sentences) for word in sentence.split()]
        overlapping: set[int] = set()
        for length in {len(sequence) for sequence in self.sequences}:
            for start in range(len(words) - length + 1):
                part = words[start : start + length]
                if tuple(word for word, _ in part) in self.sequences:
                    overlapping.update(index for _, index in part)
        return overlapping


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

    def without(self, forbidden: ForbiddenSequences) -> SessionText:
        """Remove the sentences that overlap with forbidden sequences of words."""
        overlaps = forbidden.overlaps([sentence.written for sentence in self.sentences])
        sentences = tuple(one for index, one in enumerate(self.sentences) if index not in overlaps)
        skipped = (Skipped(f"kept sentence {index + 1}", self.name, LEAK) for index in sorted(overlaps))
        return replace(self, sentences=sentences, skipped=(*self.skipped, *skipped))


@dataclass(frozen=True)
class TextRules:
    """Rules to split text into sentences; `holds` decides whether the model has tokens for a sentence."""

    alphabet: str | None
    wrapped: bool = False
    max_words: int = 25  # longer sentences are cut, at a pause where there is one
    holds: Callable[[str], bool] = field(default=lambda written: True, compare=False)

    def __post_init__(self) -> None:
        if self.max_words < 1:
            raise ValueError(f"max_words must be at least 1, not {self.max_words}")

    def read(self, name: str, lines: Sequence[str]) -> SessionText:
        """Return the sentences of a session, without repetitions."""
        sentences: dict[str, Sentence] = {}
        skipped: list[Skipped] = []
        texts = "\n".join(lines).split("\n\n") if self.wrapped else lines
        pieces = (split_sentences(" ".join(text.split()), self.max_words) for text in texts)
        for number, piece in enumerate(chain.from_iterable(pieces), 1):
            written = transcripts.written_form(piece)
            if reason := self._reason(written):
                skipped.append(Skipped(f"sentence {number}", name, reason))
            else:
                sentences.setdefault(written, Sentence(transcripts.spoken_form(piece), written))
        return SessionText(name, tuple(sentences.values()), tuple(skipped))

    def _reason(self, written: str) -> str:
        """Return why a sentence cannot be used; empty if it can."""
        if not written.strip("' "):
            return "nothing to say"
        if strange := transcripts.strange_characters(written, self.alphabet):
            return f"characters outside the alphabet: {' '.join(strange)}"
        return "" if self.holds(written) else "characters that the model has no tokens for"


def split_sentences(text: str, max_words: int) -> Iterator[str]:
    """Yield the sentences of a text, cut into pieces of at most `max_words` words.

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
    """Read the sessions in files and folders of files, including sessions without a usable sentence."""
    if not paths:
        raise ValueError("no text was given: name a file for each session")
    lines: dict[str, list[str]] = {}
    for path in _files(paths):
        sessions = _read_rows(path) if ".jsonl" in path.suffixes else _read_plain(path)
        if repeated := sorted(sessions.keys() & lines.keys()):
            raise ValueError(f"{path}: the session {repeated[0]!r} exists already: give it another name")
        lines |= sessions
    return [rules.read(name, text) for name, text in lines.items()]


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            files = sorted(p for p in path.iterdir() if p.is_file() and not p.name.startswith("."))
            if not files:
                raise ValueError(f"the folder {path} holds no text")
            yield from files
        elif path.is_file():
            yield path
        else:
            raise ValueError(f"the text {path} does not exist")


def _read_plain(path: Path) -> dict[str, list[str]]:
    """Return the lines of a file, with the blank lines, which separate paragraphs."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text ({error}): save it as plain text") from None
    return {path.stem: [line.strip() for line in text.splitlines()]}


def _read_rows(path: Path) -> dict[str, list[str]]:
    sessions: dict[str, list[str]] = {}
    for where, line in transcripts.numbered_lines(path):
        name, text = transcripts.text_fields(line, where, "session", "text")
        if not name:
            raise ValueError(f"{where}: the field 'session' is empty")
        sessions.setdefault(name, []).extend(text.splitlines())
    return sessions
