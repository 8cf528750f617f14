"""What a model attends to in a few utterances it recognises: for the report, beside its scores.

By its own tokens, found by greedy search, not by the reference: what is drawn is what the model does.
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
    """The body of attention.json; None where no utterance has two tokens or more."""
    found = attend(model, store, spread(store, indices)[:MEASURED])
    found = {index: weights for index, weights in found.items() if len(weights) > 1}
    if not found:
        return None
    first_of = {store.speaker(index): index for index in reversed(found)}
    drawn = sorted(first_of.values())[:: -(-len(first_of) // DRAWN)]
    return {
        "format": FORMAT,
        "tokens": "recognised",
        "num_utterances": len(found),
        "monotonic": monotonicity(list(found.values())),
        "span": float(np.mean([span(weights) for weights in found.values()])),
        "examples": [
            {
                "id": store.id(index),
                "speaker": store.speaker(index),
                "seconds": float(store.seconds[index]),
                "weights": found[index].round(DECIMALS).tolist(),
            }
            for index in drawn
        ],
    }


def spread(store: FeatureStore, indices: np.ndarray) -> list[int]:
    """One utterance of every speaker, then another of each; first those of about the median length."""
    middle = np.median(store.num_frames[indices])
    near = sorted(indices.tolist(), key=lambda index: (abs(int(store.num_frames[index]) - middle), index))
    by_speaker: dict[str, list[int]] = {}
    for index in near:
        by_speaker.setdefault(store.speaker(index), []).append(index)
    turns = zip_longest(*(by_speaker[speaker] for speaker in sorted(by_speaker)))
    return [index for turn in turns for index in turn if index is not None]


@torch.inference_mode()
def attend(model: Las, store: FeatureStore, indices: list[int]) -> dict[int, np.ndarray]:
    """Attention [tokens, frames] of the tokens recognised in each utterance, in the order of `indices`."""
    model.eval()
    device = next(model.parameters()).device
    found: dict[int, np.ndarray] = {}
    for chosen, unlabelled in unlabelled_batches(store, np.array(indices), BATCH_SECONDS):
        batch = unlabelled.to(device)
        spelled = [torch.tensor(tokens, dtype=torch.int64, device=device) for tokens in model.greedy(batch)]
        lengths = torch.tensor([len(tokens) for tokens in spelled], device=device)
        batch = replace(batch, tokens=pad_sequence(spelled, batch_first=True), token_lengths=lengths)
        for index, weights in zip(chosen.tolist(), model.alignments(batch), strict=True):
            found[index] = weights.double().cpu().numpy()
    return {index: found[index] for index in indices}
