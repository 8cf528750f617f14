"""Frequencies of words: the background distribution u(w) of marginal adaptation.

Word 0 is <unk>, which stands for every word outside the vocabulary. Additive smoothing (G. Lidstone 1920)
gives every word a probability above zero.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from antiphon.lm.ngram import SPECIAL, UNKNOWN, UNKNOWN_ID


@dataclass(frozen=True)
class Unigram:
    """Words, <unk> first, and their probabilities [len(words)] float64.

    >>> background = estimate_unigram(["go on", "go home"], additive=0.5)
    >>> background.encode("go away")
    array([1, 0], dtype=int32)
    >>> background.probabilities.round(3).tolist()
    [0.083, 0.417, 0.25, 0.25]
    """

    words: tuple[str, ...]
    probabilities: np.ndarray

    def __post_init__(self) -> None:
        if self.words[:1] != (UNKNOWN,) or len(set(self.words)) < len(self.words):
            raise ValueError(f"a unigram needs distinct words, {UNKNOWN} the first")
        if self.probabilities.shape != (len(self.words),):
            raise ValueError(f"{self.probabilities.shape} probabilities for {len(self.words)} words")
        if not (self.probabilities > 0).all() or not np.isclose(self.probabilities.sum(), 1.0):
            raise ValueError("probabilities of a unigram must be above zero and add up to one")

    @property
    def size(self) -> int:
        return len(self.words)

    @cached_property
    def ids(self) -> dict[str, int]:
        return {word: id for id, word in enumerate(self.words)}

    @cached_property
    def digest(self) -> str:
        """A hash of the vocabulary: counts by word id are valid for one vocabulary only."""
        return hashlib.sha256("\n".join(self.words).encode()).hexdigest()[:16]

    def encode(self, text: str) -> np.ndarray:
        """Ids of the words of a text: int32."""
        ids = self.ids
        return np.array([ids.get(word, UNKNOWN_ID) for word in text.split()], dtype=np.int32)


def estimate_unigram(texts: Iterable[str], vocabulary: Iterable[str] = (), additive: float = 0.5) -> Unigram:
    """Relative frequencies of the words of the texts, after `additive` is added to every count.

    vocabulary: more words, such as those of the recogniser's dictionary. Without them, words that only
    clients say would all be <unk>.
    """
    if additive <= 0:
        raise ValueError(f"additive must be above 0, or unseen words have no probability: got {additive}")
    counts = Counter(word for text in texts for word in text.split())
    if not counts:
        raise ValueError("no text to estimate background frequencies from")
    words = (UNKNOWN, *sorted((counts.keys() | set(vocabulary)) - set(SPECIAL)))
    smoothed = np.array([counts.get(word, 0) for word in words], dtype=np.float64) + additive
    return Unigram(words, smoothed / smoothed.sum())
