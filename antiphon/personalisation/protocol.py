"""The protocol of Federated Marginal Personalization, on N-best lists.

Z. Liu and F. Peng, 2020, §3.2: the lists of every client, in time order, are cut into T + 1 groups. In each
round all clients decode a group with what they and the server knew before it, then report. Hence the first
group is decoded with the background model alone, and T rounds of averaging are put to use.

Beyond the paper, `earlier` clients may have been there before: they go on reporting what they once heard,
so that the first group has an average of others to begin with.

A client with fewer lists than groups takes no part in some rounds; one with a single list is never
personalised. What is observed are the first pass's lists, as in the paper: what a client knows then does
not depend on how its lists were ranked, so one pass (`Federation.history`) serves all α, β and λ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from antiphon.algorithms.fmp import MARGINAL, Fmp, background_params
from antiphon.decoding.nbest import NBest
from antiphon.decoding.rescoring import Lists
from antiphon.engine import sample_cohort
from antiphon.lm.unigram import Unigram, estimate_unigram
from antiphon.personalisation.marginal_adaptation import Marginals, Mixture, WordsOfTexts
from antiphon.personalisation.marginals import Cap, MarginalWorker
from antiphon.personalisation.word_cache import Cache
from antiphon.pools.local import LocalPool
from antiphon.scoring.error_rate import alignment
from antiphon.scoring.segments import error_segments
from antiphon.scoring.significance import MatchedPairs, matched_pairs

RATIO = "marginal"  # a column of lists: Σ ln(g/u) over the words of a hypothesis


@dataclass(frozen=True)
class Schedule:
    """rounds: T. every_utterance: a client's own cache counts at once, not only after the round.

    cohort: clients drawn in a round, 0 for all.
    """

    rounds: int = 10
    every_utterance: bool = False
    cohort: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.rounds < 0 or self.cohort < 0:
            raise ValueError(f"rounds and cohort must not be negative: {self}")


def background_of(texts: Iterable[str], entries: Sequence[NBest]) -> Unigram:
    """u of a text, over its words and those of the hypotheses: they stand for the recogniser's dictionary."""
    return estimate_unigram(texts, {word for e in entries for h in e.hypotheses for word in h.text.split()})


def client_of(entry: NBest, key: str) -> str:
    """The client a list belongs to: its meeting (or session), or its speaker."""
    fields = {"meeting": entry.session, "session": entry.session, "speaker": entry.speaker}
    if key not in fields:
        raise ValueError(f"clients are told apart by meeting, session or speaker, not by {key!r}")
    if (name := fields[key]) is None:
        raise ValueError(f"utterance {entry.id!r} names no {key}: whose is it?")
    return name


@dataclass(frozen=True)
class Federation:
    """Clients with lists in time order, the same background, and a server."""

    entries: tuple[NBest, ...]
    clients: Mapping[str, tuple[int, ...]]  # places of their lists
    background: Unigram
    words: tuple[WordsOfTexts, ...]  # of each list
    algorithm: Fmp = Fmp()
    cap: Cap | None = None
    agreement: float = 0.0  # of hypotheses, in what clients count: see `decoding.cache`

    earlier: Mapping[str, tuple[NBest, ...]] = field(default_factory=dict)  # clients who are done, and report

    @classmethod
    def of(
        cls, entries: Sequence[NBest], background: Unigram, key: str, earlier: Sequence[NBest] = ()
    ) -> Federation:
        clients: dict[str, list[int]] = {}
        for place, entry in enumerate(entries):
            clients.setdefault(client_of(entry, key), []).append(place)
        words = [WordsOfTexts.of([h.text for h in entry.hypotheses], background) for entry in entries]
        held = {name: tuple(places) for name, places in clients.items()}
        done: dict[str, tuple[NBest, ...]] = {}
        for entry in earlier:
            name = f"earlier/{client_of(entry, key)}"
            done[name] = (*done.get(name, ()), entry)
        return cls(tuple(entries), held, background, tuple(words), earlier=done)

    def history(self, sigma: float, schedule: Schedule) -> list[Marginals]:
        """What was known when each list was decoded, list by list."""
        known: dict[int, Marginals] = {}
        caches = {name: Cache() for name in self.clients}
        caches |= {name: self._cache(lists, sigma) for name, lists in self.earlier.items()}
        groups = {name: cut(places, schedule.rounds + 1) for name, places in self.clients.items()}
        state = self.algorithm.init(background_params(self.background.probabilities.tolist()))
        state = replace(state, seed=schedule.seed)
        for group in range(schedule.rounds + 1):
            if group > 0 or self.earlier:
                pool = LocalPool(MarginalWorker(caches, self.background.size, self.cap))
                state, _ = self.algorithm.round(state, self._cohort(schedule, state.round), pool)
            everyone = state.params[MARGINAL].numpy() if state.mass > 0 else None
            for name in self.clients:
                before = own = caches[name]
                for place in groups[name][group]:
                    at_hand = own if schedule.every_utterance else before
                    known[place] = Marginals(self.background, shared_words=everyone, client_words=at_hand)
                    own = self._observed(own, self.entries[place], sigma)
                caches[name] = own
        return [known[place] for place in range(len(self.entries))]

    def _cache(self, lists: Sequence[NBest], sigma: float) -> Cache:
        cache = Cache()
        for entry in lists:
            cache = self._observed(cache, entry, sigma)
        return cache

    def num_releases(self, schedule: Schedule) -> int:
        """How often q̄ is published: once more where clients were there before the first group."""
        return schedule.rounds + bool(self.earlier)

    def _observed(self, cache: Cache, entry: NBest, sigma: float) -> Cache:
        return cache.observed(entry, self.background.encode, sigma, self.agreement)

    def _cohort(self, schedule: Schedule, number: int) -> list[str]:
        names = sorted([*self.clients, *self.earlier])
        return sample_cohort(names, schedule.cohort, schedule.seed, number) if schedule.cohort else names

    def ratios(self, history: Sequence[Marginals], mixture: Mixture) -> np.ndarray:
        """Σ ln(g/u) of all hypotheses of all lists, in a row; λ and σ of the mixture play no part."""
        return np.concatenate(
            [
                words.sums(replace(known, mixture=mixture).log_ratios(words.different))
                for known, words in zip(history, self.words, strict=True)
            ]
        )


