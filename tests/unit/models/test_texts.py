"""Several texts an utterance: what a model makes of all is the weighted sum of what it makes of each."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from antiphon.data.batches import Batch
from antiphon.models.noise import Dropout, noise_from

FRAMES = [23, 17]
TEXTS = [[[1, 2], [3, 1, 4], [5]], [[6, 2, 6], [2], []]]  # the last is there to fill up
WEIGHTS = torch.tensor([[0.5, 0.3, 0.2], [0.9, 0.1, 0.0]], dtype=torch.float64)


def all_at_once(batch_of) -> Batch:
    """Both utterances with all their texts."""
    texts = [text for row in TEXTS for text in row]
    spelled = batch_of([9] * len(texts), texts)
    heard = batch_of(FRAMES, [[1], [1]])
    texts_of_both = {"tokens": spelled.tokens, "token_lengths": spelled.token_lengths}
    return replace(heard, **texts_of_both, weights=WEIGHTS.flatten())


def one_by_one(batch_of, number: int) -> Batch:
    """Both utterances with their text of this number."""
    return batch_of(FRAMES, [row[number] for row in TEXTS])


def test_the_loss_of_many_texts_is_the_weighted_sum_of_their_losses(tiny, batch_of):
    batch = all_at_once(batch_of)
    found = batch.per_token(tiny.losses(batch))
    expected = torch.zeros(2, dtype=torch.float64)
    for number in range(3):
        single = one_by_one(batch_of, number)
        losses = tiny.losses(single) / single.token_lengths.clamp(min=1)
        expected += WEIGHTS[:, number] * losses
    assert found.shape == (2,)
    assert (found - expected).abs().max() < 1e-10


@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_so_is_its_gradient_with_dropout_too(tiny, batch_of, rate):
    for module in tiny.modules():
        if isinstance(module, Dropout):
            module.rate = rate
    keys = torch.tensor([11, 12], dtype=torch.int32)

    def gradient(batch: Batch, weights: torch.Tensor):
        with noise_from(keys):
            losses = batch.per_token(tiny.losses(batch))
        return torch.autograd.grad((losses * weights).sum(), list(tiny.parameters()))

    together = gradient(all_at_once(batch_of), torch.ones(2))
    parts = [gradient(one_by_one(batch_of, number), WEIGHTS[:, number]) for number in range(3)]
    for whole, *pieces in zip(together, *parts, strict=True):
        assert (whole - sum(pieces)).abs().max() < 1e-10


def test_the_encoder_hears_an_utterance_once_for_all_its_texts(tiny, batch_of, monkeypatch):
    heard = []
    encode = type(tiny.encoder).forward

    def watched(encoder, features, lengths):
        heard.append(len(features))
        return encode(encoder, features, lengths)

    monkeypatch.setattr(type(tiny.encoder), "forward", watched)
    assert tiny.losses(all_at_once(batch_of)).shape == (6,)
    assert heard == [2]


def test_one_text_of_weight_1_is_an_ordinary_batch(tiny, batch_of):
    plain = one_by_one(batch_of, 0)
    weighted = replace(plain, weights=torch.ones(2, dtype=torch.float64))
    assert torch.equal(plain.per_token(tiny.losses(plain)), weighted.per_token(tiny.losses(weighted)))


def test_a_batch_keeps_its_weights_on_its_way_through_tensors(batch_of):
    batch = all_at_once(batch_of)
    again = Batch.of(batch.to("cpu").tensors)
    assert torch.equal(again.weights, batch.weights)
    assert (again.num_texts, Batch.of(one_by_one(batch_of, 0).tensors).weights) == (3, None)
