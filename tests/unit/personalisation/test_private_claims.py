"""The claims of docs/private-counts.md about pooled counts, by brute force: all clients, and sampled ones.

Runs of the engine with and without a client (or an utterance, or a household) are compared, round by round.
What they pool may differ by no more than the sensitivity that the ledger charges for.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from twins import side_by_side

from antiphon.algorithms.fmp import Fmp, background_params
from antiphon.engine import Engine, Rounds, sample_cohort
from antiphon.personalisation.private_trial import client_gaussian, client_laplace
from antiphon.personalisation.schedule import Schedule
from antiphon.personalisation.word_cache import Cache, MarginalWorker
from antiphon.pools.local import LocalPool
from antiphon.pools.torch_group import TorchGroup
from antiphon.privacy.accounting import Basic
from antiphon.privacy.mechanisms import Cap, Mechanism, Rounded, utterance_sensitivity
from antiphon.privacy.release import PrivateRelease, Released
from antiphon.privacy.samplers import Randomness, Secure, Seeded
from antiphon.workflows.personalisation_results import NoiseSettings
from antiphon.workflows.personalize_lists import personalize

SIZE, NUM_ROUNDS, EPSILON = 300, 10, 2.0
BACKGROUND = torch.full((SIZE,), 1 / SIZE, dtype=torch.float64)
WEIGHTS = (1.0, 0.6065, 0.1353)  # of hypotheses by rank
POPULATION = [f"client{number:03d}" for number in range(123)]
SCHEDULES = {
    "all": Schedule(NUM_ROUNDS),
    "sampled": Schedule(NUM_ROUNDS, share=50 / 123),
    "sampled with another seed": Schedule(NUM_ROUNDS, share=0.4, seed=5),
}
Order = int  # of a norm
CAPS: dict[str, tuple[Cap, Mechanism, Order]] = {
    "laplace": (*client_laplace(EPSILON, NUM_ROUNDS)[:2], 1),
    "gaussian": (*client_gaussian(EPSILON, NUM_ROUNDS)[:2], 2),
}
every_schedule = pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES.keys())
every_cap = pytest.mark.parametrize(("cap", "mechanism", "order"), CAPS.values(), ids=CAPS.keys())
Heard = Callable[[str, int], Cache]  # client, round -> all it has heard


@dataclass
class Noted:
    """A release that notes the exact counts of every round."""

    counts: list[Tensor] = field(default_factory=list)

    def __call__(self, counts: Tensor, round: int, memory: Mapping[str, Any] | None) -> Released:
        self.counts.append(counts)
        return Released(BACKGROUND, {}, {})


@cache
def heard(client: str, round: int) -> Cache:
    """Zipf's words, some more in every round. Clients talk more or less; "loner" says one word only."""
    random, words_so_far = np.random.default_rng(sum(client.encode())), Cache()
    for _ in range(round + 1):
        words = np.minimum(random.zipf(1.3, random.integers(5, 120)) - 1, SIZE - 1)
        words = np.full_like(words, SIZE - 1) if client.startswith("loner") else words
        words_so_far = words_so_far.plus(words, random.choice(WEIGHTS, len(words)))
    return words_so_far


def pooled(clients: Sequence[str], schedule: Schedule, cap: Cap, folder: Path, said: Heard = heard) -> Tensor:
    """What the rounds of a run pool [rounds, words]."""
    noted = Noted()
    worker = MarginalWorker(lambda round: {name: said(name, round) for name in clients}, SIZE, cap)
    rounds = Rounds(NUM_ROUNDS, len(clients), min_clients=0, valid_every=0)
    engine = Engine(
        Fmp(release=noted), LocalPool(worker), clients, rounds, folder, schedule.seed, draw=schedule.draw
    )
    engine.run(background_params(BACKGROUND))
    return torch.stack(noted.counts)


def gaps(one: Tensor, other: Tensor, order: Order) -> Tensor:
    """How far pooled counts are apart in every round."""
    return torch.linalg.vector_norm(one - other, order, dim=1)


