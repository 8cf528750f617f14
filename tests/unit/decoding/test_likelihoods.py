"""Texts of one utterance scored together beside each by the loss of its own batch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from world import MODELS, World

from antiphon.data.batches import collate
from antiphon.decoding.search import IMPOSSIBLE, likelihoods

TEXTS = ["ab c", "ab d", "ab cc", "a", "", "b" * 5, "cab cab"] + [f"abcde {letter}" for letter in "abcde"] * 3


@pytest.mark.parametrize("name", MODELS)
def test_every_text_scores_as_by_its_loss_alone(world: World, name: str) -> None:
    model, index = world.runtime(name).model.eval(), world.store.where("test")[0]
    unlabelled = collate(world.store, [index], lambda text: [])
    found = likelihoods(model, unlabelled, [world.tokens.encode(text) for text in TEXTS])
    assert found.shape == (len(TEXTS),)
    assert np.isfinite(found).all()
    assert len(np.unique(found.round(6))) > 8
    for text, value in zip(TEXTS, found, strict=True):
        own = collate(world.store, [index], lambda _, text=text: world.tokens.encode(text))
        with torch.no_grad():
            expected = -float(model.losses(own))
        assert value == pytest.approx(expected, abs=1e-4), text


def test_a_text_without_an_alignment_is_impossible_but_finite(world: World) -> None:
    batch = collate(world.store, [world.store.where("test")[0]], lambda text: [])
    batch = replace(batch, features=batch.features[:, :4], feature_lengths=torch.tensor([4]))
    short, long = likelihoods(world.runtime("ctc").model.eval(), batch, [[3], [3, 4, 5]])
    assert IMPOSSIBLE < short < 0
    assert long == IMPOSSIBLE
