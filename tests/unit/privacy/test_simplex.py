from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from antiphon.privacy.release import distribution_of, project

UNIFORM = torch.full((4,), 0.25, dtype=torch.float64)


@pytest.mark.parametrize("seed", range(6))
def test_projection_is_what_a_quadratic_programme_finds(seed: int) -> None:
    values = np.random.default_rng(seed).normal(0.1, 0.5, 7)
    best = minimize(
        lambda q: ((q - values) ** 2).sum(),
        np.full(7, 1 / 7),
        jac=lambda q: 2 * (q - values),
        bounds=[(0, None)] * 7,
        constraints={"type": "eq", "fun": lambda q: q.sum() - 1, "jac": lambda q: np.ones(7)},
        options={"ftol": 1e-15, "maxiter": 500},
    )
    assert best.success
    np.testing.assert_allclose(project(torch.from_numpy(values)).numpy(), best.x, atol=1e-6)


def test_projection_leaves_a_distribution_alone_and_is_idempotent() -> None:
    inside = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    torch.testing.assert_close(project(inside), inside)
    outside = project(torch.randn(1000, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    assert float(outside.sum()) == pytest.approx(1)
    torch.testing.assert_close(project(outside), outside)


def test_no_point_of_the_simplex_is_nearer_than_the_projection() -> None:
    random = np.random.default_rng(0)
    value = random.normal(size=5)
    nearest = ((project(torch.from_numpy(value)).numpy() - value) ** 2).sum()
    others = random.dirichlet(np.full(5, 0.5), 20_000)
    assert nearest <= ((others - value) ** 2).sum(axis=1).min()


def test_counts_become_a_distribution_and_the_background_where_nothing_is_left() -> None:
    found = distribution_of(torch.tensor([8.0, -3.0, 2.0, 1.0], dtype=torch.float64), UNIFORM)
    assert float(found.sum()) == pytest.approx(1)
    assert bool((found >= 0).all())
    nothing = distribution_of(torch.tensor([-1.0, -2.0, -3.0, -4.0], dtype=torch.float64), UNIFORM)
    assert torch.equal(nothing, UNIFORM)


def test_clamping_keeps_noise_that_projection_takes_away() -> None:
    counts = torch.tensor([90.0, 10.0] + [2.0, -2.0] * 50, dtype=torch.float64)
    background = torch.full((102,), 1 / 102, dtype=torch.float64)
    clamped = counts.clamp(min=0)
    assert float(clamped[2:].sum() / clamped.sum()) == pytest.approx(0.5)
    assert float(distribution_of(counts, background)[2:].sum()) < 0.25