@every_schedule
@every_cap
@pytest.mark.parametrize("newcomer", ["client500", "aaa", "loner", "zzz"])
def test_one_more_client_moves_the_counts_of_a_round_by_no_more_than_the_ledger_charges(
    schedule: Schedule, cap: Cap, mechanism: Mechanism, order: Order, newcomer: str, tmp_path: Path
) -> None:
    before = pooled(POPULATION, schedule, cap, tmp_path / "before")
    after = pooled([*POPULATION, newcomer], schedule, cap, tmp_path / "after")
    found = gaps(after, before, order)
    assert float(found.max()) <= mechanism.sensitivity + 1e-9
    assert mechanism.loss == mechanism.loss_at(mechanism.sensitivity)
    rounds = [newcomer in schedule.draw([newcomer], 1, schedule.seed, round) for round in range(NUM_ROUNDS)]
    assert (found > 0).tolist() == rounds
    assert 0 < sum(rounds) <= NUM_ROUNDS
    # Nothing but the newcomer's own counts has changed.
    for round in np.flatnonzero(rounds):
        own = cap(torch.from_numpy(heard(newcomer, int(round)).dense(SIZE)))
        torch.testing.assert_close(after[round] - before[round], own, rtol=0, atol=1e-8)


@pytest.mark.parametrize("schedule", [SCHEDULES["all"], Schedule(NUM_ROUNDS, share=0.5)])
@every_cap
def test_so_it_is_for_every_client_of_every_small_population(
    schedule: Schedule, cap: Cap, mechanism: Mechanism, order: Order, tmp_path: Path
) -> None:
    names = ("client1", "client2", "loner1", "client3")
    found = {
        chosen: pooled(chosen, schedule, cap, tmp_path / "-".join(chosen))
        for number in range(1, len(names) + 1)
        for chosen in itertools.combinations(names, number)
    }
    for chosen, counts in found.items():
        for left_out in chosen if len(chosen) > 1 else ():
            others = tuple(name for name in chosen if name != left_out)
            assert float(gaps(counts, found[others], order).max()) <= mechanism.sensitivity + 1e-9


@every_schedule
@every_cap
def test_a_household_of_three_moves_the_counts_three_times_as_far_at_most(
    schedule: Schedule, cap: Cap, mechanism: Mechanism, order: Order, tmp_path: Path
) -> None:
    """Group privacy: k clients that belong together have k times the ε of one (with Laplace noise)."""
    household = ["loner1", "loner2", "loner3"]
    before = pooled(POPULATION, schedule, cap, tmp_path / "before")
    after = pooled([*POPULATION, *household], schedule, cap, tmp_path / "after")
    largest = float(gaps(after, before, order).max())
    assert mechanism.sensitivity < largest <= 3 * mechanism.sensitivity + 1e-9
    if mechanism is CAPS["laplace"][1]:
        one, three = (
            Basic().epsilon([(mechanism.loss_at(k * mechanism.sensitivity), NUM_ROUNDS)], 0.0) for k in (1, 3)
        )
        assert three == pytest.approx(3 * one) == pytest.approx(3 * EPSILON)


@every_schedule
@pytest.mark.parametrize(
    ("cap", "largest"),
    [
        (Rounded(), utterance_sensitivity(30, WEIGHTS)),
        (CAPS["laplace"][0], 2 * CAPS["laplace"][0].limit),
        (CAPS["gaussian"][0], 2 * CAPS["gaussian"][0].limit),
    ],
    ids=["no cap", "laplace", "gaussian"],
)
def test_one_more_utterance_moves_the_counts_by_no_more_than_is_claimed(
    schedule: Schedule, cap: Cap, largest: float, tmp_path: Path
) -> None:
    words = np.concatenate([np.arange(100, 130) for _ in WEIGHTS])  # 30 words on every rank
    utterance = (words, np.repeat(WEIGHTS, 30))

    def said(client: str, round: int) -> Cache:
        usual = heard(client, round)
        return usual.plus(*utterance) if client == POPULATION[7] and round >= 2 else usual

    before = pooled(POPULATION[:20], schedule, cap, tmp_path / "before")
    after = pooled(POPULATION[:20], schedule, cap, tmp_path / "after", said)
    order = 2 if cap is CAPS["gaussian"][0] else 1
    found = gaps(after, before, order)
    assert float(found.max()) <= largest + 1e-9
    assert float(found[:2].max()) == 0 < float(found.max())


