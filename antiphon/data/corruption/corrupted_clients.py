"""Clients whose data are bad on purpose: which clients, and the features of what they have.

Only utterances of the federated speakers are corrupted, never those of the server's own (seed), validation
and test speakers. Which utterances is decided once for an experiment: its runs may split the same speech into
clients differently, and all of them still train on the same good and bad utterances. If a run's clients are
those chosen from here (`clients`), its clients are wholly corrupted or wholly clean; in any other run, a
client is corrupted by the share of its utterances that are.

Wrong transcripts replace the right ones in memory. Distorted audio has a feature store of its own beside the
clean one, which is computed once: its name and fingerprint are made of the distortion, the seed and the
utterances. It is complete, with a copy of the frames that did not change, and is read like any other store.

Babble is made of the other speakers of the pool, both the server's own and federated ones. Validation and
test speakers are not heard in it: the model would have been trained on what it is tested on.
"""

from __future__ import annotations

import difflib
import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from antiphon.data.corpus import Corpus, Utterance
from antiphon.data.corruption.distortion import Distortion
from antiphon.data.corruption.wrong_transcripts import OfOthers, Shuffled
from antiphon.data.extraction import Extracted, extract_in_order
from antiphon.data.frontends import Frontend
from antiphon.data.partition import BySpeaker, Clients, Partition
from antiphon.data.store import FeatureStore, Progress, corpus_fingerprint, stored
from antiphon.seeding import derive

VERSION = 1  # of what distortions sound like: a new version makes all stores anew


@dataclass(frozen=True)
class Chosen:
    """The corrupted clients with the utterances they keep.

    is_corrupted, is_dropped: [all utterances of the store] bool; dropped ones were taken from these clients.
    """

    kept: Mapping[str, np.ndarray]
    is_corrupted: np.ndarray
    is_dropped: np.ndarray

    @property
    def utterances(self) -> np.ndarray:
        """Indices of the corrupted utterances, increasing."""
        return np.flatnonzero(self.is_corrupted)

    def left(self, clients: Clients) -> Clients:
        """The clients of a run with the utterances they still have, without clients that have none."""
        remaining = {name: indices[~self.is_dropped[indices]] for name, indices in clients.items()}
        return {name: indices for name, indices in remaining.items() if len(indices)}

    def shares(self, clients: Clients) -> dict[str, float]:
        """The corrupted share of each client's utterances in a run, for clients that have corrupted ones."""
        shares = {name: float(self.is_corrupted[indices].mean()) for name, indices in clients.items()}
        return {name: share for name, share in shares.items() if share > 0}


@dataclass(frozen=True)
class Corruption:
    """A `fraction` of the clients, or those in `names`, have bad data.

    Only this seed and the clients' names decide which clients are chosen, so experiments with other seeds
    have the same bad clients, and a larger fraction includes the clients of a smaller one. `clients`: what to
    choose from. `keep`, `max_utterances`: the share and the largest number of utterances that they keep
    (0: all).
    """

    fraction: float = 0.0
    names: tuple[str, ...] = ()
    clients: Partition = BySpeaker()
    seed: int = 0
    audio: Distortion = Distortion()
    transcripts: Shuffled | OfOthers | None = None
    keep: float = 1.0
    max_utterances: int = 0
    renamed: ClassVar = {"most": "max_utterances"}

    def __post_init__(self) -> None:
        if not 0 <= self.fraction <= 1:
            raise ValueError(f"fraction is a share of the clients between 0 and 1, not {self.fraction:g}")
        if self.fraction and self.names:
            raise ValueError("clients are chosen by fraction or by names, not by both: leave one of them out")
        if len(set(self.names)) < len(self.names):
            raise ValueError(f"a client is named twice in {', '.join(self.names)}")
        if not 0 < self.keep <= 1:
            raise ValueError(f"keep is a share of utterances above 0 and up to 1, not {self.keep:g}")
        if self.max_utterances < 0:
            raise ValueError(f"max_utterances must be at least 0 (0: all of them), not {self.max_utterances}")
        changes_data = self.audio != Distortion() or self.transcripts is not None
        takes_data = self.keep < 1 or self.max_utterances > 0
        if (self.fraction or self.names) and not (changes_data or takes_data):
            raise ValueError(
                "clients are chosen but nothing is done to them: set audio.speed, audio.room.t60, "
                "audio.noise, audio.clipped, transcripts, keep or max_utterances"
            )

    def choose(self, store: FeatureStore, federated: np.ndarray, seed: int) -> Chosen:
        """Choose among the clients of the federated utterances, partitioned with the experiment's seed."""
        kept: dict[str, np.ndarray] = {}
        is_corrupted, is_dropped = np.zeros((2, len(store)), dtype=bool)
        if self.fraction or self.names:
            try:
                clients = self.clients(store, federated, seed)
            except ValueError as error:
                raise ValueError(f"corruption.clients: {error}") from error
            for name in self._chosen(clients):
                kept[name] = self._kept(name, clients[name])
                is_corrupted[kept[name]] = True
                is_dropped[np.setdiff1d(clients[name], kept[name])] = True
        return Chosen(kept, is_corrupted, is_dropped)

    def _chosen(self, clients: Clients) -> list[str]:
        """Names of the corrupted clients, sorted; at least one if there is a fraction."""
        for name in self.names:
            if name not in clients:
                near = difflib.get_close_matches(name, clients, n=1) or list(clients)
                raise ValueError(
                    f"corruption.names: no client {name!r} among the {len(clients)} federated ones; "
                    f"did you mean {near[0]!r}?"
                )
        order = sorted(clients, key=lambda name: (derive(self.seed, "corrupted", name), name))
        return sorted(self.names or order[: max(1, round(self.fraction * len(order)))])

    def _kept(self, name: str, indices: np.ndarray) -> np.ndarray:
        """Indices that a client keeps, increasing: at least one, and more for a larger share."""
        count = min(math.ceil(self.keep * len(indices)), self.max_utterances or len(indices))
        order = np.random.default_rng(derive(self.seed, "keep", name)).permutation(len(indices))
        return np.sort(indices[order[:count]])


