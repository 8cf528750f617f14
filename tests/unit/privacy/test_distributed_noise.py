"""Noise in shares: the distribution of sums, the bound of the paper, grids, and what runs with it cost."""

from __future__ import annotations

import math
from functools import reduce

import numpy as np
import pytest
from scipy import stats

from antiphon.privacy.accounting import Budget, epsilon_of_rho
from antiphon.privacy.distributed_noise import (
    RING,
    ConcentratedCost,
    Distributed,
    check_share,
    choose_steps,
    concentrated_epsilon,
    excess,
    largest_sum,
    scale_of_share,
)
from antiphon.privacy.participation import PoissonSampling, RoundRobin
from antiphon.privacy.samplers import LARGEST_SCALE, Seeded, discrete_gaussian
from antiphon.privacy.update_accounting import (
    Banded,
    GaussianCost,
    SampledCost,
    cost_from_dict,
    cost_to_dict,
    epsilon_of,
    plan_noise,
)

TURNS = RoundRobin(separation=3)


def probabilities(scale: float, shares: int, reach: int = 60) -> np.ndarray:
    """The distribution of a sum of discrete Gaussians, by convolution; entry i is the value i − centre."""
    x = np.arange(-reach, reach + 1)
    one = np.exp(-(x.astype(float) ** 2) / (2 * scale**2))
    return reduce(np.convolve, [one / one.sum()] * shares)


def divergence(p: np.ndarray, order: float, shift: int) -> float:
    """The Rényi divergence of a distribution and itself, shifted, where both have mass that counts."""
    moved = np.roll(p, shift)
    used = (p > 1e-60) & (moved > 1e-60)
    return math.log(float(np.sum(p[used] ** order * moved[used] ** (1 - order)))) / (order - 1)


@pytest.mark.parametrize(("scale", "shares"), [(1, 2), (1, 5), (2, 3)])
def test_the_sum_of_shares_has_the_distribution_of_the_convolution(scale: int, shares: int) -> None:
    words, number = Seeded(3).words(0), 40_000
    total = sum(discrete_gaussian(words, scale, number) for _ in range(shares))
    p = probabilities(scale, shares)
    centre, reach = len(p) // 2, math.ceil(3.2 * scale * math.sqrt(shares))
    inner = slice(centre - reach, centre + reach + 1)
    expected = np.array([p[: inner.start].sum(), *p[inner], p[inner.stop :].sum()]) * number
    clipped = np.clip(total, -reach - 1, reach + 1) + reach + 1
    counts = np.bincount(clipped, minlength=len(expected))
    assert stats.chisquare(counts, expected * number / expected.sum()).pvalue > 0.001


@pytest.mark.parametrize(
    ("scale", "carriers", "by_hand"),
    [
        (1.0, 1, 0.0),
        (1.0, 2, 10 * math.exp(-(math.pi**2))),
        (0.5, 3, 10 * (math.exp(-(math.pi**2) / 4) + math.exp(-(math.pi**2) / 3))),
    ],
)
def test_the_excess_is_that_of_the_paper(scale: float, carriers: int, by_hand: float) -> None:
    assert excess(scale, carriers) == pytest.approx(by_hand)


@pytest.mark.parametrize(("scale", "shares"), [(0.6, 2), (0.8, 3), (1.0, 2), (1.5, 4)])
def test_the_bound_holds_for_divergences_by_brute_force(scale: float, shares: int) -> None:
    """In one dimension: D_α ≤ α ε² / 2, and not by much where the excess is nothing."""
    p = probabilities(scale, shares)
    for shift in (1, 2):
        bound = concentrated_epsilon(shift, scale, shares, 1) ** 2 / 2
        for order in (1.5, 2.0, 4.0):
            exact = divergence(p, order, shift)
            assert exact <= order * bound * (1 + 1e-9)
            if scale >= 1.5:
                assert exact == pytest.approx(order * bound, rel=1e-3)


def test_epsilon_of_one_sum_by_hand() -> None:
    """One step over √4 · 2 steps, and τ = 10 (e^(−4π²) + e^(−16π²/3) + e^(−6π²)) in 9 entries."""
    tau = 10 * sum(math.exp(-8 * math.pi**2 * share) for share in (1 / 2, 2 / 3, 3 / 4))
    assert concentrated_epsilon(1.0, 2.0, 4, 9) == pytest.approx(0.25 + 3 * tau, rel=1e-12)


@pytest.mark.parametrize("carriers", [1, 2, 3, 7, 60])
def test_the_fewest_shares_carry_all_of_the_noise(carriers: int) -> None:
    for multiplier, steps in ((0.7, 2**9), (3.3, 2**20)):
        scale = scale_of_share(multiplier, steps, carriers)
        assert carriers * scale**2 >= (multiplier * steps) ** 2 * (1 - 1e-12)
        assert carriers * (scale - 1) ** 2 < (multiplier * steps) ** 2


