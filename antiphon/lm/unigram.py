"""How often words occur: the background u(w) that marginal adaptation compares others with.

Word 0 is <unk>: whatever is not in the vocabulary counts as it. Every word has a probability above zero,
those never seen as well (additive smoothing, G. Lidstone 1920), so that nothing is ever divided by zero.
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
        return {word: place for place, word in enumerate(self.words)}

    @cached_property
    def digest(self) -> str:
        """Tells vocabularies apart: counts by word id mean nothing with another one."""
        return hashlib.sha256("\n".join(self.words).encode()).hexdigest()[:16]

    def encode(self, text: str) -> np.ndarray:
        """Ids of the words of a text: int32."""
        ids = self.ids
        return np.array([ids.get(word, UNKNOWN_ID) for word in text.split()], dtype=np.int32)


def estimate_unigram(texts: Iterable[str], vocabulary: Iterable[str] = (), additive: float = 0.5) -> Unigram:
    """Relative frequencies of the words of the texts, `additive` counts given to every word beforehand.

    vocabulary: words that are to be told apart as well, whether the texts have them or not, such as those of
    the recogniser's dictionary. Without them a word that only clients say would be one more <unk>.
    """
    if additive <= 0:
        raise ValueError(f"additive must be above 0, or unseen words have no probability: got {additive}")
    counts = Counter(word for text in texts for word in text.split())
    if not counts:
        raise ValueError("no text to estimate background frequencies from")
    words = (UNKNOWN, *sorted((counts.keys() | set(vocabulary)) - set(SPECIAL)))
    smoothed = np.array([counts.get(word, 0) for word in words], dtype=np.float64) + additive
    return Unigram(words, smoothed / smoothed.sum())
