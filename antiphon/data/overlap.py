"""Text that must not be trained on: sequences of words it has in common with what a model is tested on.

>>> kept_out = Forbidden.of(["the sea was calm and the ship lay still at last"])
>>> kept_out.touched(["it was late", "calm and the ship lay still at last they", "slept"])
{1}
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

NGRAM = 8
LEAST_WORDS = 4  # a whole utterance as short as this says too little to be recognised by


@dataclass(frozen=True)
class Forbidden:
    """All sequences of 8 words of some texts; of a shorter text, the whole of it."""

    sequences: frozenset[tuple[str, ...]]

    @classmethod
    def of(cls, texts: Iterable[str], length: int = NGRAM) -> Forbidden:
        found: set[tuple[str, ...]] = set()
        for text in texts:
            words = tuple(text.split())
            if len(words) >= length:
                found.update(words[at : at + length] for at in range(len(words) - length + 1))
            elif len(words) >= LEAST_WORDS:
                found.add(words)
        return cls(frozenset(found))

    def touched(self, sentences: Sequence[str]) -> set[int]:
        """Places of the sentences that a forbidden sequence lies in, or across: they are read as one text."""
        words = [(word, place) for place, sentence in enumerate(sentences) for word in sentence.split()]
        lengths = sorted({len(sequence) for sequence in self.sequences})
        said = [word for word, _ in words]
        touched: set[int] = set()
        for length in lengths:
            for at in range(len(said) - length + 1):
                if tuple(said[at : at + length]) in self.sequences:
                    touched.update(place for _, place in words[at : at + length])
        return touched