# --- Features -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Order:
    """The client whose room an utterance is heard in, and the other voices in it."""

    client: str
    voices: tuple[Utterance, ...]


@dataclass(frozen=True)
class Distorted:
    """A corpus with some utterances as they sound after a distortion; see `extraction.Speech`."""

    corpus: Corpus
    audio: Distortion
    seed: int
    orders: Mapping[str, Order]  # by utterance id

    @property
    def path(self) -> Path:
        return self.corpus.path

    def utterances(self) -> Iterator[Utterance]:
        for utterance in self.corpus.utterances():
            speed = self.audio.speed if utterance.id in self.orders else 1.0
            yield replace(utterance, seconds=utterance.seconds / speed)

    def read_audio(self, utterance: Utterance) -> np.ndarray:
        order = self.orders[utterance.id]
        voices = [self.corpus.read_audio(voice) for voice in order.voices]
        room = np.random.default_rng(derive(self.seed, "room", order.client))
        noise = np.random.default_rng(derive(self.seed, "noise", utterance.id))
        return self.audio(self.corpus.read_audio(utterance), voices, room, noise)


def corrupted_features(
    corpus: Corpus,
    frontend: Frontend,
    clean: FeatureStore,
    corruption: Corruption,
    chosen: Chosen,
    pool: np.ndarray,
    num_processes: int = 1,
    progress: Progress | None = None,
) -> FeatureStore:
    """The clean store with the data of the chosen clients corrupted: opened if it exists, else computed.

    pool: utterances that babble and other speakers' transcripts are taken from.
    """
    store, audio, seed = clean, corruption.audio, corruption.seed
    if chosen.kept and audio != Distortion():
        digest = _digest(audio, seed, chosen, pool)
        fingerprint = hashlib.sha256(f"{corpus_fingerprint(corpus)} {digest}".encode()).hexdigest()

        def known(index: int, utterance: Utterance) -> np.ndarray | None:
            return None if chosen.is_corrupted[index] else clean.features(index)

        def extract() -> Extracted:
            voices = _draw_voices(clean, audio.num_voices, chosen.utterances, pool, seed)
            speech = Distorted(corpus, audio, seed, _orders(corpus, chosen, voices))
            yield from extract_in_order(speech, frontend, num_processes, known)

        key = f"{frontend.key()}-corrupted-{digest[:16]}"
        store = stored(corpus, frontend, key, fingerprint, extract(), progress)
    if chosen.kept and corruption.transcripts is not None:
        texts = corruption.transcripts(clean, chosen.kept, pool, seed)
        store = FeatureStore.open(store.folder, texts)
    return store


def _digest(audio: Distortion, seed: int, chosen: Chosen, pool: np.ndarray) -> str:
    """A digest of what the distorted frames depend on besides the corpus and the front end."""
    digest = hashlib.sha256(repr((VERSION, audio, seed, sorted(chosen.kept))).encode())
    for name in sorted(chosen.kept):
        digest.update(chosen.kept[name].astype("<i8").tobytes() + b"/")
    if audio.num_voices:
        digest.update(pool.astype("<i8").tobytes())
    return digest.hexdigest()


def _draw_voices(
    store: FeatureStore, num_voices: int, indices: np.ndarray, pool: np.ndarray, seed: int
) -> dict[int, list[int]]:
    """For each utterance, one of each of `num_voices` other speakers (of all others if there are fewer)."""
    if not num_voices:
        return {index: [] for index in indices.tolist()}
    speakers = BySpeaker()(store, pool, seed)
    drawn = {}
    for index in indices.tolist():
        speaker = f"speaker/{store.speaker(index)}"
        others = [utterances for name, utterances in speakers.items() if name != speaker]
        if not others:
            raise ValueError(
                "corruption.audio.noise: babble is made of the other speakers of the pool, and there is "
                f"nobody but {store.speaker(index)}: take white noise, or a corpus with more speakers"
            )
        generator = np.random.default_rng(derive(seed, "voices", store.id(index)))
        voices = generator.permutation(len(others))[:num_voices]
        drawn[index] = [int(generator.choice(others[voice])) for voice in voices]
    return drawn


def _orders(corpus: Corpus, chosen: Chosen, voices: Mapping[int, list[int]]) -> dict[str, Order]:
    """Orders by utterance id; all utterances are looked up in one pass over the corpus."""
    needed = {*voices, *(voice for drawn in voices.values() for voice in drawn)}
    utterances = {index: one for index, one in enumerate(corpus.utterances()) if index in needed}
    return {
        utterances[index].id: Order(client, tuple(utterances[voice] for voice in voices[index]))
        for client, indices in chosen.kept.items()
        for index in indices.tolist()
    }
