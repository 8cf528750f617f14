"""Noise of a large population on few clients: what reaches the mean, and what the few clients have."""

from __future__ import annotations

import itertools
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("dp_accounting")

from at_scale import AtScale

from antiphon.privacy.participation import RoundRobin
from antiphon.privacy.update_accounting import Blt, GaussianCost, epsilon_of
from antiphon.recipes import recipe
from antiphon.server.run_context import RunContext, prepare
from antiphon.tasks.update_clipping import AdaptiveUpdate

SETTINGS = Path(__file__).parents[3] / "benchmarks" / "private-librispeech.yaml"


def small(bands: int = 4, **more: Any) -> AtScale:
    turns = RoundRobin(separation=2)
    numbers = {"population": 4_000, "planned": 1_000, **more}
    return AtScale(epsilon=7.2, delta=1e-9, cohorts=turns, bands=bands, cohort=5.0, rounds=7, **numbers)


@pytest.mark.parametrize("private", [small(), small(1), small(0, noise=Blt())], ids=["bands", "one", "blt"])
def test_the_mean_has_the_noise_that_it_would_have_with_the_planned_clients(private: AtScale) -> None:
    scaled, full = private.plan, private.plan_at_scale
    assert scaled.coefficients == full.coefficients
    assert scaled.deviation / 5.0 == pytest.approx(full.deviation / 1_000, rel=1e-12)
    assert epsilon_of((full.cost(7),), 1e-9) == pytest.approx(7.2, rel=1e-9)


def test_an_adaptive_bound_follows_a_share_with_the_noise_of_the_planned_clients() -> None:
    """A twentieth of the cohort, or the deviation of the plan: both grow with the cohort."""
    private = small(clipping=AdaptiveUpdate(0.3))
    full = AdaptiveUpdate(0.3).deviation_of_count(private.plan_at_scale.deviation, 1_000)
    assert private._deviation_of_count() / 5.0 == pytest.approx(full / 1_000, rel=1e-12)


@pytest.mark.parametrize(
    "private", [small(1), small(2), small(4), small(0, noise=Blt())], ids=["1", "2", "4", "blt"]
)
def test_the_epsilon_of_the_clients_here_is_that_of_the_worst_pattern_of_turns(private: AtScale) -> None:
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


def test_each_row_of_the_librispeech_settings_plans_the_epsilon_of_its_name() -> None:
    """So one command gives the table: all settings are read, and fit 25 clients and the rounds."""
    runs = recipe(str(SETTINGS)).runs
    private = {name: run for name, run in runs.items() if isinstance(run.algorithm, AtScale)}
    assert {f"flat-{number}" for number in ("1", "2", "4", "7.2", "none")} <= set(private)
    assert {f"{kind}-7.2" for kind in ("layer", "dimension", "learnt", "adaptive", "blt")} <= set(private)
    for name, run in private.items():
        rounds, cohort = run.rounds.total, run.rounds.cohort
        context = RunContext(tuple(map(str, range(25))), num_rounds=rounds, cohort=cohort)
        ready = prepare(run.algorithm, context)
        claimed = re.fullmatch(r"[a-z]+-([\d.]+|none)", name)
        assert claimed is not None
        if claimed[1] == "none":
            assert ready.plan.deviation * ready.cohort < 1e-6
        else:
            spent = epsilon_of((ready.plan_at_scale.cost(rounds),), ready.delta)
            assert spent == pytest.approx(float(claimed[1]), rel=1e-9)
