"""Word and character error rates, split into substitutions, deletions and insertions.

Words are separated by white space. The characters of a text are those of its words with one space between
two words. This is what sclite counts, and what jiwer counts after its RemoveMultipleSpaces and Strip.

Many alignments have the smallest distance; they differ in their split. This one is the split of rapidfuzz and
jiwer: common ends are cut off; then, from the end backwards, a deletion is preferred to an insertion, and an
insertion to a substitution or match.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from operator import add
from typing import ClassVar

import numpy as np
from rapidfuzz.distance.Levenshtein import distance, editops
from rapidfuzz.process import cdist

from antiphon.records.schema import Count


class Edit(StrEnum):
    """What happened to a token."""

    MATCH = "match"
    SUBSTITUTION = "substitution"
    DELETION = "deletion"
    INSERTION = "insertion"


Pair = tuple[Edit, str | None, str | None]  # a token of the reference and one of the hypothesis
Edits = list[tuple[Edit, int, int]]  # edit, position in the reference, position in the hypothesis; no matches


@dataclass(frozen=True)
class Errors:
    """The number of edits that turn a reference of `length` tokens into a hypothesis; `+` pools utterances.

    >>> (word_errors("the cat sat", "a cat") + word_errors("yes", "yes")).rate
    0.5
    """

    substitutions: Count = 0
    deletions: Count = 0
    insertions: Count = 0
    length: Count = 0
    needs_all: ClassVar = True  # a file has all of them

    @classmethod
    def count(cls, edits: Iterable[Edit], length: int) -> Errors:
        counts = Counter(edits)
        return cls(counts[Edit.SUBSTITUTION], counts[Edit.DELETION], counts[Edit.INSERTION], length)

    def __add__(self, other: Errors) -> Errors:
        return Errors(*map(add, vars(self).values(), vars(other).values()))

    @property
    def total(self) -> int:
        return self.substitutions + self.deletions + self.insertions

    @property
    def rate(self) -> float:
        """Errors per token of the reference; infinite if there are errors and the reference is empty."""
        if self.length:
            return self.total / self.length
        return float("inf") if self.total else 0.0


@dataclass(frozen=True)
class Tally:
    """Errors in words and in characters over utterances; `+` pools utterances."""

    words: Errors = Errors()
    characters: Errors = Errors()
    num_utterances: Count = 0
    needs_all: ClassVar = True

    @classmethod
    def of(cls, reference: str, hypothesis: str) -> Tally:
        """Count the errors of one utterance."""
        return cls(word_errors(reference, hypothesis), character_errors(reference, hypothesis), 1)

    def __add__(self, other: Tally) -> Tally:
        num_utterances = self.num_utterances + other.num_utterances
        return Tally(self.words + other.words, self.characters + other.characters, num_utterances)


def word_errors(reference: str, hypothesis: str) -> Errors:
    """Count errors in words, which are separated by white space."""
    return token_errors(reference.split(), hypothesis.split())


def character_errors(reference: str, hypothesis: str) -> Errors:
    """Count errors in characters. There is one space between two words, and none around them, in both texts.

    So a text has the same errors before and after it is written to a file of transcripts.

    >>> character_errors("a cat", " a  bat ")
    Errors(substitutions=1, deletions=0, insertions=0, length=5)
    """
    return token_errors(*(" ".join(text.split()) for text in (reference, hypothesis)))


def word_distances(texts: Sequence[str]) -> np.ndarray:
    """Return the word-level edit distance between each two texts: [n, n].

    >>> word_distances(["a cat sat", "the cat sat", "the cat"]).tolist()
    [[0, 1, 2], [1, 0, 1], [2, 1, 0]]
    """
    words = [text.split() for text in texts]
    return cdist(words, words, scorer=distance, dtype=np.int32)


def token_errors(reference: Sequence[str], hypothesis: Sequence[str]) -> Errors:
    return Errors.count((edit for edit, _, _ in find_edits(reference, hypothesis)), len(reference))


def alignment(reference: Sequence[str], hypothesis: Sequence[str]) -> list[Pair]:
    """Return all tokens of both, side by side; None is opposite a token that was deleted or inserted.

    >>> [(str(edit), *pair) for edit, *pair in alignment("the cat sat".split(), "a cat".split())]
    [('substitution', 'the', 'a'), ('match', 'cat', 'cat'), ('deletion', 'sat', None)]
    """
    rows: list[Pair] = []
    done = 0  # tokens of the reference already in rows
    for edit, position, other in find_edits(reference, hypothesis):
        rows += [(Edit.MATCH, token, token) for token in reference[done:position]]
        said = None if edit is Edit.INSERTION else reference[position]
        heard = None if edit is Edit.DELETION else hypothesis[other]
        rows.append((edit, said, heard))
        done = position if said is None else position + 1
    return rows + [(Edit.MATCH, token, token) for token in reference[done:]]


def find_edits(reference: Sequence[str], hypothesis: Sequence[str]) -> Edits:
    tags = {"replace": Edit.SUBSTITUTION, "delete": Edit.DELETION, "insert": Edit.INSERTION}
    return [(tags[edit.tag], edit.src_pos, edit.dest_pos) for edit in editops(reference, hypothesis)]
