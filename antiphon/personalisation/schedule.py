"""Who has heard what before each list: lists in time order, cut into groups with a round before each.

Z. Liu and F. Peng, "Federated Marginal Personalization for ASR Rescoring", 2020, §3.2: the lists of every
client are cut into T + 1 groups. Before each group but the first, a round takes place.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from antiphon.decoding.nbest import NBest
from antiphon.engine import sample_cohort
from antiphon.personalisation.marginal_adaptation import Marginals, Unigram
from antiphon.personalisation.word_cache import Cache
from antiphon.privacy.noise_key import derived_key, simulated_key
from antiphon.privacy.participation import PoissonSampling, cohort_of


@dataclass(frozen=True)
class Schedule:
    """The rounds of a protocol.

    rounds: T. every_utterance: a client uses its own words at once, not only after the round.
    cohort: the number of clients that report in a round; 0 for all.
    share: each client reports in a round with this probability, whoever else there is; 0 for all. Noise on
    the counts protects clients with a share, and does not with a cohort.
    """

    rounds: int = 10
    every_utterance: bool = False
    cohort: int = 0
    seed: int = 0
    share: float = 0.0

    def __post_init__(self) -> None:
        if self.rounds < 0 or self.cohort < 0:
            raise ValueError(f"rounds and cohort must not be negative: {self}")
        if not 0 <= self.share <= 1:
            raise ValueError(f"share must be between 0 and 1, not {self.share}")
        if self.cohort and self.share:
            raise ValueError("clients are drawn by their number (cohort) or each by itself (share): set one")

    def draw(self, clients: Sequence[str], size: int, seed: int, round: int) -> list[str]:
        """Return the clients that report in a round: all of them in their order, or a sample."""
        if self.share:
            key = derived_key(simulated_key(seed), "cohorts")
            return cohort_of(PoissonSampling(self.share), clients, round, seed, key)
        return sample_cohort(clients, size, seed, round) if self.cohort else list(clients)


def client_of(entry: NBest, key: str) -> str:
    """Return the client that a list belongs to: its meeting (or session), or its speaker."""
    fields = {"meeting": entry.session, "session": entry.session, "speaker": entry.speaker}
    if key not in fields:
        raise ValueError(f"a client is a meeting, a session or a speaker, not {key!r}")
    if (name := fields[key]) is None:
        raise ValueError(f"utterance {entry.id!r} has no {key}: its client is not known")
    return name


def cut(places: Sequence[int], number: int) -> list[list[int]]:
    """Cut a sequence into groups whose sizes differ by at most one, the larger ones first.

    >>> cut([1, 2, 3, 4, 5], 3), cut([1], 3)
    ([[1, 2], [3, 4], [5]], [[1], [], []])
    """
    return [part.tolist() for part in np.array_split(np.asarray(places, dtype=np.int64), number)]


@dataclass(frozen=True)
class HeardLists:
    """What clients had heard before each of their lists.

    caches: client -> its cache after 0, 1, 2, … of its lists.
    ends: client -> the number of its lists before group 0, 1, …, and of all.
    first: the group before which the first round takes place.
    """

    background: Unigram
    caches: Mapping[str, Sequence[Cache]]
    ends: Mapping[str, Sequence[int]]
    first: int
    every_utterance: bool

    @classmethod
    def of(
        cls,
        lists: Mapping[str, Sequence[NBest]],
        background: Unigram,
        sigma: float,
        agreement: float,
        schedule: Schedule,
        first: int,
    ) -> HeardLists:
        caches = {c: caches_of(entries, background, sigma, agreement) for c, entries in lists.items()}
        groups = {c: cut(range(len(entries)), schedule.rounds + 1) for c, entries in lists.items()}
        ends = {c: np.cumsum([0, *map(len, parts)]).tolist() for c, parts in groups.items()}
        return cls(background, caches, ends, first, schedule.every_utterance)

    def known_in(self, round: int) -> dict[str, Cache]:
        """Return the cache that each client reports in a round."""
        return {c: caches[self.ends[c][round + self.first]] for c, caches in self.caches.items()}

    def marginals(self, client: str, shared_words: Sequence[np.ndarray | None]) -> list[Marginals]:
        """Return what was known when each list of a client was decoded; q̄ of each round is given."""
        known, ends = [None] * self.first + list(shared_words), self.ends[client]
        return [
            Marginals(
                self.background,
                shared_words=known[group],
                client_words=self.caches[client][place if self.every_utterance else start],
            )
            for group, (start, end) in enumerate(itertools.pairwise(ends))
            for place in range(start, end)
        ]


def caches_of(entries: Sequence[NBest], background: Unigram, sigma: float, agreement: float) -> list[Cache]:
    """Return a client's cache after 0, 1, 2, … of its lists."""
    caches = [Cache()]
    for entry in entries:
        caches.append(caches[-1].observed(entry, background.encode, sigma, agreement))
    return caches
