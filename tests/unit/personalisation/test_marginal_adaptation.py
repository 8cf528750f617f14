"""The adapted language model: hand-computed factors, and what must change nothing."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from antiphon.lm.kneser_ney import estimate
from antiphon.personalisation.marginal_adaptation import (
    AdaptedLm,
    Marginals,
    Mixture,
    Unigram,
    WordsOfTexts,
    estimate_unigram,
)
from antiphon.personalisation.word_cache import Cache

U = np.array([0.1, 0.4, 0.3, 0.2])
BACKGROUND = Unigram(("<unk>", "a", "b", "c"), U)
EVERYONE = np.array([0.0, 0.2, 0.2, 0.6])
OWN = Cache().plus(np.array([3, 1]), np.array([3.0, 1.0]))
EVERY = np.arange(4)
TEXTS = ["a b", "c c zebra", "", "b a c"]


def known(mixture: Mixture) -> Marginals:
    return Marginals(BACKGROUND, mixture, EVERYONE, OWN)


def test_factors_are_those_of_the_equations() -> None:
    mixture = Mixture(alpha=0.5, beta=0.3, lam=0.7, smoothing=0.25)
    own = np.array([0, 1, 0, 3]) / 4
    everyone, own = (0.75 * row + 0.25 * U for row in (EVERYONE, own))  # smoothed
    g = 0.2 * U + 0.5 * everyone + 0.3 * own  # eq. 2
    np.testing.assert_allclose(np.exp(known(mixture).log_factors(EVERY)), (g / U) ** 0.7)  # eq. 1
    np.testing.assert_allclose(
        np.sum(np.exp(known(mixture).log_ratios(EVERY)) * U), 1.0
    )  # g is a distribution


@pytest.mark.parametrize(
    "marginals",
    [
        known(Mixture(lam=0.0)),
        known(Mixture(alpha=0.0, beta=0.0, lam=2.0)),
        known(Mixture(smoothing=1.0, lam=2.0)),
        Marginals(BACKGROUND, Mixture(lam=2.0)),
    ],
    ids=["lambda 0", "alpha and beta 0", "all smoothing", "cold"],
)
def test_these_change_nothing_to_the_bit(marginals: Marginals) -> None:
    lm = estimate(["a b c", "b a", "c"], order=2)
    adapted = AdaptedLm(lm, marginals)
    assert adapted.score_sentences(TEXTS).tolist() == lm.score_sentences(TEXTS).tolist()


def test_what_everyone_and_oneself_say_as_the_background_does_changes_nothing() -> None:
    same = Marginals(BACKGROUND, Mixture(lam=1.0), U, Cache().plus(EVERY, 10 * U))
    np.testing.assert_allclose(same.log_factors(EVERY), 0.0, atol=1e-12)


def test_a_text_gets_the_factors_of_its_words_and_none_for_its_end() -> None:
    lm = estimate(["a b c", "b a", "c"], order=2)
    marginals = known(Mixture(lam=1.3))
    factors = dict(zip(BACKGROUND.words, marginals.log_factors(EVERY), strict=True))
    expected = [sum(factors.get(word, factors["<unk>"]) for word in text.split()) for text in TEXTS]
    found = AdaptedLm(lm, marginals).score_sentences(TEXTS) - lm.score_sentences(TEXTS)
    np.testing.assert_allclose(found, expected)


def test_a_word_that_nobody_said_is_never_impossible() -> None:
    """α + β = 1 and no smoothing leave it nothing at all: its factor is tiny, not zero."""
    nothing = known(Mixture(alpha=0.5, beta=0.5, smoothing=0.0)).log_factors(EVERY)
    assert np.isfinite(nothing).all()
    assert nothing[0] < -100  # <unk>: neither everyone nor oneself


def test_one_scale_of_lambda_scales_every_factor() -> None:
    half, whole = (known(Mixture(lam=lam)).log_factors(EVERY) for lam in (0.5, 1.0))
    np.testing.assert_allclose(2 * half, whole)


def test_words_of_texts_are_summed_text_by_text() -> None:
    words = WordsOfTexts.of(TEXTS, BACKGROUND)
    values = np.array([1.0, 10.0, 100.0, 1000.0])[words.different]
    assert words.sums(values).tolist() == [110.0, 2001.0, 0.0, 1110.0]
    assert WordsOfTexts.of([""], BACKGROUND).sums(np.zeros(0)).tolist() == [0.0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"alpha": -0.1}, "alpha and beta"),
        ({"alpha": 0.8, "beta": 0.3}, "alpha and beta"),
        ({"lam": -1.0}, "lam must be"),
        ({"lam": math.inf}, "lam must be"),
        ({"smoothing": 1.5}, "smoothing must be"),
        ({"sigma": -1.0}, "sigma must not"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(Mixture(), **settings)


# --- The background -------------------------------------------------------------------------------


def test_the_background_counts_its_words_and_leaves_something_to_the_others() -> None:
    background = estimate_unigram(["b a b", "<s> b"], vocabulary=["c", "</s>"], additive=0.5)
    assert background.words == ("<unk>", "a", "b", "c")
    assert background.probabilities == pytest.approx(np.array([0.5, 1.5, 3.5, 0.5]) / 6)


def test_backgrounds_without_text_or_with_impossible_words_are_refused() -> None:
    with pytest.raises(ValueError, match="no text"):
        estimate_unigram([" "])
    with pytest.raises(ValueError, match="additive must be above 0"):
        estimate_unigram(["a"], additive=0.0)
    with pytest.raises(ValueError, match="above zero"):
        Unigram(("<unk>", "a"), np.array([0.0, 1.0]))
    with pytest.raises(ValueError, match="distinct words"):
        Unigram(("a", "b"), np.array([0.5, 0.5]))
    with pytest.raises(ValueError, match="probabilities for 2 words"):
        Unigram(("<unk>", "b"), np.array([1.0]))
