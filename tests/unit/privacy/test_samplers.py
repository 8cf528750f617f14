from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from antiphon.privacy.samplers import (
    LARGEST_SCALE,
    Secure,
    Seeded,
    Words,
    bernoulli_exp,
    discrete_gaussian,
    discrete_laplace,
    uniform_below,
)

NUMBER = 100_000


def words() -> Words:
    return Seeded(5).words(round=0)


def fits(drawn: np.ndarray, log_weights: dict[int, float]) -> float:
    """p-value of a chi-square test of integers against exact probabilities; rare ones are put together."""
    values = np.array(sorted(log_weights))
    expected = np.exp([log_weights[int(value)] for value in values])
    expected *= len(drawn) / expected.sum()
    found = np.array([(drawn == value).sum() for value in values], dtype=float)
    assert found.sum() == len(drawn), "something was drawn whose probability is nil"
    common = expected >= 10
    observed = [*found[common], found[~common].sum()]
    return float(stats.chisquare(observed, [*expected[common], expected[~common].sum()]).pvalue)


@pytest.mark.parametrize("bound", [1, 3, 10, 2**20 + 7])
def test_uniform_integers_are_below_the_bound_and_equally_frequent(bound: int) -> None:
    drawn = uniform_below(words(), bound, NUMBER)
    assert drawn.min() >= 0
    assert drawn.max() < bound
    counts = np.bincount(drawn * 10 // bound if bound > 10 else drawn)
    assert len(counts) == 1 or stats.chisquare(counts).pvalue > 0.01


def test_a_word_in_the_incomplete_last_stretch_is_drawn_again() -> None:
    supply = iter([[2**64 - 1, 7], [2**64 - 2], [5]])  # 10 does not divide 2^64: 6 words are too many
    drawn = uniform_below(lambda number: np.array(next(supply), dtype=np.uint64), 10, 2)
    assert drawn.tolist() == [5, 7]


@pytest.mark.parametrize(("numerator", "denominator"), [(0, 5), (1, 3), (1, 1), (7, 3), (40, 10)])
def test_coins_fall_with_probability_exp(numerator: int, denominator: int) -> None:
    heads = int(bernoulli_exp(words(), np.full(NUMBER, numerator), denominator).sum())
    expected = np.exp(-numerator / denominator)
    assert stats.binomtest(heads, NUMBER, expected).pvalue > 0.01


@pytest.mark.parametrize("scale", [1, 2, 7])
def test_discrete_laplace_has_its_probabilities(scale: int) -> None:
    drawn = discrete_laplace(words(), scale, NUMBER)
    assert fits(drawn, {x: -abs(x) / scale for x in range(-40 * scale, 40 * scale + 1)}) > 0.01


@pytest.mark.parametrize("scale", [1, 2, 7])
def test_discrete_gaussian_has_its_probabilities(scale: int) -> None:
    drawn = discrete_gaussian(words(), scale, NUMBER)
    assert fits(drawn, {x: -(x**2) / (2 * scale**2) for x in range(-15 * scale, 15 * scale + 1)}) > 0.01


def test_on_a_fine_grid_the_noise_is_laplace_and_normal_by_kolmogorov_and_smirnov() -> None:
    scale = 10_000  # steps: the grid is far finer than the sample can see
    assert stats.kstest(discrete_laplace(words(), scale, 50_000) / scale, "laplace").pvalue > 0.01
    assert stats.kstest(discrete_gaussian(words(), scale, 50_000) / scale, "norm").pvalue > 0.01
    assert stats.kstest(discrete_laplace(words(), scale, 50_000) / scale * 1.05, "laplace").pvalue < 1e-3


def test_the_largest_scale_does_not_overflow() -> None:
    drawn = discrete_gaussian(words(), LARGEST_SCALE, 50_000) / LARGEST_SCALE
    assert stats.kstest(drawn, "norm").pvalue > 0.01


@pytest.mark.parametrize("scale", [0, LARGEST_SCALE + 1])
def test_a_scale_outside_the_exact_range_is_refused(scale: int) -> None:
    with pytest.raises(ValueError, match="coarser or finer step"):
        discrete_laplace(words(), scale, 1)


def test_seeded_noise_repeats_by_round_and_secure_noise_does_not() -> None:
    def draw(source: Seeded | Secure, round: int) -> list[int]:
        return discrete_laplace(source.words(round), 1000, 20).tolist()

    assert draw(Seeded(1), 3) == draw(Seeded(1), 3)
    assert draw(Seeded(1), 3) != draw(Seeded(1), 4)
    assert draw(Seeded(1), 3) != draw(Seeded(2), 3)
    assert draw(Secure(), 3) != draw(Secure(), 3)


def test_secure_noise_has_the_same_distribution() -> None:
    drawn = discrete_laplace(Secure().words(0), 100, 20_000) / 100
    assert stats.kstest(drawn, "laplace").statistic < 0.025  # exceeded once in 10^10 runs, step included
