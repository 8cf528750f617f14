"""Clients whose data are bad on purpose: which clients, and the features of their data.

Only utterances of the federated speakers are corrupted, never those of the server, validation and test
speakers. The corrupted utterances are chosen once for an experiment: its runs may divide the same speech into
clients differently, and all of them still train on the same good and bad utterances. If a run has the clients
of `Corruption.clients`, each of them is wholly corrupted or wholly clean. In any other run, only a share of a
client's utterances may be corrupted.

Wrong transcripts replace the right ones in memory. Distorted audio has a feature store of its own beside the
clean one, which is computed once: its name and fingerprint depend on the distortion, the seed and the
utterances. It is complete, with a copy of the frames that did not change, and is read like any other store.

Babble is made of the other speakers of the pool, of the server and federated. It has no validation and test
speakers, because the model must not be trained on the speech that it is tested on.
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
from antiphon.data.store import FeatureStore, Progress, open_or_write
from antiphon.seeding import chosen_share, derive

VERSION = 1  # of the sound of distortions: a new version makes all stores again


@dataclass(frozen=True)
class CorruptedClients:
    """The corrupted clients with their utterances.

    is_corrupted, is_dropped: [all utterances of the store] bool; dropped ones were taken from these clients.
    """

    clients: Mapping[str, np.ndarray]
    is_corrupted: np.ndarray
    is_dropped: np.ndarray

    @property
    def utterances(self) -> np.ndarray:
        """Indices of the corrupted utterances, increasing."""
        return np.flatnonzero(self.is_corrupted)

    def without_dropped(self, clients: Clients) -> Clients:
        """Return a run's clients without the dropped utterances, and without clients that have no others."""
        remaining = {name: indices[~self.is_dropped[indices]] for name, indices in clients.items()}
        return {name: indices for name, indices in remaining.items() if len(indices)}

    def shares(self, clients: Clients) -> dict[str, float]:
        """Return the corrupted share of each client's utterances in a run, if it is above 0."""
        shares = {
            name: float(self.is_corrupted[indices].mean())
            for name, indices in clients.items()
            if len(indices)
        }
        return {name: share for name, share in shares.items() if share > 0}


@dataclass(frozen=True)
class Corruption:
    """A `fraction` of the clients, or the clients in `names`, have bad data.

    Only this seed and the clients' names decide which clients are chosen. So experiments with other seeds
    have the same bad clients, and a larger fraction includes the clients of a smaller one. `clients`: how
    the speech is divided into the clients to choose from. `keep`, `max_utterances`: the share and the largest
    number of utterances that they keep (0: all).
    """

    fraction: float = 0.0
    names: tuple[str, ...] = ()
    clients: Partition = BySpeaker()
    seed: int = 0  # decides which clients are bad
    audio: Distortion = Distortion()
    transcripts: Shuffled | OfOthers | None = None  # what is wrong with their texts; null: nothing
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

    def choose(self, store: FeatureStore, federated: np.ndarray, seed: int) -> CorruptedClients:
        """Choose among the clients of the federated utterances, partitioned with the experiment's seed."""
        corrupted: dict[str, np.ndarray] = {}
        is_corrupted, is_dropped = np.zeros((2, len(store)), dtype=bool)
        if self.fraction or self.names:
            try:
                clients = self.clients(store, federated, seed)
            except ValueError as error:
                raise ValueError(f"corruption.clients: {error}") from error
            for name in self._choose_names(clients):
                indices = clients[name]
                count = min(math.ceil(self.keep * len(indices)), self.max_utterances or len(indices))
                order = np.random.default_rng(derive(self.seed, "keep", name)).permutation(len(indices))
                corrupted[name] = np.sort(indices[order[:count]])
                is_corrupted[corrupted[name]] = True
                is_dropped[indices[order[count:]]] = True
        return CorruptedClients(corrupted, is_corrupted, is_dropped)

    def _choose_names(self, clients: Clients) -> list[str]:
        """Return the names of the corrupted clients, sorted; at least one if there is a fraction."""
        for name in self.names:
            if name not in clients:
                near = difflib.get_close_matches(name, clients, n=1) or list(clients)
                raise ValueError(
                    f"corruption.names: no client {name!r} among the {len(clients)} federated ones; "
                    f"did you mean {near[0]!r}?"
                )
        return sorted(self.names or chosen_share(clients, self.fraction, self.seed))


