"""Greedy decoding of many utterances, in batches of similar length."""

from __future__ import annotations

import numpy as np
import torch

from antiphon.data.batches import Utterances, unlabelled_batches
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
) -> dict[int, str]:
    """What the model hears in each utterance, by its index in the store."""
    model.eval()
    heard = {}
    for chosen, batch in unlabelled_batches(store, indices, BATCH_SECONDS):
        for index, ids in zip(chosen, model.greedy(batch.to(device)), strict=True):
            heard[int(index)] = tokens.decode(ids)
    return {int(index): heard[int(index)] for index in indices}
