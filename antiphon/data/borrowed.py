"""Features of a corpus some of whose utterances are in another corpus that has its features already.

An encoder takes longer than anything else here: frames that were computed once are copied.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from antiphon.data.corpus import Corpus, Utterance
from antiphon.data.extraction import Extracted, extract_in_order
from antiphon.data.frontends import Frontend
from antiphon.data.store import FeatureStore, Progress, corpus_fingerprint, stored


@dataclass(frozen=True)
class _Rest:
    """The utterances nobody has frames of; see `extraction.Speech`."""

    corpus: Corpus
    known: frozenset[str]

    @property
    def path(self) -> Path:
        return self.corpus.path

    def utterances(self) -> Iterator[Utterance]:
        return (utterance for utterance in self.corpus.utterances() if utterance.id not in self.known)

    def read_audio(self, utterance: Utterance) -> np.ndarray:
        return self.corpus.read_audio(utterance)


def borrow_features(
    corpus: Corpus,
    lender: Corpus,
    ids: frozenset[str],
    frontend: Frontend,
    num_workers: int = 1,
    progress: Progress | None = None,
) -> FeatureStore:
    """The corpus's features; those of `ids`, the same utterances in both, from the lender where it has any.

    Nothing is written to the lender.
    """
    folder = Path(lender.path) / "features" / frontend.key()
    store = FeatureStore.open(folder) if folder.exists() else None
    if store is None or store.fingerprint != corpus_fingerprint(lender):
        store, ids = None, frozenset()

    def extract() -> Extracted:
        rest = extract_in_order(_Rest(corpus, ids), frontend, num_workers)
        return _merged(corpus, store, ids, rest)

    return stored(corpus, frontend, frontend.key(), corpus_fingerprint(corpus), extract, progress)


def _merged(corpus: Corpus, store: FeatureStore | None, ids: frozenset[str], rest: Extracted) -> Extracted:
    places = {store.id(place): place for place in range(len(store))} if store is not None else {}
    with closing(rest):
        for utterance in corpus.utterances():
            if store is not None and utterance.id in ids:
                yield utterance, store.features(places[utterance.id])
            else:
                yield next(rest)
