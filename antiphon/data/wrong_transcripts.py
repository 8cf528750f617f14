"""Transcripts that are not what was said: a client's own in another order, or those of other people.

Both are called with a store, the clients (name -> utterances), the utterances of the pool and a seed, and
give utterance -> text. What a client gets depends on the seed and the client's name, on nobody else's.
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

    No utterance keeps its text as long as that is possible: where more than half of a client's texts are
    the same one, or there is only one utterance, as few keep theirs as can be.
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
        """The texts nearest in length that others said, but not those who said the same."""
        middle = int(np.searchsorted(lengths, len(own)))
        sides = (range(middle - 1, -1, -1), range(middle, len(donors)))  # ever shorter, ever longer ones
        near: list[str] = []
        for side in sides:
            said = (donors[place] for place in side)
            wrong = (text for text, other in said if other != speaker and text != own)
            near += islice(wrong, self.nearest)
        return sorted(near, key=lambda text: abs(len(text) - len(own)))[: self.nearest]


def deranged(texts: list[str], generator: np.random.Generator) -> list[int]:
    """Where each place takes its text from: a permutation in which as few as possible keep their text.

    Equal texts are put side by side, in random order; then everyone takes the text of the one that comes
    as many places later as the commonest text has copies. Without copies that is a random cycle.
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
