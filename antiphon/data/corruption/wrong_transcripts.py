"""Wrong transcripts: a client's own in another order, or those of other speakers.

Both classes are called with a store, the clients (name -> utterances), the utterances of the pool and a seed.
They return utterance -> text. What a client gets depends only on the seed and its name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice

import numpy as np

from antiphon.data.store import FeatureStore
from antiphon.seeding import derive

Clients = Mapping[str, np.ndarray]
Texts = dict[int, str]


@dataclass(frozen=True)
class Shuffled:
    """A client's own transcripts, each with another of its utterances.

    No utterance keeps its text if that is possible. If more than half of a client's texts are equal, or it
    has only one utterance, as few as possible keep theirs.
    """

    def __call__(self, store: FeatureStore, clients: Clients, pool: np.ndarray, seed: int) -> Texts:
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

    def __call__(self, store: FeatureStore, clients: Clients, pool: np.ndarray, seed: int) -> Texts:
        donors = [(store.text(index), int(store.speaker_codes[index])) for index in pool.tolist()]
        donors.sort(key=lambda donor: len(donor[0]))
        lengths = np.array([len(text) for text, _ in donors])
        wrong: Texts = {}
        for name, indices in clients.items():
            generator = np.random.default_rng(derive(seed, "texts", name))
            for index in indices.tolist():
                near = self._near(store.text(index), int(store.speaker_codes[index]), donors, lengths)
                if not near:
                    raise ValueError(
                        "corruption.transcripts: all texts of other speakers are equal to that of utterance "
                        f"{store.id(index)} of {name}: shuffle the client's own"
                    )
                wrong[index] = near[int(generator.integers(len(near)))]
        return wrong

    def _near(
        self, right: str, speaker: int, donors: list[tuple[str, int]], lengths: np.ndarray
    ) -> list[str]:
        """Return the texts of other speakers that are nearest in length, and not equal to the right one."""
        middle = int(np.searchsorted(lengths, len(right)))
        near: list[str] = []
        for side in (range(middle - 1, -1, -1), range(middle, len(donors))):  # shorter and longer texts
            others = (donors[index] for index in side)
            wrong = (text for text, other in others if other != speaker and text != right)
            near += islice(wrong, self.nearest)
        return sorted(near, key=lambda text: abs(len(text) - len(right)))[: self.nearest]


def deranged(texts: list[str], generator: np.random.Generator) -> list[int]:
    """Return for each text the index of its replacement; as few texts as possible are replaced by equal ones.

    Equal texts are put next to each other, in random order. Each is replaced by the text n positions later,
    where n is the number of copies of the most frequent text. Without copies this is a random cycle.
    """
    if not texts:
        return []
    counts = Counter(texts)
    rank = dict(zip(counts, generator.permutation(len(counts)).tolist(), strict=True))
    within = generator.permutation(len(texts))
    order = sorted(range(len(texts)), key=lambda index: (rank[texts[index]], within[index]))
    sources = np.empty(len(texts), dtype=np.int64)
    sources[order] = np.roll(order, -max(counts.values()))
    return sources.tolist()
