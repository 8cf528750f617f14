"""N-best lists of many utterances, in batches of similar length; how fast they came is told."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
import torch

from antiphon.data.batches import Batch, collate, plan_batches
from antiphon.data.store import FeatureStore
from antiphon.data.tokens import Tokens
from antiphon.decoding.greedy import BATCH_SECONDS
from antiphon.decoding.hypothesis import Hypothesis, NBest
from antiphon.models.model import Model

M = TypeVar("M", bound=Model, contravariant=True)


class Search(Protocol[M]):
    """A beam search for models of one kind: `CtcBeam`, `AttentionBeam`, those of transducers."""

    def nbest(self, model: M, tokens: Tokens, batch: Batch) -> list[tuple[Hypothesis, ...]]:
        """Hypotheses of each utterance of the batch, best first. Call `model.eval()` first."""
        ...


@dataclass(frozen=True)
class Found:
    """Lists in the order asked for, and seconds of work for a second of speech."""

    lists: tuple[NBest, ...]
    real_time_factor: float


def search_all(
    search: Search[M],
    model: M,
    tokens: Tokens,
    store: FeatureStore,
    indices: np.ndarray,
    device: torch.device | str = "cpu",
) -> Found:
    """What may have been said in each utterance, with its reference."""
    model.eval()
    started = time.monotonic()
    found: dict[int, NBest] = {}
    max_frames = int(BATCH_SECONDS * store.frames_per_second)
    for chosen in plan_batches(store.num_frames, indices, max_frames, None):
        batch = collate(store, chosen, lambda text: []).to(device)
        for index, hypotheses in zip(map(int, chosen), search.nbest(model, tokens, batch), strict=True):
            found[index] = NBest(
                store.id(index),
                hypotheses,
                reference=store.text(index),
                speaker=store.speaker(index),
                session=store.session(index),
                split=store.split(index),
            )
    spent = time.monotonic() - started
    seconds = float(store.seconds[indices].sum())
    return Found(tuple(found[int(index)] for index in indices), spent / max(seconds, 1e-9))
