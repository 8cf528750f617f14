"""Announced noise: who hears it computes the privacy loss that the run itself computes."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from antiphon import config
from antiphon.algorithms.private import Private
from antiphon.privacy.announced_noise import AnnouncedNoise
from antiphon.privacy.participation import PoissonSampling, RoundRobin
from antiphon.privacy.update_accounting import Blt, epsilon_of

ROUNDS = 12
APART = RoundRobin(separation=3, slack=1)
RUNS = {
    "banded": Private(cohorts=APART, simulated=True),
    "independent": Private(cohorts=APART, bands=1, simulated=True),
    "blt": Private(cohorts=APART, noise=Blt(), simulated=True),
    "poisson": Private(cohorts=PoissonSampling(0.3), epsilon=2.0, simulated=True),
    "fixed": Private(cohorts=APART, noise_multiplier=0.5, epsilon=100.0, simulated=True),
}


@pytest.mark.parametrize("name", RUNS)
def test_the_loss_from_the_announcement_is_that_of_the_run(name: str) -> None:
    private = RUNS[name]
    own = replace(private, rounds=ROUNDS, cohort=3.0).plan.cost(ROUNDS)
    written = json.dumps(config.to_dict(private.announced(ROUNDS)))  # as it travels
    announced = config.from_dict(AnnouncedNoise, json.loads(written))
    ours, theirs = epsilon_of((announced.cost,), 1e-6), epsilon_of((own,), 1e-6)
    assert ours == pytest.approx(theirs, rel=1e-9)
    if name != "fixed":
        assert ours == pytest.approx(private.epsilon, rel=0.01)


def test_less_noise_than_the_budget_needs_shows_in_the_loss() -> None:
    announced = RUNS["banded"].announced(ROUNDS)
    weak = replace(announced, deviation=announced.deviation / 2)
    assert epsilon_of((weak.cost,), 1e-6) > 2 * epsilon_of((announced.cost,), 1e-6)


@pytest.mark.parametrize(
    ("turns", "round", "expected"),
    [
        ([], 0, ""),
        ([0, 4], 8, ""),
        ([4], 4, ""),  # a resumed run asks again
        ([0], 2, "2 apart"),
        ([5], 3, "2 apart"),
        ([], 12, "this is round 13"),
        ([], -1, "this is round 0"),
    ],
)
def test_turns_that_were_not_announced_are_named(turns: list[int], round: int, expected: str) -> None:
    why_not = AnnouncedNoise(APART, ROUNDS, 1.0).why_not(turns, round)
    assert expected in why_not
    assert bool(why_not) == bool(expected)


def test_no_more_turns_are_taken_than_were_announced() -> None:
    noise = AnnouncedNoise(RoundRobin(separation=3, slack=5), ROUNDS, 1.0)  # at most three turns in 12 rounds
    assert noise.why_not([0, 3], 6) == ""
    assert "announced 3 turns" in noise.why_not([0, 3, 6], 9)


@pytest.mark.parametrize("changes", [{"rounds": 0}, {"deviation": 0.0}, {"deviation": float("inf")}])
def test_an_announcement_without_noise_is_none(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="noise is announced"):
        replace(AnnouncedNoise(APART, ROUNDS, 1.0), **changes)
