"""Noise of a large population on few clients: what reaches the mean, and what the few clients have."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

pytest.importorskip("dp_accounting")

from at_scale import AtScale

from antiphon.privacy.participation import RoundRobin
from antiphon.privacy.update_accounting import GaussianCost, epsilon_of


def small(bands: int = 4) -> AtScale:
    turns = RoundRobin(separation=2)
    numbers = {"population": 4_000, "planned": 1_000}
    return AtScale(epsilon=7.2, delta=1e-9, cohorts=turns, bands=bands, cohort=5.0, rounds=7, **numbers)


def test_the_mean_has_the_noise_that_it_would_have_with_the_planned_clients() -> None:
    scaled, full = small().plan, small().plan_at_scale
    assert scaled.deviation / 5.0 == pytest.approx(full.deviation / 1_000, rel=1e-12)
    assert epsilon_of((full.cost(7),), 1e-9) == pytest.approx(7.2, rel=1e-9)


@pytest.mark.parametrize("bands", [1, 2, 4])
def test_the_epsilon_of_the_clients_here_is_that_of_the_worst_pattern_of_turns(bands: int) -> None:
    private = small(bands)
    plan, worst = private.plan, 0.0
    strategy = np.zeros((7, 7))
    for offset, value in enumerate(plan.coefficients):
        strategy += value * np.eye(7, k=-offset)
    for pattern in itertools.product([0, 1], repeat=7):
        turns = [place for place, taken in enumerate(pattern) if taken]
        if all(after - before >= 2 for before, after in itertools.pairwise(turns)):
            worst = max(worst, float(np.linalg.norm(strategy @ np.array(pattern))))
    expected = epsilon_of((GaussianCost(worst / plan.deviation),), 1e-9)
    assert math.isclose(private.epsilon_here(7), expected, rel_tol=1e-9)
