"""Normalised adaptation against brute force over the vocabulary."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from normalised_lm import NormalisedNeural, NormalisedNgram, normalised

from antiphon.data.tokens import UnigramConfig, WordsConfig
from antiphon.lm.kneser_ney import estimate
from antiphon.lm.neural_lm import LmTraining, TransformerLmConfig, text_batch, train_lm
from antiphon.lm.ngram import END_ID, NgramModel
from antiphon.personalisation.marginal_adaptation import Marginals, Mixture, estimate_unigram
from antiphon.personalisation.word_cache import Cache

TEXTS = ["the cat sat on the mat", "a dog sat", "the dog ran", "a cat ran to the dog", "the cat sat"]
BACKGROUND = estimate_unigram(TEXTS, vocabulary=["fog"])
EVERYONE = np.arange(1.0, BACKGROUND.size + 1) / np.arange(1.0, BACKGROUND.size + 1).sum()
MARGINALS = Marginals(
    BACKGROUND, Mixture(0.5, 0.4, lam=1.2), EVERYONE, Cache().plus(np.array([3, 5]), np.array([2.0, 1.0]))
)
NOTHING = Marginals(BACKGROUND)
SENTENCES = ["the cat sat on the dog", "zebra ran", "", "the fog the fog", "mat mat a dog sat"]


def brute(model: NgramModel, text: str) -> float:
    """ln p' with Z summed over every word and the end, state by state."""
    normaliser = NormalisedNgram(model, BACKGROUND)
    factors = normaliser.log_factors(MARGINALS)
    state, total = model.begin(), 0.0
    for word in model.encode(text):
        everything = [i for i in range(len(model.words)) if i != 1]
        z = sum(np.exp(factors[i] + model.score_id(state, i)[1]) for i in everything)
        state, log_prob = model.score_id(state, word)
        total += log_prob + factors[word] - np.log(z)
    return total


@pytest.mark.parametrize("order", [1, 2, 3, 4])
@pytest.mark.parametrize("min_counts", [(1,), (1, 1, 2)])
def test_probabilities_are_those_of_the_sum_over_all_words(order: int, min_counts: tuple[int, ...]) -> None:
    model = estimate(TEXTS, order, min_counts)
    found = normalised(model, BACKGROUND).score_sentences(SENTENCES, MARGINALS)
    np.testing.assert_allclose(found, [brute(model, text) for text in SENTENCES], rtol=1e-5)


def test_adapted_probabilities_of_the_next_word_add_up_to_one() -> None:
    model = estimate(TEXTS, order=3)
    adapted = NormalisedNgram(model, BACKGROUND)
    factors = adapted.log_factors(MARGINALS)
    normalisers = adapted.normalisers(factors)
    for history in ([], [5], [5, 7], [7, 3], [0, 0]):
        contexts = np.array([[*history[::-1], 1, -1][:2]])
        state = model.begin()
        for word in history:
            state, _ = model.score_id(state, word)
        (z,) = adapted._z(contexts, normalisers)
        total = sum(
            np.exp(factors[w] + model.score_id(state, w)[1]) / z for w in range(len(model.words)) if w != 1
        )
        assert total == pytest.approx(1.0, abs=1e-5)
    assert factors[END_ID] == 0.0


def test_without_anything_known_it_is_the_model_itself() -> None:
    model = estimate(TEXTS, order=3)
    for nothing in (NOTHING, replace(MARGINALS, mixture=Mixture(lam=0.0))):
        found = normalised(model, BACKGROUND).score_sentences(SENTENCES, nothing)
        np.testing.assert_allclose(found, model.score_sentences(SENTENCES), atol=1e-5)


@dataclass(frozen=True)
class Uniformly:
    """The same factor for every word: only the end of a sentence becomes rarer or likelier."""

    value: float

    def log_factors(self, ids: np.ndarray) -> np.ndarray:
        return np.full(len(ids), self.value)


def test_words_made_likelier_make_sentences_go_on() -> None:
    model = estimate(TEXTS, order=2)
    end = np.exp(model.score_id(model.begin(), END_ID)[1])
    (found,) = normalised(model, BACKGROUND).score_sentences([""], Uniformly(3.0))
    assert np.exp(found) == pytest.approx(end / (np.exp(3.0) * (1 - end) + end), rel=1e-5)


# --- Neural models --------------------------------------------------------------------------------

SMALL = TransformerLmConfig(dim=8, num_layers=1, num_heads=1, feed_forward_dim=8, dropout=0.0)


def test_a_neural_model_is_that_of_the_sum_over_all_words() -> None:
    tokens = WordsConfig(8).fit(TEXTS, alphabet=None)
    lm = train_lm(TEXTS, tokens, SMALL, LmTraining(steps=3, batch_tokens=64))
    found = NormalisedNeural(lm, BACKGROUND).score_sentences(["the cat zebra"], MARGINALS)
    ids = tokens.encode("the cat zebra")
    with torch.no_grad():
        p = lm.model(text_batch([ids]))[0][0].double().softmax(-1).numpy()
    words = ["<unk>", "<unk>", *tokens.vocabulary]
    f = np.exp(MARGINALS.log_factors(np.array([BACKGROUND.ids.get(word, 0) for word in words])))
    f[0] = 1.0
    expected = sum(np.log(f[w] * row[w] / (f * row).sum()) for row, w in zip(p, [*ids, 0], strict=True))
    assert found[0] == pytest.approx(expected, rel=1e-4)
    unadapted = NormalisedNeural(lm, BACKGROUND).score_sentences(SENTENCES[:2], NOTHING)
    np.testing.assert_allclose(unadapted, lm.score_sentences(SENTENCES[:2]), rtol=1e-5)


def test_a_model_of_subwords_is_refused() -> None:
    tokens = UnigramConfig(20).fit(TEXTS, alphabet=None)
    lm = train_lm(TEXTS, tokens, SMALL, LmTraining(steps=1, batch_tokens=64))
    with pytest.raises(ValueError, match="subwords cannot be normalised"):
        normalised(lm, BACKGROUND)