# --- Features -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DistortedSpeech:
    """A corpus (`store.Speech`) in which some utterances are distorted.

    distorted: id of an utterance -> the client whose room it is heard in, and the other voices in it.
    """

    corpus: Corpus
    audio: Distortion
    seed: int
    distorted: Mapping[str, tuple[str, tuple[Utterance, ...]]]

    @property
    def path(self) -> Path:
        return self.corpus.path

    def utterances(self) -> Iterator[Utterance]:
        for utterance in self.corpus.utterances():
            speed = self.audio.speed if utterance.id in self.distorted else 1.0
            yield replace(utterance, seconds=utterance.seconds / speed)

    def read_audio(self, utterance: Utterance) -> np.ndarray:
        client, others = self.distorted[utterance.id]
        voices = [self.corpus.read_audio(other) for other in others]
        room = np.random.default_rng(derive(self.seed, "room", client))
        noise = np.random.default_rng(derive(self.seed, "noise", utterance.id))
        return self.audio(self.corpus.read_audio(utterance), voices, room, noise)


def corrupted_features(
    corpus: Corpus,
    frontend: Frontend,
    clean: FeatureStore,
    corruption: Corruption,
    corrupted: CorruptedClients,
    pool: np.ndarray,
    num_processes: int = 1,
    progress: Progress | None = None,
) -> FeatureStore:
    """Return the clean store with the data of the corrupted clients changed; compute it if it does not exist.

    pool: the utterances that babble and other speakers' transcripts come from.
    """
    store = clean
    if corrupted.clients and corruption.audio != Distortion():

        def known(index: int, utterance: Utterance) -> np.ndarray | None:
            return None if corrupted.is_corrupted[index] else clean.features(index)

        def extract() -> Extracted:
            speech = _distort(corpus, clean, corruption, corrupted, pool)
            yield from extract_in_order(speech, frontend, num_processes, known)

        digest = _digest(corruption, corrupted, pool)
        store = open_or_write(corpus, frontend, extract(), progress, digest)
    if corrupted.clients and corruption.transcripts is not None:
        texts = corruption.transcripts(clean, corrupted.clients, pool, corruption.seed)
        store = FeatureStore.open(store.folder, texts)
    return store


def _digest(corruption: Corruption, corrupted: CorruptedClients, pool: np.ndarray) -> str:
    """Return a digest of all that the distorted frames depend on besides the corpus and the front end."""
    settings = (VERSION, corruption.audio, corruption.seed, sorted(corrupted.clients))
    digest = hashlib.sha256(repr(settings).encode())
    for name in sorted(corrupted.clients):
        digest.update(corrupted.clients[name].astype("<i8").tobytes() + b"/")
    if corruption.audio.num_voices:
        digest.update(pool.astype("<i8").tobytes())
    return digest.hexdigest()


def _distort(
    corpus: Corpus, store: FeatureStore, corruption: Corruption, corrupted: CorruptedClients, pool: np.ndarray
) -> DistortedSpeech:
    """Draw the other voices of each corrupted utterance; one pass over the corpus finds all utterances."""
    audio, seed = corruption.audio, corruption.seed
    voices = _draw_voices(store, audio.num_voices, corrupted.utterances, pool, seed)
    needed = {*voices, *(voice for drawn in voices.values() for voice in drawn)}
    utterances = {index: one for index, one in enumerate(corpus.utterances()) if index in needed}
    distorted = {
        utterances[index].id: (client, tuple(utterances[voice] for voice in voices[index]))
        for client, indices in corrupted.clients.items()
        for index in indices.tolist()
    }
    return DistortedSpeech(corpus, audio, seed, distorted)


def _draw_voices(
    store: FeatureStore, num_voices: int, indices: np.ndarray, pool: np.ndarray, seed: int
) -> dict[int, list[int]]:
    """Draw for each utterance one of each of `num_voices` other speakers (of all if there are fewer)."""
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
