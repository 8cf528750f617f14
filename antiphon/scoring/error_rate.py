"""Word and character error rates, split into substitutions, deletions and insertions.

Many alignments share the smallest distance and differ in their split. This one is rapidfuzz's (and so
jiwer's): common ends are cut off, then, walking back from the end, a deletion is preferred to an
insertion and that to a substitution or match. Without rapidfuzz the same split is computed here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

import numpy as np

try:
    from rapidfuzz.distance.Levenshtein import editops
except ImportError:  # it is not on every machine that trains
    editops = None  # type: ignore[assignment]


class Edit(StrEnum):
    """What became of a token of the reference."""

    MATCH = "match"
    SUBSTITUTION = "substitution"
    DELETION = "deletion"
    INSERTION = "insertion"


@dataclass(frozen=True)
class Errors:
    """Edits that turn a reference of `length` tokens into a hypothesis; `+` pools utterances.

    >>> (word_errors("the cat sat", "a cat") + word_errors("yes", "yes")).rate
    0.5
    """

    substitutions: int = 0
    deletions: int = 0
    insertions: int = 0
    length: int = 0

    @classmethod
    def count(cls, edits: Iterable[Edit], length: int) -> Errors:
        counts = Counter(edits)
        return cls(counts[Edit.SUBSTITUTION], counts[Edit.DELETION], counts[Edit.INSERTION], length)

    def __add__(self, other: Errors) -> Errors:
        return Errors(
            self.substitutions + other.substitutions,
            self.deletions + other.deletions,
            self.insertions + other.insertions,
            self.length + other.length,
        )

    @property
    def total(self) -> int:
        return self.substitutions + self.deletions + self.insertions

    @property
    def rate(self) -> float:
        """Errors per token of the reference; infinite where words were heard and nothing was said."""
        if self.length == 0:
            return float("inf") if self.total else 0.0
        return self.total / self.length


@dataclass(frozen=True)
class Tally:
    """Errors in words and in characters over utterances; `+` pools."""

    words: Errors = Errors()
    characters: Errors = Errors()
    num_utterances: int = 0

    @classmethod
    def of(cls, reference: str, hypothesis: str) -> Tally:
        """One utterance."""
        return cls(word_errors(reference, hypothesis), character_errors(reference, hypothesis), 1)

    @classmethod
    def from_dict(cls, scores: Mapping[str, Any]) -> Tally:
        """The counts in a scores.json, of all or of one speaker or session."""
        kinds = [field.name for field in fields(Errors)]
        words, characters = (
            Errors(*(scores[unit][kind] for kind in kinds)) for unit in ("words", "characters")
        )
        return cls(words, characters, int(scores["num_utterances"]))

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.words + other.words,
            self.characters + other.characters,
            self.num_utterances + other.num_utterances,
        )


Edits = list[tuple[Edit, int, int]]  # without matches: what, place in the reference, place in the hypothesis


def word_errors(reference: str, hypothesis: str) -> Errors:
    """Errors in words, which white space parts."""
    return token_errors(reference.split(), hypothesis.split())


def character_errors(reference: str, hypothesis: str) -> Errors:
    """Errors in characters, spaces among them."""
    return token_errors(reference, hypothesis)


def word_distances(texts: Sequence[str]) -> np.ndarray:
    """Words that must be changed, removed or added to get from each text to each other: [n, n].

    >>> word_distances(["a cat sat", "the cat sat", "the cat"]).tolist()
    [[0, 1, 2], [1, 0, 1], [2, 1, 0]]
    """
    if editops is None:
        return np.array([[word_errors(one, other).total for other in texts] for one in texts])
    from rapidfuzz.distance.Levenshtein import distance
    from rapidfuzz.process import cdist

    words = [text.split() for text in texts]
    return cdist(words, words, scorer=distance, dtype=np.int32)


def token_errors(reference: Sequence[str], hypothesis: Sequence[str]) -> Errors:
    return Errors.count((edit for edit, _, _ in find_edits(reference, hypothesis)), len(reference))


def alignment(
    reference: Sequence[str], hypothesis: Sequence[str]
) -> list[tuple[Edit, str | None, str | None]]:
    """Every token of both, side by side; None faces a token that was deleted or inserted.

    >>> [(str(edit), *pair) for edit, *pair in alignment("the cat sat".split(), "a cat".split())]
    [('substitution', 'the', 'a'), ('match', 'cat', 'cat'), ('deletion', 'sat', None)]
    """
    rows: list[tuple[Edit, str | None, str | None]] = []
    done = 0  # tokens of the reference already in rows

    def add_matches(until: int) -> None:
        rows.extend((Edit.MATCH, token, token) for token in reference[done:until])

    for edit, place, other in find_edits(reference, hypothesis):
        add_matches(place)
        said = None if edit is Edit.INSERTION else reference[place]
        heard = None if edit is Edit.DELETION else hypothesis[other]
        rows.append((edit, said, heard))
        done = place if said is None else place + 1
    add_matches(len(reference))
    return rows


def find_edits(reference: Sequence[str], hypothesis: Sequence[str]) -> Edits:
    if editops is None:
        return own_edits(reference, hypothesis)
    return [(_TAGS[edit.tag], edit.src_pos, edit.dest_pos) for edit in editops(reference, hypothesis)]


_TAGS = {"replace": Edit.SUBSTITUTION, "delete": Edit.DELETION, "insert": Edit.INSERTION}


def own_edits(reference: Sequence[str], hypothesis: Sequence[str]) -> Edits:
    """The same edits as rapidfuzz's, in order (up to sizes where it changes to Hirschberg's method).

    That is where the product of the lengths passes 4 million: beyond any utterance.
    """
    start, end = common_ends(reference, hypothesis)
    said, heard = reference[start : len(reference) - end], hypothesis[start : len(hypothesis) - end]
    rises, falls = row_steps(said, heard)
    row, column = len(heard), len(said)
    edits: Edits = []
    while row and column:
        bit = 1 << (column - 1)
        if rises[row] & bit:
            column -= 1
            edits.append((Edit.DELETION, column, row))
            continue
        row -= 1
        if falls[row] & bit:
            edits.append((Edit.INSERTION, column, row))
            continue
        column -= 1
        if said[column] != heard[row]:
            edits.append((Edit.SUBSTITUTION, column, row))
    edits.extend((Edit.DELETION, place, 0) for place in reversed(range(column)))
    edits.extend((Edit.INSERTION, 0, place) for place in reversed(range(row)))
    return [(edit, place + start, other + start) for edit, place, other in reversed(edits)]


def common_ends(left: Sequence[str], right: Sequence[str]) -> tuple[int, int]:
    """How many tokens two sequences share at their start, and then at their end."""
    shorter = min(len(left), len(right))
    start = next((i for i in range(shorter) if left[i] != right[i]), shorter)
    rest = shorter - start
    end = next((i for i in range(rest) if left[-1 - i] != right[-1 - i]), rest)
    return start, end


def row_steps(said: Sequence[str], heard: Sequence[str]) -> tuple[list[int], list[int]]:
    """The edit distance table as bits, a row for every prefix of `heard` (Hyyrö 2003).

    With D[row][column] the distance of heard[:row] from said[:column], bit c of `rises[row]` says that
    D[row][c + 1] = D[row][c] + 1, and of `falls[row]` that it is D[row][c] - 1. A row costs a few
    operations on whole numbers of len(said) bits.
    """
    every = (1 << len(said)) - 1
    places: dict[str, int] = {}
    for place, token in enumerate(said):
        places[token] = places.get(token, 0) | 1 << place
    rise, fall = every, 0
    rises, falls = [rise], [fall]
    for token in heard:
        same = places.get(token, 0)
        diagonal = (((same & rise) + rise) ^ rise) | same | fall  # D[row][c + 1] = D[row - 1][c]
        up = ((fall | ~(diagonal | rise)) << 1 | 1) & every
        down = (diagonal & rise) << 1 & every
        rise = (down | ~(diagonal | up)) & every
        fall = up & diagonal
        rises.append(rise)
        falls.append(fall)
    return rises, falls
