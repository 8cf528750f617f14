from __future__ import annotations

import math
from collections import defaultdict
from itertools import groupby, product

import numpy as np
import pytest
import torch
from one_utterance_beam import OneUtteranceBeam

from antiphon.data.batches import Batch
from antiphon.data.tokens import Characters, UnigramConfig
from antiphon.decoding.beams.ctc_beam import CtcBeam
from antiphon.decoding.beams.prefixes import speller_for
from antiphon.decoding.fusion import Fusion, Speller, surfaces
from antiphon.lm.kneser_ney import estimate
from antiphon.models.conformer import ConformerConfig
from antiphon.models.ctc import CtcConfig

TOKENS = Characters(" ab")  # 0 blank, 1 unknown, 2 space, 3 a, 4 b


def random_log_probs(num_frames, num_tokens=5, seed=0, sharpness=1.0):
    values = np.random.default_rng(seed).normal(size=(num_frames, num_tokens)) * sharpness
    return values - np.logaddexp.reduce(values, axis=1, keepdims=True)


def read(beam, log_probs, tokens=TOKENS):
    """Hypotheses of one utterance."""
    lengths = np.array([len(log_probs)])
    return beam.read(log_probs[None], lengths, tokens, speller_for(beam.fusion, tokens))[0]


def all_alignments(log_probs):
    """ln p of every sequence of tokens, summed over its alignments."""
    found = defaultdict(lambda: -np.inf)
    for path in product(range(log_probs.shape[1]), repeat=len(log_probs)):
        spelled = tuple(token for token, _ in groupby(path) if token)
        score = sum(log_probs[t, token] for t, token in enumerate(path))
        found[spelled] = np.logaddexp(found[spelled], score)
    return found


def by_text(sequences, tokens):
    found = defaultdict(lambda: -np.inf)
    for spelled, score in sequences.items():
        text = " ".join(tokens.decode(spelled).split())
        found[text] = np.logaddexp(found[text], score)
    return found


@pytest.mark.parametrize("seed", range(4))
def test_a_wide_beam_sums_over_every_alignment(seed):
    log_probs = random_log_probs(4, seed=seed)
    expected = by_text(all_alignments(log_probs), TOKENS)
    hypotheses = read(CtcBeam(width=5000), log_probs)
    assert {h.text for h in hypotheses} == expected.keys()
    for hypothesis in hypotheses:
        assert math.isclose(hypothesis.parts["acoustic"], expected[hypothesis.text], rel_tol=1e-12)
        assert hypothesis.score == hypothesis.parts["acoustic"]
    assert math.isclose(sum(math.exp(h.score) for h in hypotheses), 1.0)
    assert list(hypotheses) == sorted(hypotheses, key=lambda h: -h.score)


@pytest.mark.parametrize("seed", range(3))
def test_with_a_language_model_a_wide_beam_finds_the_best_weighted_sum(seed):
    log_probs = random_log_probs(4, seed=seed)
    fusion = Fusion(estimate(["a", "a b", "ab a", "b b b"], order=3), weight=0.8, word_bonus=0.7)
    hypotheses = read(CtcBeam(width=5000, fusion=fusion), log_probs)
    expected = by_text(all_alignments(log_probs), TOKENS)
    assert len(hypotheses) == len(expected)
    for h in hypotheses:
        assert math.isclose(h.parts["acoustic"], expected[h.text], rel_tol=1e-12)
        assert math.isclose(h.parts["lm"], fusion.model.score_sentences([h.text])[0], rel_tol=1e-9)
        assert h.parts["words"] == len(h.text.split())
        assert math.isclose(h.score, h.total({"acoustic": 1.0, "lm": 0.8, "words": 0.7}), rel_tol=1e-12)
    assert hypotheses[0].score == max(h.score for h in hypotheses)


def test_a_narrow_beam_never_claims_more_than_the_sum_over_alignments():
    log_probs = random_log_probs(6, num_tokens=4, seed=3)
    expected = all_alignments(log_probs)
    for width in (2, 3, 8):
        for h in read(CtcBeam(width=width), log_probs, Characters("ab")):
            assert h.parts["acoustic"] <= expected[h.tokens] + 1e-12


def ctc_model(seed, num_tokens=5):
    torch.manual_seed(seed)
    model = CtcConfig(ConformerConfig(dim=8, num_layers=1, num_heads=2, kernel_size=3)).build(5, num_tokens)
    with torch.no_grad():
        model.output.weight.mul_(4)
    return model.double().eval()


def batch_of(frames, padding=0):
    features = torch.zeros(len(frames), max(frames) + padding, 5, dtype=torch.float64)
    for row, length in enumerate(frames):
        generator = torch.Generator().manual_seed(length)
        features[row, :length] = torch.randn(length, 5, generator=generator, dtype=torch.float64)
    none = torch.zeros(len(frames), 0, dtype=torch.int64)
    return Batch(features, torch.tensor(frames), none, torch.zeros(len(frames), dtype=torch.int64), (0,))


@pytest.mark.parametrize("seed", range(5))
def test_a_beam_of_one_is_greedy(seed):
    model, batch = ctc_model(seed), batch_of([30, 12, 45])
    found = CtcBeam(width=1).nbest(model, TOKENS, batch)
    assert [list(only.tokens) for (only,) in found] == model.greedy(batch)
    log_probs, lengths = model(batch)
    for (only,), rows, length in zip(found, log_probs, lengths, strict=True):
        assert math.isclose(only.score, rows[:length].max(dim=-1).values.sum().item(), rel_tol=1e-9)


