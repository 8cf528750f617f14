"""The attention of a model in a few utterances, for the report.

The tokens are those that the model recognises by greedy search, not those of the reference.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from antiphon.data.batches import unlabelled_batches
from antiphon.data.store import FeatureStore
from antiphon.decoding.search import BATCH_SECONDS
from antiphon.models.las import Las
from antiphon.report.attention_summary import FORMAT, monotonicity, span

MEASURED, DRAWN = 64, 4  # utterances
DECIMALS = 3  # of a weight in the file


def attention_of(model: Las, store: FeatureStore, indices: np.ndarray) -> dict[str, Any] | None:
    """Return the body of attention.json; None if no utterance has two tokens or more."""
    attention = attend(model, store, spread(store, indices)[:MEASURED])
    attention = {index: weights for index, weights in attention.items() if len(weights) > 1}
    if not attention:
        return None
    first_of = {store.speaker(index): index for index in reversed(attention)}
    drawn = sorted(first_of.values())[:: -(-len(first_of) // DRAWN)]
    return {
        "format": FORMAT,
        "tokens": "recognised",
        "num_utterances": len(attention),
        "monotonic": monotonicity(list(attention.values())),
        "span": float(np.mean([span(weights) for weights in attention.values()])),
        "examples": [
            {
                "id": store.id(index),
                "speaker": store.speaker(index),
                "seconds": float(store.seconds[index]),
                "weights": attention[index].round(DECIMALS).tolist(),
            }
            for index in drawn
        ],
    }


def spread(store: FeatureStore, indices: np.ndarray) -> list[int]:
    """Order utterances: one of every speaker, then a second one of each; those of median length first."""
    middle = np.median(store.num_frames[indices])
    near = sorted(indices.tolist(), key=lambda index: (abs(int(store.num_frames[index]) - middle), index))
    by_speaker: dict[str, list[int]] = {}
    for index in near:
        by_speaker.setdefault(store.speaker(index), []).append(index)
    turns = zip_longest(*(by_speaker[speaker] for speaker in sorted(by_speaker)))
    return [index for turn in turns for index in turn if index is not None]


@torch.inference_mode()
def attend(model: Las, store: FeatureStore, indices: list[int]) -> dict[int, np.ndarray]:
    """Return the attention [tokens, frames] of the tokens recognised in each utterance."""
    model.eval()
    device = next(model.parameters()).device
    attention: dict[int, np.ndarray] = {}
    for chosen, unlabelled in unlabelled_batches(store, np.array(indices), BATCH_SECONDS):
        batch = unlabelled.to(device)
        spelled = [torch.tensor(tokens, dtype=torch.int64, device=device) for tokens in model.greedy(batch)]
        lengths = torch.tensor([len(tokens) for tokens in spelled], device=device)
        batch = replace(batch, tokens=pad_sequence(spelled, batch_first=True), token_lengths=lengths)
        for index, weights in zip(chosen.tolist(), model.alignments(batch), strict=True):
            attention[index] = weights.double().cpu().numpy()
    return {index: attention[index] for index in indices}
