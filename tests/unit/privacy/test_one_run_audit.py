"""The bound of Steinke et al. against scipy and the paper's example, and on mechanisms of known ε."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from antiphon.privacy.one_run_audit import audited_epsilon, epsilon_lower_bound, p_value


@given(
    guesses=st.integers(1, 300),
    share=st.floats(0, 1),
    epsilon=st.floats(0, 6),
    delta=st.sampled_from([0.0, 1e-6, 1e-3]),
)
def test_the_p_value_is_that_of_the_paper(guesses: int, share: float, epsilon: float, delta: float) -> None:
    """Appendix D, with scipy: P[B ≥ v] + 2 m δ max_i P[v > B ≥ v − i] / i."""
    right, canaries = round(share * guesses), 2 * guesses
    q = 1 / (1 + math.exp(-epsilon))
    tail = stats.binom.sf(right - 1, guesses, q)
    slices = [
        (stats.binom.cdf(right - 1, guesses, q) - stats.binom.cdf(right - i - 1, guesses, q)) / i
        for i in range(1, right + 1)
    ]
    want = min(1.0, tail + 2 * canaries * delta * max(slices, default=0.0))
    assert p_value(canaries, guesses, right, epsilon, delta) == pytest.approx(want, rel=1e-6, abs=1e-9)


def test_the_bound_is_the_largest_epsilon_that_is_refuted() -> None:
    bound = epsilon_lower_bound(1000, 200, 170, 1e-5, 0.95)
    assert p_value(1000, 200, 170, bound, 1e-5) <= 0.05 < p_value(1000, 200, 170, bound + 1e-6, 1e-5)
    assert epsilon_lower_bound(1000, 200, 100, 1e-5) == 0.0


def test_randomised_response_is_found_and_not_overestimated() -> None:
    """Answers that are right with probability e^ε / (1 + e^ε) are (ε, 0)-private, and no better."""
    generator, epsilon, number = np.random.default_rng(0), 1.0, 20_000
    bounds = []
    for _ in range(20):
        included = generator.random(number) < 0.5
        truthful = generator.random(number) < 1 / (1 + math.exp(-epsilon))
        scores = np.where(truthful == included, 1.0, 0.0) + generator.random(number) / 10
        bounds.append(audited_epsilon(scores, included, 0.0))
    assert sum(bound > epsilon for bound in bounds) <= 3
    assert min(bounds) > 0.8


def test_scores_that_say_nothing_give_no_bound() -> None:
    generator = np.random.default_rng(1)
    included = generator.random(5000) < 0.5
    assert audited_epsilon(generator.standard_normal(5000), included, 1e-6) < 0.1


def test_canaries_that_are_always_found_give_the_largest_bound_that_their_number_allows() -> None:
    included = np.arange(2000) % 2 == 0
    bound = audited_epsilon(included.astype(float), included, 1e-9)
    assert math.log(2000 / 6) < bound < math.log(2000)