def test_one_prefix_with_all_tokens_on_offer_would_not_be_greedy():
    """The counterexample of the module's documentation, and the reason for its rule."""
    log_probs = np.log(np.array([[0.01, 1e-9, 1e-9, 0.99 - 2e-9, 1e-9], [0.3, 1e-9, 1e-9, 0.3, 0.4 - 2e-9]]))
    assert read(CtcBeam(width=1), log_probs)[0].text == "ab"
    assert read(CtcBeam(width=5), log_probs)[0].text == "a"


def test_an_utterance_is_read_the_same_alone_and_in_a_padded_batch():
    model, frames = ctc_model(0), [30, 12, 45]
    fusion = Fusion(estimate(["a b", "ab"], order=2), weight=0.3, word_bonus=0.1)
    beam = CtcBeam(width=6, fusion=fusion)
    together = beam.nbest(model, TOKENS, batch_of(frames, padding=9))
    for length, hypotheses in zip(frames, together, strict=True):
        (alone,) = beam.nbest(model, TOKENS, batch_of([length]))
        assert [h.tokens for h in alone] == [h.tokens for h in hypotheses]
        assert np.allclose([h.score for h in alone], [h.score for h in hypotheses], atol=1e-10)


@pytest.mark.parametrize(
    "lm", [None, Fusion(estimate(["a b", "ab", "ba a"], order=2), weight=0.6, word_bonus=0.4)]
)
@pytest.mark.parametrize(("width", "tokens_per_frame"), [(1, 20), (2, 20), (6, 3), (16, 20)])
def test_utterances_that_are_searched_together_have_the_lists_of_one_after_another(
    lm, width, tokens_per_frame
):
    lengths = np.array([3, 40, 0, 25, 40, 1])
    log_probs = np.stack([random_log_probs(40, seed=seed, sharpness=2.0) for seed in range(len(lengths))])
    speller = speller_for(lm, TOKENS)
    found = CtcBeam(width, tokens_per_frame, lm).read(log_probs, lengths, TOKENS, speller)
    alone = OneUtteranceBeam(width, tokens_per_frame)
    for row, length in enumerate(lengths):
        expected = alone.read(log_probs[row, :length], TOKENS, speller)
        assert [h.tokens for h in found[row]] == [h.tokens for h in expected]
        assert np.allclose([h.score for h in found[row]], [h.score for h in expected], rtol=1e-12, atol=0)
        assert [h.parts.keys() for h in found[row]] == [h.parts.keys() for h in expected]


def test_impossible_tokens_are_never_in_a_hypothesis():
    """With few tokens that are possible, the beam has empty places."""
    log_probs = np.full((2, 5, 5), -np.inf)
    log_probs[0, :, [0, 3]] = math.log(0.5)
    log_probs[1, :, 3] = 0.0
    first, second = CtcBeam(width=16).read(log_probs, np.array([5, 5]), TOKENS, None)
    assert [h.text for h in second] == ["a"]
    assert second[0].score == 0.0
    assert {h.text for h in first} == {"", "a", "aa", "aaa"}
    assert math.isclose(sum(math.exp(h.score) for h in first), 1.0)


def test_texts_of_a_list_are_different_and_tidy():
    log_probs = random_log_probs(12, sharpness=0.3)
    hypotheses = read(CtcBeam(width=40), log_probs)
    texts = [h.text for h in hypotheses]
    assert len(set(texts)) == len(texts) > 5
    assert all(text == " ".join(text.split()) for text in texts)


def test_the_language_model_changes_what_is_heard():
    rows = [[0.1, 0, 0.1, 0.4, 0.4], [0.9, 0, 0.1, 0, 0], [0.1, 0, 0, 0.45, 0.45]]
    log_probs = np.log(np.array(rows) + 1e-6)
    for text in ("ab", "ba", "aa", "bb"):
        fusion = Fusion(estimate([text] * 9, order=2), weight=2.0)
        best = read(CtcBeam(fusion=fusion), log_probs)[0]
        assert best.text == text


def test_a_silent_utterance_of_no_frames_has_one_empty_hypothesis():
    (only,) = read(CtcBeam(), np.zeros((0, 5)))
    assert (only.text, only.tokens, only.score) == ("", (), 0.0)


@pytest.mark.parametrize("sizes", [{"width": 0}, {"tokens_per_frame": 0}])
def test_a_beam_without_room_is_refused(sizes):
    with pytest.raises(ValueError, match="at least 1"):
        CtcBeam(**sizes)


TEXT = "the cat sat on the mat and the dog ran to the man with a hat and a bat"


def subwords():
    words = TEXT.split()
    return UnigramConfig(size=30).fit([" ".join(words[i:] + words[:i]) for i in range(len(words))], None)


def test_surfaces_of_subwords_put_together_are_the_text():
    tokens = subwords()
    ids = tokens.encode(TEXT)
    assert len(ids) > len(TEXT.split())
    assert "".join(surfaces(tokens)[id] for id in ids).lstrip() == TEXT


def test_words_of_subwords_and_characters_score_the_same():
    model = estimate([TEXT], order=3)
    fusion, text = Fusion(model, 0.5, 0.25), "the man sat with the hat"
    for tokens in (subwords(), Characters(" abcdefghijklmnopqrstuvwxyz")):
        speller = Speller(fusion, surfaces(tokens))
        progress = speller.begin()
        for id in tokens.encode(text):
            progress = speller.extend(progress, id)
        over = speller.finish(progress)
        assert math.isclose(over.lm, model.score_sentences([text])[0], rel_tol=1e-9)
        assert over.num_words == 6
        assert math.isclose(speller.bonus(over), 0.5 * over.lm + 0.25 * 6)
