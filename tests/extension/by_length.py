"""A way to divide speech between clients: utterances of similar length are together."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from antiphon.data.partition import Clients
from antiphon.data.store import FeatureStore


@dataclass(frozen=True)
class ByLength:
    parts: int = 4

    def __call__(self, store: FeatureStore, indices: np.ndarray, seed: int) -> Clients:
        order = indices[np.argsort(store.seconds[indices], kind="stable")]
        return {f"length/{n}": np.sort(part) for n, part in enumerate(np.array_split(order, self.parts))}