def test_the_fewest_shares_have_the_claimed_cost_and_more_have_less() -> None:
    claimed = 1 / (2 * 2.5**2)
    scale = scale_of_share(2.5, 2**12, 6)
    costs = [concentrated_epsilon(2**12, scale, shares, 10**6) ** 2 / 2 for shares in (6, 7, 10)]
    assert claimed * (1 - 1e-3) < costs[0] <= claimed
    assert costs[0] > costs[1] > costs[2]


# --- The grid -------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_clients", [3, 10, 300])
@pytest.mark.parametrize("multiplier", [0.3, 5.0, 400.0])
def test_the_grid_is_the_finest_whose_noised_sum_fits_the_ring(num_clients: int, multiplier: float) -> None:
    size, carriers = 100_000, num_clients // 2 + 1
    steps = choose_steps(size, num_clients, multiplier, colluding=0)

    def fits(number: int) -> bool:
        scale = scale_of_share(multiplier, number, carriers)
        return scale <= LARGEST_SCALE and largest_sum(number, scale, num_clients, size) <= RING

    assert fits(steps)
    assert steps == 2**24 or not fits(2 * steps)


def test_the_ring_is_too_small_with_less_than_the_stated_probability() -> None:
    """Exactly, for one entry: P(|sum of n discrete Gaussians| > tail), with the sizes of the updates."""
    scale, shares = 2, 3
    p = probabilities(scale, shares)
    x = np.abs(np.arange(len(p)) - len(p) // 2)
    noise = largest_sum(4, scale, shares, size=1) - shares * 4
    assert p[x > noise].sum() < 1e-12
    assert noise < 9 * scale * math.sqrt(shares)


def test_sums_that_do_not_fit_and_noise_that_is_too_little_are_refused() -> None:
    with pytest.raises(ValueError, match="does not fit 32 bits"):
        choose_steps(3_000_000, 10, 1e5, 0)
    with pytest.raises(ValueError, match="does not fit 32 bits"):
        choose_steps(3_000_000, 10**6, 5.0, 0)
    with pytest.raises(ValueError, match="too little for theorem 1"):
        check_share(1, 5, 100)
    with pytest.raises(ValueError, match="too little for theorem 1"):
        choose_steps(10, 10, 1e-8, 0)
    check_share(8, 100, 10**9)
    with pytest.raises(ValueError, match="colluding of at least 0"):
        Distributed(-1)


# --- What runs cost -------------------------------------------------------------------------------


def test_rounds_of_a_client_add_up_by_hand() -> None:
    """Four turns in 12 rounds, deviation 2: ρ = 4 / (2 · 4)."""
    plan = plan_noise(TURNS, 0, 12, Budget(8, 1e-6), multiplier=1.0, correlation=Distributed())
    assert plan.deviation == 2.0
    assert plan.cost(12) == ConcentratedCost(0.5)
    assert plan.cost(4) == ConcentratedCost(0.25)
    assert epsilon_of((plan.cost(12),), 1e-6) == epsilon_of_rho(0.5, 1e-6)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-9), (1.0, 1e-6), (8.0, 1e-6), (100.0, 1e-5)])
def test_the_noise_is_the_least_within_the_budget_and_little_above_the_gaussian(
    epsilon: float, delta: float
) -> None:
    """Concentrated accounting needs at most 8 % more noise than the exact Gaussian, and never less."""
    budget = Budget(epsilon, delta)
    ours = plan_noise(TURNS, 0, 12, budget, correlation=Distributed())
    gaussian = plan_noise(TURNS, 1, 12, budget, correlation=Banded())
    assert epsilon * (1 - 1e-6) < epsilon_of((ours.cost(12),), delta) <= epsilon
    assert 1.0 < ours.deviation / gaussian.deviation < 1.08
    assert epsilon_of((GaussianCost(2 / ours.deviation),), delta) < epsilon


def test_costs_add_up_with_those_of_other_runs() -> None:
    shares, gaussian, sampled = ConcentratedCost(0.02), GaussianCost(0.3), SampledCost(0.1, 2.0, 20)
    both = epsilon_of((shares, gaussian), 1e-6)
    assert both == epsilon_of_rho(0.02 + 0.3**2 / 2, 1e-6)
    assert both >= epsilon_of((GaussianCost(math.hypot(0.2, 0.3)),), 1e-6)
    mixed = epsilon_of((shares, gaussian, sampled), 1e-6)
    exact = epsilon_of((GaussianCost(math.hypot(0.2, 0.3)), sampled), 1e-6)
    assert exact <= mixed < 1.3 * exact
    assert cost_from_dict(cost_to_dict(shares)) == shares


def test_correlated_noise_and_secret_samples_are_refused() -> None:
    for participation, bands in ((TURNS, 3), (PoissonSampling(0.1), 0)):
        with pytest.raises(ValueError, match="independent from round to round"):
            plan_noise(participation, bands, 12, Budget(8, 1e-6), correlation=Distributed())
