from __future__ import annotations

import builtins
import math
from typing import Any

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution

from antiphon.privacy.accounting import (
    Advanced,
    Basic,
    GaussianLoss,
    LaplaceLoss,
    Loss,
    Renyi,
    epsilon_of_rho,
    loss_from_dict,
    loss_to_dict,
)

LAPLACE = LaplaceLoss(sensitivity=5, scale=50)  # 0.1 a release


def divergence(log_p: np.ndarray, log_q: np.ndarray, order: float) -> float:
    """Rényi divergence of two lists of unnormalised log-probabilities over the same integers."""
    log_p, log_q = log_p - np.logaddexp.reduce(log_p), log_q - np.logaddexp.reduce(log_q)
    return float(np.logaddexp.reduce(order * log_p + (1 - order) * log_q) / (order - 1))


@pytest.mark.parametrize("order", [1.1, 2.0, 7.5, 32.0])
@pytest.mark.parametrize(("sensitivity", "scale"), [(1, 1), (3, 2), (10, 40)])
def test_divergence_of_laplace_noise_is_that_of_its_probabilities(
    order: float, sensitivity: int, scale: int
) -> None:
    x = np.arange(-200 * scale, 200 * scale + 1)
    exact = divergence(-np.abs(x) / scale, -np.abs(x - sensitivity) / scale, order)
    assert LaplaceLoss(sensitivity, scale).renyi(np.array([order]))[0] == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize("order", [1.1, 2.0, 7.5])
def test_divergence_of_gaussian_noise_is_that_of_its_probabilities(order: float) -> None:
    x = np.arange(-400, 401)
    exact = divergence(-(x**2) / (2 * 7**2), -((x - 4) ** 2) / (2 * 7**2), order)
    assert GaussianLoss(4, 7).renyi(np.array([order]))[0] == pytest.approx(exact, rel=1e-6)


def test_a_distance_spread_over_words_does_less_harm_than_on_one_word() -> None:
    orders = np.array([1.1, 2.0, 8.0, 64.0])
    whole = LaplaceLoss(6, 4).renyi(orders)
    for parts in ([1] * 6, [3, 3], [5, 1]):
        assert (sum(LaplaceLoss(part, 4).renyi(orders) for part in parts) <= whole).all()


def test_one_count_to_a_step_is_randomised_response_and_worse_than_continuous_noise() -> None:
    orders = np.array([1.5, 2.0, 5.0])
    epsilon = 0.5
    truth = 1 / (1 + math.exp(-epsilon))
    answer, neighbour = np.log([truth, 1 - truth]), np.log([1 - truth, truth])
    response = [divergence(answer, neighbour, order) for order in orders]
    np.testing.assert_allclose(LaplaceLoss(1, 2).renyi(orders), response)
    accountant = dp_accounting.rdp.RdpAccountant(orders)
    accountant.compose(dp_accounting.LaplaceDpEvent(2.0))
    assert (LaplaceLoss(1, 2).renyi(orders) > accountant._rdp).all()
    np.testing.assert_allclose(LaplaceLoss(1000, 2000).renyi(orders), accountant._rdp, rtol=1e-3)


# --- Composition by hand --------------------------------------------------------------------------


def test_basic_composition_adds_up() -> None:
    assert Basic().epsilon([], 0.0) == 0
    assert Basic().epsilon([(LAPLACE, 10)], 0.0) == pytest.approx(1.0)
    assert Basic().epsilon([(LAPLACE, 10), (LaplaceLoss(1, 2), 1)], 0.0) == pytest.approx(1.5)


def test_advanced_composition_is_its_formula() -> None:
    # 100 releases of 0.1: 100 · 0.1 · tanh(0.05) = 0.49958, and sqrt(2 · ln(1e5) · 100 · 0.01) = 4.79853
    assert Advanced().epsilon([(LAPLACE, 100)], 1e-5) == pytest.approx(0.49958 + 4.79853, abs=1e-4)
    assert Advanced().epsilon([(LAPLACE, 100)], 0.0) == math.inf
    assert Advanced().epsilon([], 1e-5) == 0
    assert Advanced().epsilon([(LAPLACE, 100)], 1e-5) < Basic().epsilon([(LAPLACE, 100)], 0.0)


def test_releases_of_gaussian_noise_share_the_delta() -> None:
    gaussian = GaussianLoss(1, 4)
    each = gaussian.epsilon(1e-5 / 4)
    assert Basic().epsilon([(gaussian, 4)], 1e-5) == pytest.approx(4 * each)
    assert Basic().epsilon([(gaussian, 4)], 0.0) == math.inf
    half = gaussian.epsilon(1e-5 / 8)
    by_hand = 4 * half * math.tanh(half / 2) + math.sqrt(2 * math.log(2e5) * 4 * half**2)
    assert Advanced().epsilon([(gaussian, 4)], 1e-5) == pytest.approx(by_hand)


# --- Against other accountants --------------------------------------------------------------------


@pytest.mark.parametrize(("rho", "delta"), [(0.01, 1e-5), (0.1, 1e-6), (2.0, 1e-9)])
def test_concentrated_loss_converts_as_dp_accounting_does(rho: float, delta: float) -> None:
    accountant = dp_accounting.rdp.RdpAccountant([1 + x / 50 for x in range(1, 20_000)])
    accountant.compose(dp_accounting.ZCDpEvent(rho))
    assert epsilon_of_rho(rho, delta) == pytest.approx(accountant.get_epsilon(delta), rel=1e-3)


@pytest.mark.parametrize("rounds", [1, 10, 1000])
def test_gaussian_rounds_cost_what_dp_accounting_says(rounds: int) -> None:
    accountant = dp_accounting.rdp.RdpAccountant()
    accountant.compose(dp_accounting.GaussianDpEvent(8.0), rounds)
    found = Renyi().epsilon([(GaussianLoss(1, 8), rounds)], 1e-6)
    assert found == pytest.approx(accountant.get_epsilon(1e-6), rel=1e-12)


@pytest.mark.parametrize(("sensitivity", "scale", "rounds"), [(1, 2, 5), (4, 40, 20), (40, 400, 20)])
def test_laplace_rounds_are_bounded_by_us_and_not_far_above_the_exact_figure(
    sensitivity: int, scale: int, rounds: int
) -> None:
    pld = privacy_loss_distribution.from_discrete_laplace_mechanism(1 / scale, sensitivity)
    exact = pld.self_compose(rounds).get_epsilon_for_delta(1e-5)
    losses: list[tuple[Loss, int]] = [(LaplaceLoss(sensitivity, scale), rounds)]
    ours = min(way.epsilon(losses, 1e-5) for way in (Basic(), Advanced(), Renyi()))
    assert exact <= ours * (1 + 1e-3)
    assert ours < 1.35 * exact


def test_losses_come_back_from_json_as_they_were() -> None:
    for loss in (LAPLACE, GaussianLoss(2.5, 9)):
        assert loss_from_dict(loss_to_dict(loss)) == loss


def test_without_the_accountant_the_message_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def absent(name: str, *arguments: Any, **named: Any) -> Any:
        if name == "dp_accounting":
            raise ImportError(name)
        return real(name, *arguments, **named)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(ValueError, match=r"pip install 'antiphon\[privacy\]', or use basic or advanced"):
        Renyi().epsilon([(LAPLACE, 1)], 1e-5)
    assert Basic().epsilon([(LAPLACE, 1)], 1e-5) == pytest.approx(0.1)
