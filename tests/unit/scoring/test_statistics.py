from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.scoring import statistics as s

ERRORS = np.array([3, 10, 0, 7, 5, 2])
LENGTHS = np.array([30, 40, 25, 35, 50, 20])
OTHERS = np.array([5, 11, 2, 6, 9, 2])


def scipy_bootstrap(columns, statistic, **more):
    scipy_stats = pytest.importorskip("scipy.stats")
    return scipy_stats.bootstrap(
        columns, statistic, paired=True, vectorized=True, n_resamples=s.NUM_RESAMPLES, method="percentile",
        rng=np.random.default_rng(0), **more,
    ).confidence_interval  # fmt: skip


def test_the_interval_of_a_rate_is_the_one_scipy_gives_for_the_same_draws():
    expected = scipy_bootstrap((ERRORS, LENGTHS), lambda e, n, axis: e.sum(axis) / n.sum(axis))
    found = s.rate_interval(ERRORS, LENGTHS)
    assert found.estimate == pytest.approx(27 / 200)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_the_paired_difference_is_the_one_scipy_gives_for_the_same_draws():
    expected = scipy_bootstrap(
        (ERRORS, OTHERS, LENGTHS), lambda a, b, n, axis: a.sum(axis) / n.sum(axis) - b.sum(axis) / n.sum(axis)
    )
    found = s.difference_interval(ERRORS, OTHERS, LENGTHS)
    assert found.estimate == pytest.approx(27 / 200 - 35 / 200)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_the_relative_change_is_the_one_scipy_gives_for_the_same_draws():
    expected = scipy_bootstrap((ERRORS, OTHERS), lambda a, b, axis: (a.sum(axis) - b.sum(axis)) / b.sum(axis))
    found = s.relative_interval(ERRORS, OTHERS)
    assert found.estimate == pytest.approx(-8 / 35)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_three_speakers_give_the_quantiles_of_all_27_draws():
    errors, lengths = np.array([1, 4, 8]), np.array([10, 20, 10])
    draws = [list(draw) for draw in itertools.product(range(3), repeat=3)]
    rates = np.array([errors[draw].sum() / lengths[draw].sum() for draw in draws])
    found = s.rate_interval(errors, lengths)
    # All one speaker is 1 draw in 27 (3.7 %), more than 2.5 %: the ends are the best and the worst speaker.
    assert (found.low, found.high) == (rates.min(), rates.max()) == (0.1, 0.8)


def test_pairing_makes_a_steady_gain_certain_where_the_rates_overlap():
    before = np.array([10, 30, 50, 70])
    after, lengths = before - 5, np.full(4, 100)
    assert s.rate_interval(after, lengths).high > s.rate_interval(before, lengths).low
    found = s.difference_interval(after, before, lengths)
    assert (found.estimate, found.low, found.high) == pytest.approx((-0.05, -0.05, -0.05))
    assert found.excludes_zero


def test_one_speaker_has_no_interval_and_silent_speakers_do_not_count():
    assert s.rate_interval([3], [10]) is None
    assert s.rate_interval([3, 0], [10, 0]) is None
    assert s.rate_interval([], []) is None
    with_silence = s.rate_interval([3, 2, 0], [10, 20, 0])
    assert math.isfinite(with_silence.low)
    assert math.isfinite(with_silence.high)


def test_drawing_in_blocks_changes_nothing():
    errors, lengths = np.arange(300) % 7, np.full(300, 20)
    generator = np.random.default_rng(0)
    drawn = generator.integers(0, 300, (s.NUM_RESAMPLES, 300))
    low, high = np.quantile(errors[drawn].sum(1) / lengths[drawn].sum(1), [0.025, 0.975])
    found = s.rate_interval(errors, lengths)
    assert (found.low, found.high) == pytest.approx((low, high), abs=1e-12)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 100)), min_size=2, max_size=12))
def test_an_interval_lies_between_the_best_and_the_worst_speaker(counts):
    errors, lengths = np.array(counts).T
    found = s.rate_interval(errors, lengths)
    rates = errors / lengths
    assert rates.min() - 1e-12 <= found.low <= found.high <= rates.max() + 1e-12
    assert found == s.rate_interval(errors, lengths)


def test_expected_coverage_is_what_drawing_cohorts_gives_on_average():
    generator = np.random.default_rng(3)
    cohorts = [[generator.choice(10, 3, replace=False) for _ in range(4)] for _ in range(4000)]
    measured = np.mean([s.measured_coverage(run, 10) for run in cohorts], axis=0)
    np.testing.assert_allclose(measured, s.expected_coverage(3, 10, [1, 2, 3, 4]), atol=0.006)


def test_a_cohort_of_the_whole_pool_covers_it_at_once():
    assert s.expected_coverage(5, 5, [0, 1, 2]).tolist() == [0, 1, 1]


@pytest.mark.parametrize(("num_speakers", "num_worst"), [(1, 1), (9, 1), (10, 1), (11, 2), (100, 10)])
def test_the_worst_decile_is_a_tenth_rounded_up(num_speakers, num_worst):
    rates = {f"{k:03d}": k / 100 for k in range(num_speakers)}
    expected = [f"{k:03d}" for k in range(num_speakers)][::-1][:num_worst]
    assert s.worst_decile(rates) == expected


def test_rounds_to_best_and_to_a_target_ignore_what_was_not_measured():
    rounds, values = [0, 1, 2, 3], [0.9, math.nan, 0.5, 0.5]
    assert s.round_of_best(rounds, values) == 2
    assert s.round_of_best([], []) is None
    assert s.round_to_target(rounds, values, 0.6) == 2
    assert s.round_to_target(rounds, values, 0.4) is None


def test_effective_number_is_the_count_for_equal_weights_and_one_for_a_dictator():
    assert s.effective_number([0.25] * 4) == pytest.approx(4)
    assert s.effective_number([1, 0, 0]) == pytest.approx(1)
    assert math.isnan(s.effective_number([0, 0]))
