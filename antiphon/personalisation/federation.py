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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from torch import Tensor

from antiphon.algorithms.fmp import MARGINAL, Fmp, FmpState, background_params
from antiphon.decoding.nbest import NBest
from antiphon.engine import Engine, Rounds, sample_cohort
from antiphon.personalisation.marginal_adaptation import (
    Marginals,
    Mixture,
    Unigram,
    WordsOfTexts,
    estimate_unigram,
)
from antiphon.personalisation.word_cache import Cache, Cap, MarginalWorker
from antiphon.pools.process_group import ProcessGroup, SingleProcess
from antiphon.privacy.noise_key import derived_key, simulated_key
from antiphon.privacy.participation import PoissonSampling, cohort_of
from antiphon.records import checkpoint
from antiphon.records.files import make_folder, write_json
from antiphon.records.listener import Listen, Listeners, RunInfo
from antiphon.records.reading import read_object
from antiphon.records.writer import Listener, reporting_a_stop

IDENTITY = "protocol.json"  # in the folder of a run of rounds: the data and settings that it belongs to


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


def background_of(texts: Iterable[str], entries: Sequence[NBest]) -> Unigram:
    """Return u of the texts, over their words and those of the hypotheses (the recogniser's dictionary)."""
    return estimate_unigram(texts, {word for e in entries for h in e.hypotheses for word in h.text.split()})


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
        caches = {name: self._caches(entries, sigma) for name, entries in lists.items()}
        groups = {name: cut(places, schedule.rounds + 1) for name, places in self.clients.items()}
        ends = {name: np.cumsum([0, *map(len, parts)]).tolist() for name, parts in groups.items()}
        earlier = {name: self._caches(entries, sigma)[-1] for name, entries in self.earlier.items()}
        first = 0 if self.earlier else 1  # the group before which the first round takes place

        def known_in(round: int) -> Mapping[str, Cache]:
            return {**{name: caches[name][ends[name][round + first]] for name in caches}, **earlier}

        shared = [None] * first + self._run_rounds(sigma, schedule, known_in)
        marginals: dict[int, Marginals] = {}
        for name, parts in groups.items():
            for shared_words, start, part in zip(shared, ends[name], parts, strict=False):
                for number, place in enumerate(part):
                    cache = caches[name][start + number if schedule.every_utterance else start]
                    marginals[place] = Marginals(
                        self.background, shared_words=shared_words, client_words=cache
                    )
        return [marginals[place] for place in range(len(self.entries))]

    def ratios(self, history: Sequence[Marginals], mixture: Mixture) -> np.ndarray:
        """Return Σ ln(g/u) of all hypotheses of all lists, in a row; λ and σ of the mixture play no part."""
        return np.concatenate(
            [
                words.sums(replace(known, mixture=mixture).log_ratios(words.different))
                for known, words in zip(history, self.words, strict=True)
            ]
        )

    def _caches(self, entries: Sequence[NBest], sigma: float) -> list[Cache]:
        """Return a client's cache after 0, 1, 2, … of its lists."""
        caches = [Cache()]
        for entry in entries:
            caches.append(caches[-1].observed(entry, self.background.encode, sigma, self.agreement))
        return caches

    def _run_rounds(
        self, sigma: float, schedule: Schedule, caches: Callable[[int], Mapping[str, Cache]]
    ) -> list[np.ndarray | None]:
        """Return q̄ after each round; None as long as nobody has reported a word."""
        num_rounds = self.num_releases(schedule)
        if num_rounds == 0:
            return []
        num_lists = self._num_lists()
        worker = MarginalWorker(caches, self.background.size, self.cap)
        cohort = schedule.cohort or len(num_lists)
        rounds = Rounds(num_rounds, cohort, min_clients=0, valid_every=0, keep_last=num_rounds + 1)
        with self._rounds_folder(sigma, schedule) as folder:
            pool = self.group.pool(worker, lambda client: num_lists[client])
            listener = self._listener(folder, sigma, schedule, rounds)
            engine = Engine(
                self.algorithm, pool, list(num_lists), rounds, folder, schedule.seed,
                listener=listener, group=self.group, draw=schedule.draw,
            )  # fmt: skip
            with reporting_a_stop(listener):
                last: FmpState = engine.run(
                    background_params(self.background.probabilities.tolist()), resume=True
                ).state
            listener.ended({})

            def read_shared_words() -> tuple[Tensor | None, ...]:
                numbers, saved = range(1, num_rounds + 1), folder / "checkpoints"
                states = [checkpoint.load(checkpoint.folder_of(saved, n), last)[0] for n in numbers]
                return tuple(state.params[MARGINAL] if state.mass > 0 else None for state in states)

            shared = self.group.on_rank_zero(read_shared_words)
        return [words.numpy() if words is not None else None for words in shared]

    def _listener(self, folder: Path, sigma: float, schedule: Schedule, rounds: Rounds) -> Listener:
        """Return the listeners of a run of rounds; one that ignores all events if its rounds are complete."""
        if checkpoint.saved_rounds(folder / "checkpoints")[-1:] == [rounds.total]:
            return Listener()
        info = RunInfo(
            name=self._run_name(sigma, schedule),
            recipe="personalize",
            seed=schedule.seed,
            num_rounds=rounds.total,
            num_clients=len(self._num_lists()),
            folder=folder,
            settings={
                "algorithm": {"sigma": sigma, "agreement": self.agreement},
                "rounds": {"total": rounds.total, "cohort": rounds.cohort},
            },
        )
        return Listeners([listen(info) for listen in self.listeners])

    def _run_name(self, sigma: float, schedule: Schedule) -> str:
        return f"{self.name}-T{schedule.rounds}-sigma{sigma:g}"

    @contextmanager
    def _rounds_folder(self, sigma: float, schedule: Schedule) -> Iterator[Path]:
        """Yield the folder of one run of rounds, checked to be of the same data and settings."""
        if self.folder is None:
            with TemporaryDirectory() as scratch:
                yield Path(scratch)
            return
        folder = self.folder / self._run_name(sigma, schedule)
        identity = self._identity(sigma, schedule)

        def check() -> None:
            file = folder / IDENTITY
            if file.exists() and read_object(file) != identity:
                raise ValueError(
                    f"{folder} holds rounds of other lists or settings: continue with those, "
                    "or choose another folder"
                )
            make_folder(folder)
            write_json(file, identity)

        self.group.on_rank_zero(check)
        yield folder

    def _num_lists(self) -> dict[str, int]:
        return {name: len(lists) for name, lists in [*self.clients.items(), *self.earlier.items()]}

    def _identity(self, sigma: float, schedule: Schedule) -> dict[str, object]:
        lists = [*self.entries, *(entry for entries in self.earlier.values() for entry in entries)]
        texts = [[entry.id, *(hypothesis.text for hypothesis in entry.hypotheses)] for entry in lists]
        background = [self.background.digest, self.background.probabilities.tolist()]
        digest = hashlib.sha256(json.dumps([texts, self._num_lists(), background]).encode()).hexdigest()
        settings = asdict(schedule)
        if not schedule.share:
            del settings["share"]  # unknown to rounds that were written before there was one
        return {"sigma": sigma, "agreement": self.agreement, **settings, "data_sha256": digest}
