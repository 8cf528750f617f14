"""The features of a corpus of which some clients are corrupted.

Wrong transcripts stand in for the right ones in memory. Distorted audio has a feature store of its own beside
the clean one, made once and found again: its name and fingerprint are made of the distortion, the seed and
the utterances. It is whole, with a copy of the frames to which nothing happened, and is read like any other.

Babble is made of the other speakers of the pool, the server's own and federated ones. Validation and test
speakers are not heard in it: the model would have been trained on what it is tested on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from antiphon.data.corpus import Corpus, Utterance
from antiphon.data.corruption import Chosen, Corruption
from antiphon.data.distortion import Distortion
from antiphon.data.extraction import Extracted, extract_in_order
from antiphon.data.frontends import Frontend
from antiphon.data.partition import BySpeaker
from antiphon.data.store import FeatureStore, Progress, corpus_fingerprint, stored
from antiphon.seeding import derive

VERSION = 1  # of what distortions sound like: a new one and no store made before is taken for it


@dataclass(frozen=True)
class Order:
    """Whose room an utterance is heard in, and who else is heard."""

    client: str
    voices: tuple[Utterance, ...]


@dataclass(frozen=True)
class Distorted:
    """Some utterances of a corpus as they sound after a distortion; see `extraction.Speech`."""

    corpus: Corpus
    audio: Distortion
    seed: int
    orders: Mapping[str, Order]  # by utterance id

    @property
    def path(self) -> Path:
        return self.corpus.path

    def utterances(self) -> Iterator[Utterance]:
        for utterance in self.corpus.utterances():
            if utterance.id in self.orders:
                yield replace(utterance, seconds=utterance.seconds / self.audio.speed)

    def read_audio(self, utterance: Utterance) -> np.ndarray:
        order = self.orders[utterance.id]
        voices = [self.corpus.read_audio(voice) for voice in order.voices]
        place = np.random.default_rng(derive(self.seed, "room", order.client))
        moment = np.random.default_rng(derive(self.seed, "noise", utterance.id))
        return self.audio(self.corpus.read_audio(utterance), voices, place, moment)


def corrupted_features(
    corpus: Corpus,
    frontend: Frontend,
    clean: FeatureStore,
    corruption: Corruption,
    chosen: Chosen,
    pool: np.ndarray,
    num_workers: int = 1,
    progress: Progress | None = None,
) -> FeatureStore:
    """The clean store with what the chosen clients have instead: opened if it is there, else computed.

    `pool`: utterances from which babble and transcripts of others are taken.
    """
    store, audio, seed = clean, corruption.audio, corruption.seed
    if chosen.kept and audio != Distortion():
        digest = _digest(audio, seed, chosen, pool)
        fingerprint = hashlib.sha256(f"{corpus_fingerprint(corpus)} {digest}".encode()).hexdigest()

        def extract() -> Extracted:
            voices = _draw_voices(clean, audio.num_voices, chosen.utterances, pool, seed)
            speech = Distorted(corpus, audio, seed, _orders(corpus, chosen, voices))
            extracted = extract_in_order(speech, frontend, num_workers)
            return _merged(corpus, clean, extracted, set(chosen.utterances.tolist()))

        key = f"{frontend.key()}-corrupted-{digest[:16]}"
        store = stored(corpus, frontend, key, fingerprint, extract, progress)
    if chosen.kept and corruption.transcripts is not None:
        texts = corruption.transcripts(clean, chosen.kept, pool, seed)
        store = FeatureStore.open(store.folder, texts)
    return store


def _digest(audio: Distortion, seed: int, chosen: Chosen, pool: np.ndarray) -> str:
    """Made of all that the distorted frames depend on but the corpus itself and the front end."""
    told = hashlib.sha256(repr((VERSION, audio, seed, sorted(chosen.kept))).encode())
    for name in sorted(chosen.kept):
        told.update(chosen.kept[name].astype("<i8").tobytes() + b"/")
    if audio.num_voices:
        told.update(pool.astype("<i8").tobytes())
    return told.hexdigest()


def _draw_voices(
    store: FeatureStore, num_voices: int, indices: np.ndarray, pool: np.ndarray, seed: int
) -> dict[int, list[int]]:
    """For each utterance one of each of so many other speakers; all the others if there are fewer."""
    if not num_voices:
        return {index: [] for index in indices.tolist()}
    speakers = BySpeaker()(store, pool, seed)
    drawn = {}
    for index in indices.tolist():
        others = [own for name, own in speakers.items() if name != f"speaker/{store.speaker(index)}"]
        if not others:
            raise ValueError(
                "corruption.audio.noise: babble is made of the other speakers of the pool, and there is "
                f"nobody but {store.speaker(index)}: take white noise, or a corpus with more speakers"
            )
        generator = np.random.default_rng(derive(seed, "voices", store.id(index)))
        heard = generator.permutation(len(others))[:num_voices]
        drawn[index] = [int(generator.choice(others[place])) for place in heard]
    return drawn


def _orders(corpus: Corpus, chosen: Chosen, voices: Mapping[int, list[int]]) -> dict[str, Order]:
    """By utterance id; utterances are looked up in one walk through the corpus."""
    needed = {*voices, *(voice for drawn in voices.values() for voice in drawn)}
    found = {index: one for index, one in enumerate(corpus.utterances()) if index in needed}
    return {
        found[index].id: Order(client, tuple(found[voice] for voice in voices[index]))
        for client, indices in chosen.kept.items()
        for index in indices.tolist()
    }


def _merged(corpus: Corpus, clean: FeatureStore, distorted: Extracted, changed: set[int]) -> Extracted:
    """All utterances in order: those distorted as they come, the others from the clean store."""
    with closing(distorted):
        for index, utterance in enumerate(corpus.utterances()):
            yield next(distorted) if index in changed else (utterance, clean.features(index))
