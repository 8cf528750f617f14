"""ε of private updates against dp-accounting, and plans that spend a budget to its end."""

from __future__ import annotations

import math

import dp_accounting
import pytest
from dp_accounting import pld
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.privacy.accounting import Budget
from antiphon.privacy.matrix_factorisation import prefix_error
from antiphon.privacy.participation import PoissonSampling, RoundRobin
from antiphon.privacy.update_accounting import (
    BandedPlan,
    GaussianCost,
    SampledCost,
    cost_from_dict,
    cost_to_dict,
    epsilon_of,
    plan_noise,
)

BUDGET = Budget(8.0, 1e-5)


@given(shift=st.floats(0.05, 5))
def test_one_gaussian_release_costs_what_dp_accounting_says(shift: float) -> None:
    want = dp_accounting.get_epsilon_gaussian(1 / shift, 1e-5)
    assert epsilon_of((GaussianCost(shift),), 1e-5) == pytest.approx(want, rel=1e-9)


def test_gaussian_costs_add_up_in_squares() -> None:
    both = epsilon_of((GaussianCost(0.3), GaussianCost(0.4)), 1e-6)
    assert both == pytest.approx(epsilon_of((GaussianCost(0.5),), 1e-6), rel=1e-9)


@pytest.mark.parametrize(("rate", "multiplier", "times"), [(0.1, 1.0, 100), (0.02, 0.8, 500), (1.0, 3.0, 10)])
def test_sampled_releases_cost_what_the_pld_accountant_says(
    rate: float, multiplier: float, times: int
) -> None:
    accountant = pld.PLDAccountant(value_discretization_interval=1e-4)
    event = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(multiplier))
    accountant.compose(dp_accounting.SelfComposedDpEvent(event, times))
    exact, ours = accountant.get_epsilon(1e-5), epsilon_of((SampledCost(rate, multiplier, times),), 1e-5)
    assert exact <= ours <= exact * 1.002  # a coarser distribution, rounded up


def test_a_sampled_run_and_a_banded_run_add_up() -> None:
    sampled, banded = SampledCost(0.1, 1.0, 50), GaussianCost(0.7)
    together = epsilon_of((sampled, banded), 1e-5)
    alone = epsilon_of((sampled,), 1e-5), epsilon_of((banded,), 1e-5)
    assert max(alone) < together < sum(alone)


def test_sampling_at_rate_one_is_no_sampling() -> None:
    sampled = epsilon_of((SampledCost(1.0, 4.0, 9),), 1e-5)
    assert sampled == pytest.approx(epsilon_of((GaussianCost(3 / 4),), 1e-5), rel=2e-3)


@pytest.mark.parametrize("participation", [RoundRobin(6), RoundRobin(5, 2), PoissonSampling(0.2)])
def test_a_plan_spends_the_budget_at_its_last_round_and_not_before(
    participation: RoundRobin | PoissonSampling,
) -> None:
    plan = plan_noise(participation, 0, 40, BUDGET)
    spent = [epsilon_of((plan.cost(rounds),), BUDGET.delta) for rounds in range(1, 41)]
    assert spent == sorted(spent)
    assert spent[-1] <= 8.0 * (1 + 1e-9)
    assert spent[-1] == pytest.approx(8.0, rel=1e-3)


def test_a_banded_plan_is_one_gaussian_release() -> None:
    plan = plan_noise(RoundRobin(6), 0, 90, BUDGET)
    assert isinstance(plan, BandedPlan)
    assert plan.multiplier == pytest.approx(dp_accounting.get_sigma_gaussian(8.0, 1e-5))
    assert plan.cost(90).shift == pytest.approx(1 / plan.multiplier)


def test_independent_noise_costs_the_root_of_the_participations() -> None:
    """One band: a client with k turns moves the releases by √k."""
    plan = plan_noise(RoundRobin(6), 1, 90, BUDGET)
    assert plan.coefficients == (1.0,)
    for rounds, turns in ((1, 1), (6, 1), (7, 2), (90, 15)):
        assert plan.cost(rounds).shift == pytest.approx(math.sqrt(turns) / plan.deviation)  # type: ignore


def test_banded_noise_is_smaller_in_the_model_than_independent_noise() -> None:
    """60 clients, cohort 10, 90 rounds: 7.6 and 15.7 bounds in the sum of all rounds."""
    for bands, error in ((0, 7.6), (1, 15.7)):
        plan = plan_noise(RoundRobin(6), bands, 90, BUDGET)
        assert plan.deviation * prefix_error(plan.coefficients, 90) == pytest.approx(error, abs=0.1)


@settings(max_examples=20, deadline=None)
@given(multiplier=st.floats(0.5, 4), rounds=st.integers(1, 40))
def test_a_given_multiplier_is_taken_as_it_is(multiplier: float, rounds: int) -> None:
    plan = plan_noise(PoissonSampling(0.1), 1, 40, BUDGET, multiplier)
    assert plan.cost(rounds) == SampledCost(0.1, multiplier, rounds)


def test_bands_need_turns_that_are_apart() -> None:
    with pytest.raises(ValueError, match="use round_robin, or set bands=1"):
        plan_noise(PoissonSampling(0.1), 2, 40, BUDGET)
    with pytest.raises(ValueError, match="7 bands of noise need a separation"):
        plan_noise(RoundRobin(6), 7, 40, BUDGET).cost(1)


def test_costs_can_be_written_and_read() -> None:
    for cost in (GaussianCost(0.25), SampledCost(0.1, 1.5, 7)):
        assert cost_from_dict(cost_to_dict(cost)) == cost
