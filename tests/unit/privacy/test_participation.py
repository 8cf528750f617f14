"""Turns and samples: separation, independence of other clients, rates."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.privacy.participation import PoissonSampling, RoundRobin, cohort_of

CLIENTS = [f"speaker/{number}" for number in range(300)]
KEY = bytes(range(32))
ROUNDS = 60


def turns(participation: RoundRobin | PoissonSampling, client: str, seed: int = 0) -> list[int]:
    return [round for round in range(ROUNDS) if participation.takes_part(client, round, seed, KEY)]


@given(separation=st.integers(1, 12), slack=st.integers(0, 20), seed=st.integers(0, 99))
def test_two_turns_of_a_client_are_never_nearer_than_the_separation(
    separation: int, slack: int, seed: int
) -> None:
    plan = RoundRobin(separation, slack)
    for client in CLIENTS[:10]:
        rounds = turns(plan, client, seed)
        assert all(later - earlier >= separation for earlier, later in itertools.pairwise(rounds))
        for end in range(1, ROUNDS + 1):
            assert sum(round < end for round in rounds) <= plan.participations(end)


@pytest.mark.parametrize("slack", [0, 2, 5])
def test_the_bound_on_participations_is_met_by_some_draw(slack: int) -> None:
    """Brute force over all shifts of all turns: the bound is the maximum, not only a bound."""
    plan, rounds = RoundRobin(3, slack), 14
    most = 0
    for first in range(plan.period):
        starts = [first + turn * plan.period for turn in range(-2, rounds)]
        early = [start for start in starts if -slack <= start < rounds]
        # A turn that would begin before the run may be late; of the others, the earliest leave most room.
        for shifts in itertools.product(range(slack + 1), repeat=min(len(early), 2)):
            placed = [start + shift for start, shift in zip(early, shifts, strict=False)] + early[
                len(shifts) :
            ]
            most = max(most, sum(0 <= round < rounds for round in placed))
    assert most == plan.participations(rounds)


@pytest.mark.parametrize("participation", [RoundRobin(6, 2), PoissonSampling(0.2)])
def test_adding_and_removing_a_client_changes_the_rounds_of_no_other(
    participation: RoundRobin | PoissonSampling,
) -> None:
    for round in range(30):
        everyone = cohort_of(participation, CLIENTS, round, 3, KEY)
        fewer = cohort_of(participation, CLIENTS[1:], round, 3, KEY)
        assert [client for client in everyone if client != CLIENTS[0]] == fewer


@pytest.mark.parametrize("participation", [RoundRobin(6), RoundRobin(4, 2), PoissonSampling(1 / 6)])
def test_cohorts_have_their_planned_size_on_average(participation: RoundRobin | PoissonSampling) -> None:
    sizes = [len(cohort_of(participation, CLIENTS, round, 1, KEY)) for round in range(ROUNDS)]
    assert participation.rate == pytest.approx(1 / 6)
    assert sum(sizes) / ROUNDS == pytest.approx(50, rel=0.05)
    assert min(sizes) < 50 < max(sizes)


def test_round_robin_without_slack_asks_every_client_once_in_a_period() -> None:
    rounds = [cohort_of(RoundRobin(7), CLIENTS, round, 5, KEY) for round in range(7)]
    assert sorted(itertools.chain(*rounds)) == sorted(CLIENTS)
    assert cohort_of(RoundRobin(7), CLIENTS, 7, 5, KEY) == rounds[0]


def test_slack_mixes_the_clients_that_meet() -> None:
    plan = RoundRobin(5, 3)
    assert cohort_of(plan, CLIENTS, 2, 5, KEY) != cohort_of(plan, CLIENTS, 2 + plan.period, 5, KEY)


def test_a_poisson_sample_needs_the_key_and_not_the_seed() -> None:
    sampling = PoissonSampling(0.5)
    drawn = cohort_of(sampling, CLIENTS, 0, 1, KEY)
    assert cohort_of(sampling, CLIENTS, 0, 2, KEY) == drawn
    assert cohort_of(sampling, CLIENTS, 0, 1, bytes(32)) != drawn


def test_poisson_samples_of_rounds_and_of_clients_are_independent() -> None:
    """Pairs of (round, next round) and (client, next client) are taken with probability rate²."""
    sampling = PoissonSampling(0.3)
    table = [[sampling.takes_part(client, round, 0, KEY) for client in CLIENTS] for round in range(ROUNDS)]
    pairs = [(a, b) for row in table for a, b in itertools.pairwise(row)]
    pairs_in_time = [(a, b) for one, two in itertools.pairwise(table) for a, b in zip(one, two, strict=True)]
    for sample in (pairs, pairs_in_time):
        share = sum(a and b for a, b in sample) / len(sample)
        assert share == pytest.approx(0.09, abs=4 * (0.09 * 0.91 / len(sample)) ** 0.5)


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="separation of at least 1"):
        RoundRobin(0)
    with pytest.raises(ValueError, match="slack"):
        RoundRobin(3, -1)
    for rate in (0.0, 1.5):
        with pytest.raises(ValueError, match="rate"):
            PoissonSampling(rate)