def cut(places: Sequence[int], number: int) -> list[list[int]]:
    """In order, into so many groups whose sizes differ by at most one, the larger ones first.

    >>> cut([1, 2, 3, 4, 5], 3), cut([1], 3)
    ([[1, 2], [3, 4], [5]], [[1], [], []])
    """
    return [part.tolist() for part in np.array_split(np.asarray(places, dtype=np.int64), number)]


@dataclass(frozen=True)
class SecondPass:
    """Lists and the weights of their columns; `adapted` names the model that is adapted.

    λ multiplies ln(g/u) inside that model, so Σ ln(g/u) weighs λ times what the model does.
    """

    lists: Lists
    weights: Mapping[str, float]
    adapted: str

    def __post_init__(self) -> None:
        if self.adapted not in self.lists.columns:
            raise ValueError(
                f"no column {self.adapted!r} to adapt: there are {', '.join(self.lists.columns)}"
            )

    def totals(self) -> np.ndarray:
        """The weighted sum of every hypothesis, nothing adapted."""
        return self.lists.values @ np.array([self.weights.get(name, 0.0) for name in self.lists.columns])

    def best(self, ratios: np.ndarray, lam: float) -> np.ndarray:
        """The row of the best hypothesis of each list, with the model adapted."""
        adapted = self.totals() + self.weights.get(self.adapted, 0.0) * lam * ratios
        values = np.concatenate([self.lists.values, adapted[:, None]], axis=1)
        return replace(self.lists, columns=(*self.lists.columns, RATIO), values=values).best({RATIO: 1.0})

    def unadapted(self) -> np.ndarray:
        """The row of the best hypothesis of each list, as the background model has it."""
        return self.best(np.zeros(len(self.lists.values)), 0.0)

    def errors(self, rows: np.ndarray) -> np.ndarray:
        """Word errors of these hypotheses: [lists]."""
        found: np.ndarray = self.lists.errors[rows, :3].sum(axis=1)
        return found


@dataclass(frozen=True)
class Grid:
    """Settings to be tried on held-out clients."""

    alphas: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75)
    betas: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75)
    lams: tuple[float, ...] = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0)
    sigmas: tuple[float, ...] = (0.1, 1.0, 5.0)

    def mixtures(self, sigma: float, smoothing: float) -> list[Mixture]:
        """Those whose weights leave something to the background, λ apart."""
        return [
            Mixture(alpha, beta, 0.0, sigma, smoothing)
            for alpha in self.alphas
            for beta in self.betas
            if 0 < alpha + beta < 1
        ]


def search_grid(
    federation: Federation,
    second_pass: SecondPass,
    schedule: Schedule,
    grid: Grid,
    smoothing: float = 0.1,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Mixture:
    """The settings with the fewest word errors on these lists; among equals the first, none before any."""
    best = Mixture(0.0, 0.0, 0.0, grid.sigmas[0], smoothing)
    fewest = int(second_pass.errors(second_pass.unadapted()).sum())
    for done, sigma in enumerate(grid.sigmas):
        progress(done, len(grid.sigmas))
        history = federation.history(sigma, schedule)
        for mixture in grid.mixtures(sigma, smoothing):
            ratios = federation.ratios(history, mixture)
            for lam in grid.lams:
                errors = int(second_pass.errors(second_pass.best(ratios, lam)).sum())
                if errors < fewest:
                    fewest, best = errors, replace(mixture, lam=lam)
    progress(len(grid.sigmas), len(grid.sigmas))
    return best


def compare(lists: Lists, before: np.ndarray, after: np.ndarray) -> MatchedPairs:
    """NIST's matched-pairs test between two choices of hypotheses (rows) for the same lists."""
    texts = [hypothesis.text for entry in lists.entries for hypothesis in entry.hypotheses]
    segments = []
    for entry, one, other in zip(lists.entries, before, after, strict=True):
        said = (entry.reference or "").split()
        segments += error_segments(alignment(said, texts[one].split()), alignment(said, texts[other].split()))
    counts = np.array(segments, dtype=float).reshape(-1, 2)
    return matched_pairs(counts[:, 0], counts[:, 1])
