"""Noise with buffers: short forms against matrices, sensitivity by brute force, error against bands."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from scipy.linalg import toeplitz

from antiphon.privacy.accounting import Budget
from antiphon.privacy.buffered_toeplitz import (
    BufferedToeplitz,
    optimise_buffers,
    overlapping_sensitivity,
)
from antiphon.privacy.correlated_noise import BLOCK, BufferedRows, noise_rows, standard_normal
from antiphon.privacy.matrix_factorisation import prefix_error
from antiphon.privacy.participation import PoissonSampling, RoundRobin
from antiphon.privacy.update_accounting import Blt, epsilon_of, plan_noise

KEY = bytes(range(32))
BUDGET = Budget(8.0, 1e-5)


def matrix(c: tuple[float, ...]) -> np.ndarray:
    return toeplitz(c, np.zeros(len(c)))


def test_coefficients_are_sums_of_geometric_series() -> None:
    c = BufferedToeplitz((0.3, 0.2), (0.9, 0.5)).coefficients(5)
    want = [1.0, *(0.3 * 0.9**i + 0.2 * 0.5**i for i in range(4))]
    assert c == pytest.approx(want, rel=1e-14)


@pytest.mark.parametrize(("rounds", "buffers", "separation"), [(30, 1, 4), (40, 3, 40), (200, 4, 20)])
def test_rows_solve_the_system_of_the_explicit_matrix(
    rounds: int, buffers: int, separation: int, tmp_path: Path
) -> None:
    """C row = z, exactly the noise that the accountant counts."""
    found = optimise_buffers(rounds, buffers, separation, -(-rounds // separation))
    rows = noise_rows(KEY, found, 50, str(tmp_path))
    noise = np.stack([rows.row(number) for number in range(rounds)])
    z = np.stack([standard_normal(KEY, number, 0, 50) for number in range(rounds)])
    assert matrix(found.coefficients(rounds)) @ noise == pytest.approx(z, abs=1e-11)


def test_a_restart_at_any_row_gives_the_same_bits(tmp_path: Path) -> None:
    found, size = optimise_buffers(12, 3, 4, 3), BLOCK + 7
    rows = BufferedRows(KEY, found, size, str(tmp_path))
    whole = [rows.row(number) for number in range(12)]
    for begin in (11, 4, 0):
        again = BufferedRows(KEY, found, size, str(tmp_path))
        for number in range(begin, 12):
            assert again.row(number).tobytes() == whole[number].tobytes()
    for number in (11, 9, 2, 3, 3, 0):
        assert rows.row(number).tobytes() == whole[number].tobytes()
    assert list(tmp_path.iterdir()) == []


def test_a_row_that_is_interrupted_is_drawn_again_from_the_first(tmp_path: Path) -> None:
    found, size = optimise_buffers(12, 2, 4, 3), 2 * BLOCK
    whole = BufferedRows(KEY, found, size, str(tmp_path)).row(7)
    rows = BufferedRows(KEY, found, size, str(tmp_path))
    rows.row(5)
    rows.key = None  # type: ignore[assignment]
    with pytest.raises(TypeError):
        rows.row(7)
    rows.key = KEY
    assert rows.row(7).tobytes() == whole.tobytes()


@pytest.mark.parametrize(
    ("rounds", "separation", "most"), [(12, 3, 4), (13, 3, 2), (12, 4, 3), (11, 5, 2), (9, 1, 9), (9, 9, 1)]
)
@pytest.mark.parametrize("buffers", [1, 4])
def test_sensitivity_is_the_largest_over_all_patterns_and_signs(
    rounds: int, separation: int, most: int, buffers: int
) -> None:
    c = optimise_buffers(rounds, buffers, separation, most).coefficients(rounds)
    for first in (rounds, rounds // 2):  # of the whole run, and of its first rounds
        system, largest = matrix(c[:first]), 0.0
        for number in range(1, most + 1):
            for chosen in itertools.combinations(range(first), number):
                if all(b - a >= separation for a, b in itertools.pairwise(chosen)):
                    for signs in itertools.product([1, -1], repeat=number - 1):
                        x = np.zeros(first)
                        x[list(chosen)] = [1, *signs]
                        largest = max(largest, float(np.linalg.norm(system @ x)))
        assert overlapping_sensitivity(c, first, separation, most) == pytest.approx(largest, rel=1e-12)


def test_updates_of_any_direction_move_no_more_than_the_sensitivity() -> None:
    rounds, separation, generator = 12, 3, np.random.default_rng(3)
    c = optimise_buffers(rounds, 3, separation, 4).coefficients(rounds)
    most = overlapping_sensitivity(c, rounds, separation, 4)
    for _ in range(500):
        begin = int(generator.integers(0, 3))
        chosen = list(range(begin, rounds, separation))
        directions = generator.standard_normal((len(chosen), 5))
        updates = np.zeros((rounds, 5))
        updates[chosen] = directions / np.linalg.norm(directions, axis=1, keepdims=True)
        assert np.linalg.norm(matrix(c) @ updates) <= most * (1 + 1e-12)


@pytest.mark.parametrize(("rounds", "separation"), [(90, 6), (100, 10), (1000, 20), (60, 60), (7, 2)])
def test_coefficients_are_positive_and_fall(rounds: int, separation: int) -> None:
    for buffers in (1, 4, 8):
        c = optimise_buffers(rounds, buffers, separation, -(-rounds // separation)).coefficients(rounds)
        assert all(a >= b > 0 for a, b in itertools.pairwise(c))


@pytest.mark.parametrize(("rounds", "separation", "buffers"), [(30, 4, 1), (100, 10, 1), (40, 40, 2)])
def test_no_nearby_matrix_is_better(rounds: int, separation: int, buffers: int) -> None:
    """Among those that are searched: the θ̂ are not negative, so Σ ω ≤ Σ θ."""
    most = -(-rounds // separation)

    def objective(found: BufferedToeplitz) -> float:
        c = found.coefficients(rounds)
        return overlapping_sensitivity(c, rounds, separation, most) * prefix_error(c, rounds)

    best, generator = optimise_buffers(rounds, buffers, separation, most), np.random.default_rng(0)
    for _ in range(300):
        size = 10.0 ** generator.uniform(-4, -1.5)
        scales, decays = (
            tuple(np.array(values) * np.exp(size * generator.standard_normal(buffers)))
            for values in (best.scales, best.decays)
        )
        other = BufferedToeplitz(scales, decays)
        c = other.coefficients(rounds)
        if sum(scales) <= sum(decays) and all(a >= b > 0 for a, b in itertools.pairwise(c)):
            assert objective(best) <= objective(other) * (1 + 1e-6)


# jax-privacy 2.0.0 and dp-accounting 0.6.0 at ε = 8 and δ = 1e-5: error of the running sums, in bounds.
@pytest.mark.parametrize(
    ("rounds", "separation", "bands", "blt"),
    [(100, 10, 5.6, 5.9), (1000, 20, 24.5, 25.9), (1000, 100, 6.9, 7.3), (2000, 1000, 2.8, 2.9)],
)
def test_the_error_is_that_of_jax_privacy_and_a_little_above_that_of_bands(
    rounds: int, separation: int, bands: float, blt: float
) -> None:
    plan = plan_noise(RoundRobin(separation), 0, rounds, BUDGET, correlation=Blt())
    error = plan.deviation * prefix_error(plan.coefficients, rounds)
    assert bands < error < blt + 0.05
    assert error == pytest.approx(blt, abs=0.06)


def test_a_plan_spends_the_budget_at_its_last_round_and_not_before() -> None:
    plan = plan_noise(RoundRobin(5, 2), 0, 40, BUDGET, correlation=Blt(3))
    spent = [epsilon_of((plan.cost(rounds),), BUDGET.delta) for rounds in range(1, 41)]
    assert spent == sorted(spent)
    assert spent[-1] == pytest.approx(8.0, rel=1e-9)
    assert plan.coefficients[0] == 1.0
    assert math.isfinite(plan.deviation)


def test_buffers_need_turns_that_are_apart_and_no_bands() -> None:
    for participation, bands in ((PoissonSampling(0.1), 0), (RoundRobin(5), 3)):
        with pytest.raises(ValueError, match="use round_robin, and leave out bands"):
            plan_noise(participation, bands, 40, BUDGET, correlation=Blt())
    with pytest.raises(ValueError, match="1 to 8 buffers"):
        Blt(0)
