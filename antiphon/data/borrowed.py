"""Features of a corpus that shares utterances with another corpus, which has its features already.

Running an encoder takes longer than anything else here, so frames that were computed once are copied.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from antiphon.data.corpus import Corpus, Utterance
from antiphon.data.extraction import Extracted, extract_in_order
from antiphon.data.frontends import Frontend
from antiphon.data.store import FeatureStore, Progress, compute_features, corpus_fingerprint, stored


def borrow_features(
    corpus: Corpus,
    lender: Corpus,
    ids: frozenset[str],
    frontend: Frontend,
    num_workers: int = 1,
    progress: Progress | None = None,
) -> FeatureStore:
    """The corpus's features; those of `ids`, utterances that both have, from the lender if it has features.

    Nothing is written to the lender.
    """
    folder = Path(lender.path) / "features" / frontend.key()
    store = FeatureStore.open(folder) if folder.exists() else None
    if store is None or store.fingerprint != corpus_fingerprint(lender):
        return compute_features(corpus, frontend, num_workers, progress)
    indices = {store.id(index): index for index in range(len(store))}

    def known(_: int, utterance: Utterance) -> np.ndarray | None:
        return store.features(indices[utterance.id]) if utterance.id in ids else None

    def extract() -> Extracted:
        return extract_in_order(corpus, frontend, num_workers, known)

    return stored(corpus, frontend, frontend.key(), corpus_fingerprint(corpus), extract, progress)
