from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from antiphon.data.batches import Batch, repeated
from antiphon.data.tokens import Characters
from antiphon.decoding.beams.attention_beam import AttentionBeam, Penalties
from antiphon.decoding.fusion import Fusion
from antiphon.lm.kneser_ney import estimate
from antiphon.models.blstm import BlstmConfig
from antiphon.models.las import Decoder, LasConfig, Memory

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
    found = AttentionBeam(1, Penalties(**penalties)).nbest(model, TOKENS, batch)
    assert [list(only.tokens) for (only,) in found] == model.greedy(batch)


@torch.no_grad()
def every_hypothesis(model, num_frames, num_tokens=4):
    """All that may be spelled from one utterance: tokens, how many they are with their end, and ln p."""
    limit = -(-num_frames // 2)
    for length in range(limit + 1):
        texts = list(product(range(1, num_tokens), repeat=length))
        all_log_probs = model(batch_of([num_frames] * len(texts), texts))[0].log_softmax(dim=-1)
        for spelled, log_probs in zip(texts, all_log_probs, strict=True):
            acoustic = sum(log_probs[i, token].item() for i, token in enumerate(spelled))
            if length < limit:
                yield spelled, length + 1, acoustic + log_probs[length, 0].item()
            else:
                yield spelled, length, acoustic


@pytest.mark.parametrize("penalties", [{}, {"normalisation": 0.7}, {"bonus": 0.6}])
def test_a_wide_beam_finds_the_best_of_everything_that_may_be_spelled(penalties):
    model, tokens = build(1, num_tokens=4, sharpness=3.0), Characters("ab")
    beam = AttentionBeam(60, Penalties(**penalties))
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
    for h in AttentionBeam(5, Penalties(bonus=0.25, coverage_weight=0.5)).nbest(model, TOKENS, batch)[0]:
        assert math.isclose(
            h.score, h.total({"acoustic": 1.0, "length": 0.25, "coverage": 0.5}), abs_tol=1e-9
        )
        memory = model.listen(batch.features, batch.feature_lengths)
        decoder, heard = model.start(memory), 0.0
        for token in (0, *h.tokens)[: int(h.parts["length"])]:
            decoder = model.step(model.embedding(torch.tensor([token])), decoder, memory)
            heard = heard + decoder.weights[0]
        assert math.isclose(h.parts["coverage"], heard.clamp(1e-4, 1).log().sum().item(), abs_tol=1e-9)


# --- With a language model ------------------------------------------------------------------------

WORDS = Characters(" ab")  # 0 end, 1 unknown, 2 space, 3 a, 4 b
SENTENCES = ["a", "a b", "ab a", "b b b", "ab"]


def fused(weight=0.8, word_bonus=0.7, sentences=SENTENCES):
    return Fusion(estimate(sentences, order=3), weight, word_bonus)


def totals(model, num_frames, fusion, penalties):
    """The best score of each text, by brute force, with the language model's own score of the sentence."""
    found = {}
    for spelled, length, acoustic in every_hypothesis(model, num_frames, WORDS.size):
        text = " ".join(WORDS.decode(spelled).split())
        lm = fusion.model.score_sentences([text])[0]
        score = acoustic / ((5 + length) / 6) ** penalties.normalisation + penalties.bonus * length
        score += fusion.weight * lm + fusion.word_bonus * len(text.split())
        if text not in found or score > found[text][0]:
            found[text] = score, acoustic, lm
    return found


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("penalties", [Penalties(), Penalties(normalisation=0.7, bonus=0.2)])
def test_with_a_language_model_a_wide_beam_finds_the_best_total_of_everything(seed, penalties):
    model, fusion = build(seed, WORDS.size, sharpness=3.0), fused()
    expected = totals(model, 6, fusion, penalties)
    (hypotheses,) = AttentionBeam(1 + 4 + 16 + 64, penalties, fusion).nbest(model, WORDS, batch_of([6]))
    assert {h.text for h in hypotheses} == expected.keys()
    for h in hypotheses:
        score, acoustic, lm = expected[h.text]
        assert math.isclose(h.parts["lm"], lm, abs_tol=1e-9)  # the end counts once, where it is cut off too
        assert math.isclose(h.parts["acoustic"], acoustic, abs_tol=1e-9)
        assert math.isclose(h.score, score, abs_tol=1e-9)
        assert h.parts["words"] == len(h.text.split())
    assert hypotheses[0].score == max(h.score for h in hypotheses)


def test_narrow_beams_with_a_language_model_come_near_the_best_of_everything():
    best = {1: [], 4: [], 12: []}
    for seed in range(6):
        model, fusion = build(seed, WORDS.size, sharpness=3.0), fused()
        top = max(score for score, _, _ in totals(model, 8, fusion, Penalties()).values())
        for width, short in best.items():
            (hypotheses,) = AttentionBeam(width, fusion=fusion).nbest(model, WORDS, batch_of([8]))
            assert 1 <= len(hypotheses) <= width
            short.append(top - hypotheses[0].score)
    assert min(map(min, best.values())) > -1e-9  # nothing is better than the best
    assert sum(best[12]) < 1e-9
    assert sum(best[4]) <= sum(best[1])


def test_parts_with_a_language_model_add_up_to_the_score():
    model, fusion = build(2, WORDS.size), fused(0.4, 0.3)
    beam = AttentionBeam(5, Penalties(bonus=0.25, coverage_weight=0.5), fusion)
    weights = {"acoustic": 1.0, "length": 0.25, "coverage": 0.5, "lm": 0.4, "words": 0.3}
    for h in beam.nbest(model, WORDS, batch_of([14]))[0]:
        assert math.isclose(h.score, h.total(weights), abs_tol=1e-9)
        assert math.isclose(h.parts["lm"], fusion.model.score_sentences([h.text])[0], abs_tol=1e-9)


@pytest.mark.parametrize("width", [1, 4])
def test_a_language_model_that_weighs_nothing_changes_nothing(width):
    model, batch = build(1, WORDS.size), batch_of([20, 9, 31])
    fusion = fused(weight=0.0, word_bonus=0.0)
    without = AttentionBeam(width).nbest(model, WORDS, batch)
    fused_lists = AttentionBeam(width, fusion=fusion).nbest(model, WORDS, batch)
    for plain, found in zip(without, fused_lists, strict=True):
        # What was pushed out of the beam after its end may come back, at the end of the list or before.
        texts = {h.text: h for h in found}
        assert {h.text for h in plain[:1]} <= texts.keys()
        for h in plain:
            assert h.text not in texts or math.isclose(texts[h.text].score, h.score, abs_tol=1e-9)
        assert found[0].score >= plain[0].score - 1e-9


def test_a_language_model_changes_what_is_read():
    model, batch = build(1, WORDS.size, sharpness=0.1), batch_of([6])
    for text in ("ab", "ba", "a a", "b b"):
        fusion = fused(weight=3.0, word_bonus=0.0, sentences=[text] * 9)
        assert AttentionBeam(12, fusion=fusion).nbest(model, WORDS, batch)[0][0].text == text


def test_with_a_language_model_an_utterance_is_read_the_same_alone_and_in_a_padded_batch():
    model, frames, beam = build(3, WORDS.size), [20, 9, 31], AttentionBeam(4, fusion=fused())
    together = beam.nbest(model, WORDS, batch_of(frames, padding=8))
    for length, hypotheses in zip(frames, together, strict=True):
        (alone,) = beam.nbest(model, WORDS, batch_of([length]))
        assert [h.tokens for h in alone] == [h.tokens for h in hypotheses]
        assert np.allclose([h.score for h in alone], [h.score for h in hypotheses], atol=1e-10)


class Scripted:
    """Stands in for a model: the probabilities of the next token after each prefix are written down."""

    def __init__(self, script):
        self.script = script

    def listen(self, features, lengths):
        frames = torch.zeros(len(features), features.shape[1] // 2, 1, dtype=torch.float64)
        return Memory(frames, frames, torch.zeros(1, 1), torch.ones(frames.shape[:2], dtype=torch.bool))

    def start(self, memory, num_texts):
        nothing = torch.zeros(len(memory.frames) * num_texts, 0, dtype=torch.int64)
        return Decoder((), nothing, repeated(memory.frames[:, :, 0], num_texts), nothing)

    def embedding(self, tokens):
        return tokens[:, None]

    def step(self, last, decoder, memory):
        prefix = torch.cat((decoder.context, last), dim=1)
        return Decoder((), prefix, decoder.weights, prefix)

    def classify(self, prefixes):
        logits = torch.full((len(prefixes), WORDS.size), -30.0, dtype=torch.float64)
        for row, prefix in zip(logits, prefixes.tolist(), strict=True):
            for token, probability in self.script.get(tuple(prefix[1:]), {0: 1.0}).items():
                row[token] = math.log(probability)
        return logits


def test_a_good_sentence_that_ended_is_not_lost_to_others_that_have_not_paid_for_their_last_word():
    a, b, end = 3, 4, 0
    model = Scripted(
        {
            (): {a: 1.0},
            (a,): {b: 0.36, end: 0.33, a: 0.31},
            (a, b): {end: 1.0},
            (a, a): {end: 1.0},
        }
    )
    fusion = fused(1.0, 0.0, ["a"] * 12 + ["ab", "aa", "a b"])
    costs = {text: fusion.model.score_sentences([text])[0] for text in ("a", "ab", "aa")}
    # "a" pays at once and falls behind "aa", which looks better until it pays too.
    assert math.log(0.33) + costs["a"] < math.log(0.31)
    assert math.log(0.33) + costs["a"] > max(math.log(0.36) + costs["ab"], math.log(0.31) + costs["aa"])
    (hypotheses,) = AttentionBeam(2, fusion=fusion).nbest(model, WORDS, batch_of([6]))
    assert [h.text for h in hypotheses] == ["a", "ab"]


# --- Whoever else is in the batch -----------------------------------------------------------------


def test_an_utterance_is_read_the_same_alone_and_in_a_padded_batch():
    model, frames = build(3), [20, 9, 31]
    beam = AttentionBeam(4, Penalties(normalisation=0.5, coverage_weight=0.2))
    together = beam.nbest(model, TOKENS, batch_of(frames, padding=8))
    for length, hypotheses in zip(frames, together, strict=True):
        (alone,) = beam.nbest(model, TOKENS, batch_of([length]))
        assert [h.tokens for h in alone] == [h.tokens for h in hypotheses]
        assert np.allclose([h.score for h in alone], [h.score for h in hypotheses], atol=1e-10)


def test_a_bonus_makes_hypotheses_longer():
    model, batch = build(0), batch_of([20, 26])
    lengths = [
        sum(len(h[0].tokens) for h in AttentionBeam(6, Penalties(bonus=bonus)).nbest(model, TOKENS, batch))
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
