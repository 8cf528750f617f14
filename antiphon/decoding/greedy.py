"""Greedy decoding of many utterances, in batches of similar length."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from antiphon.data.batches import Batch, Utterances, unlabelled_batches
from antiphon.data.tokens import Tokens
from antiphon.models.model import Model

BATCH_SECONDS = 240.0


@torch.inference_mode()
def recognise(
    model: Model,
    tokens: Tokens,
    store: Utterances,
    indices: np.ndarray,
    device: torch.device | str = "cpu",
    feed: Callable[[np.ndarray], Batch] | None = None,
) -> dict[int, str]:
    """What the model hears in each utterance, by its index in the store.

    A batch is read from the store, or comes from a feed (`antiphon.data.batches`) that has it on the device.
    """
    model.eval()
    heard = {}
    for chosen, batch in unlabelled_batches(store, indices, BATCH_SECONDS, feed):
        for index, ids in zip(chosen, model.greedy(batch if feed else batch.to(device)), strict=True):
            heard[int(index)] = tokens.decode(ids)
    return {int(index): heard[int(index)] for index in indices}
