"""Text that must not be trained on, because it shares sequences of words with what a model is tested on.

>>> kept_out = Forbidden.of(["the sea was calm and the ship lay still at last"])
>>> kept_out.touched(["it was late", "calm and the ship lay still at last they", "slept"])
{1}
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

NGRAM = 8
LEAST_WORDS = 4  # shorter utterances are too common to be a leak


@dataclass(frozen=True)
class Forbidden:
    """All sequences of 8 words of some texts, and shorter texts as a whole."""

    sequences: frozenset[tuple[str, ...]]

    @classmethod
    def of(cls, texts: Iterable[str], length: int = NGRAM) -> Forbidden:
        sequences: set[tuple[str, ...]] = set()
        for text in texts:
            words = tuple(text.split())
            if len(words) >= length:
                sequences.update(words[at : at + length] for at in range(len(words) - length + 1))
            elif len(words) >= LEAST_WORDS:
                sequences.add(words)
        return cls(frozenset(sequences))

    def touched(self, sentences: Sequence[str]) -> set[int]:
        """Indices of sentences with a forbidden sequence; read as one text, so it may cross sentences."""
        words = [(word, place) for place, sentence in enumerate(sentences) for word in sentence.split()]
        lengths = sorted({len(sequence) for sequence in self.sequences})
        text = [word for word, _ in words]
        touched: set[int] = set()
        for length in lengths:
            for at in range(len(text) - length + 1):
                if tuple(text[at : at + length]) in self.sequences:
                    touched.update(place for _, place in words[at : at + length])
        return touched
