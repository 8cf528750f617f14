from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from antiphon.data.batches import Batch
from antiphon.data.tokens import Characters
from antiphon.decoding.attention_beam import AttentionBeam
from antiphon.models.blstm import BlstmConfig
from antiphon.models.las import LasConfig

TOKENS = Characters("abcde")  # 0 end, 1 unknown, 2 … 6


def build(seed, num_tokens=7, sharpness=6.0):
    torch.manual_seed(seed)
    model = LasConfig(
        BlstmConfig(dim=4, num_layers=1, stack=2), decoder_dim=6, attention_dim=5, location_width=3
    ).build(5, num_tokens)
    with torch.no_grad():
        model.output.weight.mul_(sharpness)
        model.embedding.weight.mul_(3)
    return model.double().eval()


def batch_of(frames, tokens=None, padding=0):
    features = torch.zeros(len(frames), max(frames) + padding, 5, dtype=torch.float64)
    for row, length in enumerate(frames):
        generator = torch.Generator().manual_seed(length)
        features[row, :length] = torch.randn(length, 5, generator=generator, dtype=torch.float64)
    tokens = tokens or [[] for _ in frames]
    ids = torch.zeros(len(frames), max(map(len, tokens)), dtype=torch.int64)
    for row, spelled in enumerate(tokens):
        ids[row, : len(spelled)] = torch.tensor(spelled, dtype=torch.int64)
    lengths = torch.tensor([len(spelled) for spelled in tokens])
    return Batch(features, torch.tensor(frames), ids, lengths, tuple(range(len(frames))))


PENALTIES = [{}, {"normalisation": 0.7}, {"bonus": 0.6}, {"coverage_weight": 0.3, "normalisation": 1.0}]


@pytest.mark.parametrize("penalties", PENALTIES)
@pytest.mark.parametrize("seed", range(4))
def test_a_beam_of_one_is_greedy_whatever_the_penalties(seed, penalties):
    model, batch = build(seed), batch_of([20, 8, 31])
    found = AttentionBeam(width=1, **penalties).nbest(model, TOKENS, batch)
    assert [list(only.tokens) for (only,) in found] == model.greedy(batch)


def every_hypothesis(model, num_frames):
    """All that may be spelled from one utterance: tokens, whether they have an end, and ln p."""
    limit = -(-num_frames // 2)
    for length in range(limit + 1):
        for spelled in product(range(1, 4), repeat=length):
            batch = batch_of([num_frames], [list(spelled)])
            log_probs = model(batch)[0][0].log_softmax(dim=-1)
            acoustic = sum(log_probs[i, token].item() for i, token in enumerate(spelled))
            if length < limit:
                yield spelled, length + 1, acoustic + log_probs[length, 0].item()
            else:
                yield spelled, length, acoustic


@pytest.mark.parametrize("penalties", [{}, {"normalisation": 0.7}, {"bonus": 0.6}])
def test_a_wide_beam_finds_the_best_of_everything_that_may_be_spelled(penalties):
    model, tokens = build(1, num_tokens=4, sharpness=3.0), Characters("ab")
    beam = AttentionBeam(width=60, **penalties)
    (hypotheses,) = beam.nbest(model, tokens, batch_of([6]))
    alpha, bonus = penalties.get("normalisation", 0.0), penalties.get("bonus", 0.0)
    expected = {
        spelled: (acoustic, acoustic / ((5 + length) / 6) ** alpha + bonus * length)
        for spelled, length, acoustic in every_hypothesis(model, 6)
    }
    assert len(expected) == 1 + 3 + 9 + 27
    assert {h.tokens for h in hypotheses} == expected.keys()
    for h in hypotheses:
        acoustic, score = expected[h.tokens]
        assert math.isclose(h.parts["acoustic"], acoustic, abs_tol=1e-9)
        assert math.isclose(h.score, score, abs_tol=1e-9)
    assert [h.score for h in hypotheses] == sorted((h.score for h in hypotheses), reverse=True)


def test_parts_add_up_to_the_score_and_coverage_is_what_attention_left_out():
    model, batch = build(2), batch_of([14])
    for h in AttentionBeam(width=5, bonus=0.25, coverage_weight=0.5).nbest(model, TOKENS, batch)[0]:
        assert math.isclose(
            h.score, h.total({"acoustic": 1.0, "length": 0.25, "coverage": 0.5}), abs_tol=1e-9
        )
        memory = model.listen(batch.features, batch.feature_lengths)
        decoder, heard = model.start(memory), 0.0
        for token in (0, *h.tokens)[: int(h.parts["length"])]:
            decoder = model.step(model.embedding(torch.tensor([token])), decoder, memory)
            heard = heard + decoder.weights[0]
        assert math.isclose(h.parts["coverage"], heard.clamp(1e-4, 1).log().sum().item(), abs_tol=1e-9)


def test_an_utterance_is_read_the_same_alone_and_in_a_padded_batch():
    model, frames = build(3), [20, 9, 31]
    beam = AttentionBeam(width=4, normalisation=0.5, coverage_weight=0.2)
    together = beam.nbest(model, TOKENS, batch_of(frames, padding=8))
    for length, hypotheses in zip(frames, together, strict=True):
        (alone,) = beam.nbest(model, TOKENS, batch_of([length]))
        assert [h.tokens for h in alone] == [h.tokens for h in hypotheses]
        assert np.allclose([h.score for h in alone], [h.score for h in hypotheses], atol=1e-10)


def test_a_bonus_makes_hypotheses_longer():
    model, batch = build(0), batch_of([20, 26])
    lengths = [
        sum(len(h[0].tokens) for h in AttentionBeam(width=6, bonus=bonus).nbest(model, TOKENS, batch))
        for bonus in (-2.0, 0.0, 2.0)
    ]
    assert lengths == sorted(lengths)
    assert lengths[0] < lengths[-1]


def test_what_stands_in_the_padding_changes_nothing():
    model, batch = build(1), batch_of([12, 7], padding=3)
    features = batch.features.clone()
    features[0, 12:], features[1, 7:] = float("nan"), 1e6
    beam = AttentionBeam(width=3)
    clean, dirty = (beam.nbest(model, TOKENS, b) for b in (batch, replace(batch, features=features)))
    assert clean == dirty


def test_a_beam_without_room_is_refused():
    with pytest.raises(ValueError, match="at least 1"):
        AttentionBeam(width=0)