# --- What is refused ------------------------------------------------------------------------------


def private_engine(
    folder: Path,
    cohort: int,
    randomness: Randomness = Seeded(0),
    save_every: int = 1,
    group: TorchGroup | None = None,
) -> Engine:
    cap, mechanism, ledger = client_laplace(EPSILON, NUM_ROUNDS)
    worker = MarginalWorker({name: heard(name, 0) for name in POPULATION}, SIZE, cap)
    release = PrivateRelease(mechanism, ledger, BACKGROUND, randomness)
    rounds = Rounds(NUM_ROUNDS, cohort, min_clients=0, valid_every=0, save_every=save_every)
    return Engine(Fmp(release=release), LocalPool(worker), POPULATION, rounds, folder, seed=0, group=group)


@every_cap
def test_in_a_cohort_of_fixed_size_one_more_client_moves_the_counts_further_than_is_charged(
    cap: Cap, mechanism: Mechanism, order: Order
) -> None:
    """Why such cohorts are refused: who else is drawn depends on the number of clients."""
    largest = 0.0
    for round in range(NUM_ROUNDS):
        sums = []
        for clients in (POPULATION, [*POPULATION, "newcomer"]):
            drawn = sample_cohort(clients, 50, seed=0, round=round)
            sums.append(sum(cap(torch.from_numpy(heard(name, round).dense(SIZE))) for name in drawn))
        largest = max(largest, float(torch.linalg.vector_norm(sums[1] - sums[0], order)))
    assert largest > 1.4 * mechanism.sensitivity


def test_a_private_release_to_a_cohort_of_fixed_size_is_refused_before_any_round(tmp_path: Path) -> None:
    message = "a cohort of 50 of 123 clients is another one if there is one client more.*draw each by itself"
    with pytest.raises(ValueError, match=message):
        private_engine(tmp_path / "run", cohort=50)
    assert not (tmp_path / "run").exists()
    private_engine(tmp_path / "run", cohort=123)
    private_engine(tmp_path / "run", cohort=500)  # that is all of them, too


def test_noise_and_a_cohort_of_fixed_size_are_refused_before_any_file_is_read() -> None:
    with pytest.raises(ValueError, match="with noise, set share instead of cohort"):
        personalize("no such file", [], cohort=50, noise=NoiseSettings(("laplace=2",)))


@pytest.mark.parametrize("save_every", [2, 10])
def test_secure_noise_is_refused_where_a_round_could_be_published_twice(
    save_every: int, tmp_path: Path
) -> None:
    message = f"rounds.save_every is {save_every}: a round that is repeated .* with other noise"
    with pytest.raises(ValueError, match=message):
        private_engine(tmp_path / "run", 123, Secure(), save_every)
    assert not (tmp_path / "run").exists()
    private_engine(tmp_path / "run", 123, Seeded(0), save_every)  # repeats the same noise
    private_engine(tmp_path / "run", 123, Secure())


def test_secure_noise_is_refused_where_several_processes_would_each_draw_it(tmp_path: Path) -> None:
    def begin(group: TorchGroup) -> str:
        return type(private_engine(tmp_path / "run", 123, Secure(), group=group)).__name__

    with pytest.raises(ValueError, match="secure noise is drawn by one process"):
        side_by_side(begin)


def test_a_schedule_draws_by_number_or_by_share() -> None:
    with pytest.raises(ValueError, match=r"by their number \(cohort\) or each by itself \(share\)"):
        Schedule(cohort=5, share=0.5)
    with pytest.raises(ValueError, match=r"share must be between 0 and 1, not 1\.5"):
        Schedule(share=1.5)
    assert Schedule(share=1.0).draw(POPULATION, 0, 0, 3) == POPULATION


def test_shares_are_those_that_were_asked_for() -> None:
    schedule = Schedule(share=0.3)
    sizes = [len(schedule.draw(POPULATION, 0, 0, round)) for round in range(300)]
    assert np.mean(sizes) == pytest.approx(0.3 * 123, abs=4 * np.sqrt(0.21 * 123 / 300))
