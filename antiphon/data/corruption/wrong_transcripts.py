"""Wrong transcripts: a client's own in another order, or those of other speakers.

Both classes are called with a store, the clients (name -> utterances), the utterances of the pool and a seed,
and return utterance -> text. Only the seed and the client's name decide what a client gets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice

import numpy as np

from antiphon.data.store import FeatureStore
from antiphon.seeding import derive

Texts = dict[int, str]


@dataclass(frozen=True)
class Shuffled:
    """A client's own transcripts, each with another of its utterances.

    No utterance keeps its text if that is possible. If more than half of a client's texts are equal, or it
    has only one utterance, as few as possible keep theirs.
    """

    def __call__(
        self, store: FeatureStore, clients: Mapping[str, np.ndarray], pool: np.ndarray, seed: int
    ) -> Texts:
        wrong: Texts = {}
        for name, indices in clients.items():
            texts = [store.text(int(index)) for index in indices]
            sources = deranged(texts, np.random.default_rng(derive(seed, "texts", name)))
            wrong |= {int(index): texts[source] for index, source in zip(indices, sources, strict=True)}
        return wrong


@dataclass(frozen=True)
class OfOthers:
    """Transcripts of other speakers of the pool, drawn from the `nearest` in length (in characters)."""

    nearest: int = 20

    def __post_init__(self) -> None:
        if self.nearest < 1:
            raise ValueError(f"nearest is a number of transcripts to draw from, not {self.nearest}")

    def __call__(
        self, store: FeatureStore, clients: Mapping[str, np.ndarray], pool: np.ndarray, seed: int
    ) -> Texts:
        texts = [store.text(int(index)) for index in pool]
        by_length = np.argsort([len(text) for text in texts], kind="stable")
        donors = [(texts[place], int(store.speaker_codes[pool[place]])) for place in by_length]
        lengths = np.array([len(text) for text, _ in donors])
        wrong: Texts = {}
        for name, indices in clients.items():
            generator = np.random.default_rng(derive(seed, "texts", name))
            for index in indices.tolist():
                near = self._near(store.text(index), int(store.speaker_codes[index]), donors, lengths)
                if not near:
                    raise ValueError(
                        f"corruption.transcripts: no other speaker of the pool said anything else than "
                        f"utterance {store.id(index)} of {name}: shuffle the client's own"
                    )
                wrong[index] = near[int(generator.integers(len(near)))]
        return wrong

    def _near(self, own: str, speaker: int, donors: list[tuple[str, int]], lengths: np.ndarray) -> list[str]:
        """The texts of other speakers that are nearest in length, without equal texts."""
        middle = int(np.searchsorted(lengths, len(own)))
        sides = (range(middle - 1, -1, -1), range(middle, len(donors)))  # shorter and longer texts
        near: list[str] = []
        for side in sides:
            others = (donors[place] for place in side)
            wrong = (text for text, other in others if other != speaker and text != own)
            near += islice(wrong, self.nearest)
        return sorted(near, key=lambda text: abs(len(text) - len(own)))[: self.nearest]


def deranged(texts: list[str], generator: np.random.Generator) -> list[int]:
    """The index that each text is replaced from: a permutation in which as few as possible keep their text.

    Equal texts are put next to each other, in random order. Each then takes the text that comes n places
    later, where n is the number of copies of the most frequent text. Without copies this is a random cycle.
    """
    if not texts:
        return []
    counts = Counter(texts)
    rank = dict(zip(counts, generator.permutation(len(counts)).tolist(), strict=True))
    within = generator.permutation(len(texts))
    order = sorted(range(len(texts)), key=lambda place: (rank[texts[place]], within[place]))
    shift, sources = max(counts.values()), [0] * len(texts)
    for place, taker in enumerate(order):
        sources[taker] = order[(place + shift) % len(order)]
    return sources
