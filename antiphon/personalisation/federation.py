"""Federated Marginal Personalization on N-best lists: its clients, and their rounds with the server.

Z. Liu and F. Peng, 2020, §3.2: the lists of every client, in time order, are cut into T + 1 groups. Before
each group but the first, a round takes place: clients report the words of the groups before it. Hence the
first group is decoded with the background model alone, and T rounds of averaging are put to use.

Beyond the paper, `earlier` clients may have been there before. They report in every round what they heard
once, and one more round takes place before the first group.

A client with fewer lists than groups has nothing to decode in some groups; one with a single list is never
personalised. Clients count the words of the first pass, as in the paper. So what a client knows does not
depend on how its lists are ranked later, and one pass (`Federation.history`) serves all values of α, β and λ.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from antiphon.algorithms.fmp import Fmp
from antiphon.decoding.nbest import NBest
from antiphon.personalisation.marginal_adaptation import (
    Marginals,
    Mixture,
    Unigram,
    WordsOfTexts,
    estimate_unigram,
    log_ratio_sums,
)
from antiphon.personalisation.marginal_rounds import MarginalRounds, run_name, schedule_notes
from antiphon.personalisation.schedule import HeardLists, Schedule, caches_of, client_of
from antiphon.personalisation.word_cache import Cache, Cap, MarginalWorker
from antiphon.pools.process_group import ProcessGroup, SingleProcess
from antiphon.records.listener import Listen


def background_of(
    texts: Iterable[str], entries: Sequence[NBest], dictionary: Iterable[str] | None = None
) -> Unigram:
    """Return u of the texts, over their words and those of the recogniser's dictionary.

    Without a dictionary, the words of the hypotheses stand for it.
    """
    heard = (word for e in entries for h in e.hypotheses for word in h.text.split())
    return estimate_unigram(texts, set(heard if dictionary is None else dictionary))


@dataclass(frozen=True)
class Federation:
    """Clients with lists in time order, a common background, and a server.

    agreement: of hypotheses, in what clients count (`word_cache`).
    earlier: lists of clients that are done and go on reporting.
    folder: where the journals and checkpoints of rounds are kept; None: they are not kept.
    name: tells apart what is kept for different data or algorithms in one folder.
    listeners: called as each run of rounds begins that is not complete in the folder.
    """

    entries: tuple[NBest, ...]
    clients: Mapping[str, tuple[int, ...]]  # client -> places of its lists in `entries`
    background: Unigram
    words: tuple[WordsOfTexts, ...]  # of each list
    algorithm: Fmp = Fmp()
    cap: Cap | None = None
    agreement: float = 0.0
    earlier: Mapping[str, tuple[NBest, ...]] = field(default_factory=dict)
    folder: Path | None = None
    name: str = "rounds"
    group: ProcessGroup = SingleProcess()
    listeners: tuple[Listen, ...] = ()

    @classmethod
    def of(
        cls, entries: Sequence[NBest], background: Unigram, key: str, earlier: Sequence[NBest] = ()
    ) -> Federation:
        clients: dict[str, tuple[int, ...]] = {}
        for place, entry in enumerate(entries):
            name = client_of(entry, key)
            clients[name] = (*clients.get(name, ()), place)
        words = tuple(WordsOfTexts.of([h.text for h in entry.hypotheses], background) for entry in entries)
        done: dict[str, tuple[NBest, ...]] = {}
        for entry in earlier:
            name = f"earlier/{client_of(entry, key)}"
            done[name] = (*done.get(name, ()), entry)
        return cls(tuple(entries), clients, background, words, earlier=done)

    def num_releases(self, schedule: Schedule) -> int:
        """Return how often q̄ is published: once more if there are earlier clients."""
        return schedule.rounds + bool(self.earlier)

    def history(self, sigma: float, schedule: Schedule) -> list[Marginals]:
        """Return what was known when each list was decoded, list by list."""
        lists = {name: [self.entries[place] for place in places] for name, places in self.clients.items()}
        first = 0 if self.earlier else 1
        heard = HeardLists.of(lists, self.background, sigma, self.agreement, schedule, first)
        earlier = self.earlier_words(sigma)

        def known_in(round: int) -> Mapping[str, Cache]:
            return {**heard.known_in(round), **earlier}

        shared = self._run_rounds(sigma, schedule, known_in)
        marginals = {
            place: known
            for name, places in self.clients.items()
            for place, known in zip(places, heard.marginals(name, shared), strict=True)
        }
        return [marginals[place] for place in range(len(self.entries))]

    def earlier_words(self, sigma: float) -> dict[str, Cache]:
        """Return what the earlier clients report in every round."""
        options = (self.background, sigma, self.agreement)
        return {name: caches_of(entries, *options)[-1] for name, entries in self.earlier.items()}

    def ratios(self, history: Sequence[Marginals], mixture: Mixture) -> np.ndarray:
        """Return Σ ln(g/u) of all hypotheses of all lists, in a row; λ and σ of the mixture play no part."""
        return log_ratio_sums(history, self.words, mixture)

    def _run_rounds(
        self, sigma: float, schedule: Schedule, caches: Callable[[int], Mapping[str, Cache]]
    ) -> list[np.ndarray | None]:
        """Return q̄ after each round; None as long as nobody has reported a word."""
        num_lists = self._num_lists()
        rounds = MarginalRounds(
            run_name(self.name, schedule, sigma),
            self.num_releases(schedule),
            num_lists,
            self.background,
            schedule,
            {"sigma": sigma, "agreement": self.agreement},
            self.algorithm,
            self.folder,
            self.group,
            self.listeners,
        )
        worker = MarginalWorker(caches, self.background.size, self.cap)
        pool = self.group.pool(worker, lambda client: num_lists[client])
        return rounds.run(pool, self._identity(sigma, schedule))

    def _num_lists(self) -> dict[str, int]:
        return {name: len(lists) for name, lists in [*self.clients.items(), *self.earlier.items()]}

    def _identity(self, sigma: float, schedule: Schedule) -> dict[str, object]:
        lists = [*self.entries, *(entry for entries in self.earlier.values() for entry in entries)]
        texts = [[entry.id, *(hypothesis.text for hypothesis in entry.hypotheses)] for entry in lists]
        background = [self.background.digest, self.background.probabilities.tolist()]
        digest = hashlib.sha256(json.dumps([texts, self._num_lists(), background]).encode()).hexdigest()
        notes = schedule_notes(schedule)
        return {"sigma": sigma, "agreement": self.agreement, **notes, "data_sha256": digest}
