from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from antiphon.scoring.significance import (
    MatchedPairs,
    PairedBootstrap,
    conclusion,
    matched_pairs,
    paired_bootstrap,
    segments_verdict,
    speakers_verdict,
)
from antiphon.scoring.statistics import Interval, difference_interval

NAMES = ("seed", "dga")


def test_matched_pairs_by_hand():
    # Differences −1, −2, 0, +1, −3: mean −1, squares about it 0 + 1 + 1 + 4 + 4 = 10, variance 10 / 4.
    found = matched_pairs([1, 2, 1, 0, 3], [0, 0, 1, 1, 0])
    assert (found.num_segments, found.mean) == (5, -1.0)
    assert found.spread == pytest.approx(math.sqrt(2.5))
    assert found.z == pytest.approx(-math.sqrt(2))  # −1 / √(2.5 / 5)
    assert found.p == pytest.approx(0.157299, abs=1e-6)  # the tables' value for 1.4142
    assert not found.is_significant


def test_matched_pairs_are_scipys():
    random = np.random.default_rng(0)
    first, second = random.poisson(1.2, 300), random.poisson(1.0, 300)
    found, theirs = matched_pairs(first, second), stats.ttest_rel(second, first)
    assert found.z == pytest.approx(theirs.statistic)
    assert found.p == pytest.approx(2 * stats.norm.sf(abs(found.z)))
    assert found.p == pytest.approx(theirs.pvalue, abs=0.005)  # Student's is close for 300


def test_the_order_of_two_recognisers_changes_the_sign_alone():
    one, other = [2, 0, 1, 1], [0, 1, 0, 0]
    there, back = matched_pairs(one, other), matched_pairs(other, one)
    assert (there.z, there.p) == (-back.z, back.p)


def test_p_is_uniform_when_there_is_no_difference():
    random = np.random.default_rng(7)
    found = [matched_pairs(*random.poisson(0.8, (2, 200))).p for _ in range(1000)]
    assert stats.kstest(found, "uniform").pvalue > 0.01
    assert np.mean(np.array(found) < 0.05) == pytest.approx(0.05, abs=0.02)


def test_a_real_difference_is_found():
    random = np.random.default_rng(8)
    found = [matched_pairs(random.poisson(1.0, 400), random.poisson(0.7, 400)) for _ in range(100)]
    assert np.mean([test.is_significant and test.mean < 0 for test in found]) > 0.95


@pytest.mark.parametrize(
    ("first", "second", "z"),
    [([], [], 0.0), ([1, 2], [1, 2], 0.0), ([1], [0], -1.0), ([0] * 9, [2] * 9, 3.0)],
)
def test_without_spread_the_test_still_stands(first, second, z):
    found = matched_pairs(first, second)
    assert found.z == pytest.approx(z)
    assert found.p == pytest.approx(2 * stats.norm.sf(abs(z)))


def test_the_bootstrap_has_the_paired_interval_and_the_share_of_wins():
    random = np.random.default_rng(1)
    lengths = random.integers(50, 200, 30)
    first = random.binomial(lengths, 0.3)
    second = random.binomial(lengths, 0.28)
    found = paired_bootstrap(first, second, lengths)
    assert found.difference == difference_interval(second, first, lengths)
    # The central limit theorem: sums of resamples are normal about the sum of the differences.
    difference = second - first
    expected = stats.norm.cdf(0, loc=difference.sum(), scale=math.sqrt(30 * difference.var()))
    assert found.improvement == pytest.approx(expected, abs=0.02)


def test_the_bootstrap_of_the_same_errors_is_a_draw():
    found = paired_bootstrap([3, 4], [3, 4], [10, 10])
    assert (found.improvement, found.is_significant) == (0.5, False)


def test_one_speaker_says_nothing_about_others():
    found = paired_bootstrap([3], [1], [10])
    assert found.difference is None
    assert not found.is_significant
    assert speakers_verdict(found, NAMES).startswith("one speaker is not enough")


REAL, CHANCE = MatchedPairs(100, -0.5, 1.0, -5.0, 6e-7), MatchedPairs(100, -0.1, 1.0, -1.0, 0.3173)
WIDE = PairedBootstrap(20, Interval(-0.01, -0.02, 0.01), 0.8)
CLEAR = PairedBootstrap(20, Interval(-0.02, -0.03, -0.01), 0.999)


@pytest.mark.parametrize(
    ("segments", "speakers", "expected"),
    [
        (REAL, CLEAR, "The difference is real: dga makes fewer errors than seed."),
        (REAL, WIDE, "Real on this speech, not shown for new speakers: dga makes fewer errors than seed."),
        (CHANCE, CLEAR, "Not settled: dga is ahead across speakers"),
        (CHANCE, WIDE, "No real difference is shown"),
        (matched_pairs([1, 1], [1, 1]), WIDE, "There is no difference"),
    ],
)
def test_the_conclusion_is_a_sentence(segments, speakers, expected):
    assert conclusion(segments, speakers, NAMES).startswith(expected)


def test_the_better_one_is_named_whichever_comes_first():
    worse = MatchedPairs(100, 0.5, 1.0, 5.0, 6e-7)
    assert "seed is better" in segments_verdict(worse, NAMES)
    assert "seed makes fewer errors than dga" in conclusion(worse, WIDE, NAMES)


def test_verdicts_say_when_there_is_little_to_go_by():
    assert "(50 would make p reliable)" in segments_verdict(matched_pairs([1, 2, 3], [0, 0, 1]), NAMES)
    assert "(few: the interval is too narrow)" in speakers_verdict(
        paired_bootstrap([3, 2], [1, 1], [9, 9]), NAMES
    )
    assert segments_verdict(matched_pairs([], []), NAMES).startswith("neither made an error")
