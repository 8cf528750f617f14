"""Coefficients against jax-privacy, sensitivity against brute force, short forms against matrices."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.linalg import toeplitz

from antiphon.privacy.matrix_factorisation import optimise, prefix_error, sensitivity, solve

# jax-privacy 2.0.0, in 64 bits, from jax_privacy.matrix_factorization import toeplitz:
#   c = toeplitz.optimize_banded_toeplitz(n=n, bands=b); inv = toeplitz.inverse_coef(c, n)
#   s2 = toeplitz.minsep_sensitivity_squared(c, min_sep=b, max_participations=ceil(n / b), n=n)
# (n, b): sqrt(s2 * mean(cumsum(cumsum(inv) ** 2))), c / c[0]
JAX_PRIVACY = {
    (90, 6): (12.651250311875076, [1.0, 0.64524, 0.545526, 0.485358, 0.437208, 0.389217]),
    (200, 20): (
        9.981529175528777,
        [
            1.0,
            0.561741,
            0.453668,
            0.399258,
            0.364573,
            0.339586,
            0.320171,
            0.304285,
            0.290787,
            0.278978,
            0.2684,
            0.258736,
            0.24975,
            0.24126,
            0.233108,
            0.225149,
            0.217227,
            0.209149,
            0.200607,
            0.190931,
        ],
    ),
}


def matrix(c: tuple[float, ...], n: int) -> np.ndarray:
    return toeplitz(np.pad(c, (0, n - len(c))), np.zeros(n))


@pytest.mark.parametrize(("rounds", "bands"), JAX_PRIVACY)
def test_coefficients_and_error_are_those_of_jax_privacy(rounds: int, bands: int) -> None:
    error, coefficients = JAX_PRIVACY[rounds, bands]
    most = math.ceil(rounds / bands)
    c = optimise(rounds, bands, bands, most)
    assert np.array(c) / c[0] == pytest.approx(coefficients, rel=5e-6)
    assert sensitivity(c, rounds, bands, most) * prefix_error(c, rounds) == pytest.approx(error, rel=1e-9)
    assert np.linalg.norm(c) == pytest.approx(1, rel=1e-12)


@pytest.mark.parametrize(
    ("rounds", "bands", "separation", "most"), [(30, 4, 4, 8), (25, 3, 6, 2), (12, 12, 12, 1)]
)
def test_no_nearby_coefficients_are_better(rounds: int, bands: int, separation: int, most: int) -> None:
    def objective(c: tuple[float, ...]) -> float:
        return sensitivity(c, rounds, separation, most) * prefix_error(c, rounds)

    best = optimise(rounds, bands, separation, most)
    generator = np.random.default_rng(0)
    for _ in range(200):
        step = generator.standard_normal(bands) * 10.0 ** generator.uniform(-4, -1)
        assert objective(best) <= objective(tuple(np.array(best) + step)) * (1 + 1e-9)


def test_the_prefix_error_is_the_norm_of_a_matrix() -> None:
    c, n = optimise(20, 5, 5, 4), 20
    sums = np.tril(np.ones((n, n))) @ np.linalg.inv(matrix(c, n))
    assert prefix_error(c, n) == pytest.approx(np.linalg.norm(sums) / math.sqrt(n), rel=1e-12)


def test_solve_is_the_inverse_of_the_matrix() -> None:
    c, right = (0.8, 0.5, 0.3), np.random.default_rng(1).standard_normal(15)
    assert matrix(c, 15) @ solve(np.array(c), right) == pytest.approx(right, abs=1e-12)


def patterns(rounds: int, separation: int, most: int) -> list[tuple[int, ...]]:
    """All sets of at most `most` rounds that are at least `separation` apart."""
    found = []
    for number in range(1, most + 1):
        for chosen in itertools.combinations(range(rounds), number):
            if all(b - a >= separation for a, b in itertools.pairwise(chosen)):
                found.append(chosen)
    return found


@pytest.mark.parametrize(
    ("rounds", "bands", "separation", "most"),
    [(12, 3, 3, 4), (13, 3, 3, 9), (12, 2, 4, 3), (11, 4, 5, 2), (10, 1, 1, 10), (10, 1, 2, 3), (9, 5, 5, 1)],
)
def test_sensitivity_is_the_largest_over_all_patterns_and_signs(
    rounds: int, bands: int, separation: int, most: int
) -> None:
    c = optimise(rounds, bands, separation, most)
    system = matrix(c, rounds)
    largest = 0.0
    for chosen in patterns(rounds, separation, most):
        for signs in itertools.product([1, -1], repeat=len(chosen) - 1):
            x = np.zeros(rounds)
            x[list(chosen)] = [1, *signs]
            largest = max(largest, float(np.linalg.norm(system @ x)))
    assert sensitivity(c, rounds, separation, most) == pytest.approx(largest, rel=1e-12)


def test_sensitivity_of_the_first_rounds_is_that_of_the_upper_left_block() -> None:
    c, separation = optimise(12, 4, 4, 3), 4
    for rounds in range(1, 13):
        most = -(-rounds // separation)
        block = matrix(c, 12)[:rounds, :rounds]
        largest = max(
            float(np.linalg.norm(block[:, list(chosen)].sum(axis=1)))
            for chosen in patterns(rounds, separation, most)
        )
        assert sensitivity(c, rounds, separation, most) == pytest.approx(largest, rel=1e-12)


def test_updates_of_any_direction_move_no_more_than_the_sensitivity() -> None:
    rounds, separation = 12, 3
    c = optimise(rounds, 3, separation, 4)
    system, generator = matrix(c, rounds), np.random.default_rng(3)
    for chosen in patterns(rounds, separation, 4):
        updates = np.zeros((rounds, 5))
        directions = generator.standard_normal((len(chosen), 5))
        updates[list(chosen)] = directions / np.linalg.norm(directions, axis=1, keepdims=True)
        assert np.linalg.norm(system @ updates) <= sensitivity(c, rounds, separation, 4) * (1 + 1e-12)


def test_more_bands_than_the_separation_are_refused() -> None:
    with pytest.raises(ValueError, match="5 bands of noise need a separation"):
        optimise(20, 5, 4, 5)
    with pytest.raises(ValueError, match="a run of at least 5 rounds"):
        optimise(4, 5, 6, 1)
