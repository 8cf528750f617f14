"""Marginal personalisation with a private release, from the clients' caps to the engine's checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from antiphon.algorithms.fmp import MARGINAL, Fmp, FmpState, background_params
from antiphon.core import Stopped, Task, Update
from antiphon.engine import Engine, Rounds
from antiphon.personalisation.word_cache import Cache, MarginalWorker
from antiphon.pools.local import LocalPool
from antiphon.privacy.accounting import Budget, Renyi
from antiphon.privacy.ledger import Ledger
from antiphon.privacy.mechanisms import Cap, CapL1, CapL2, Gaussian, Laplace, gaussian_for
from antiphon.privacy.release import PrivateRelease
from antiphon.privacy.samplers import Randomness, Secure, Seeded

SIZE, LIMIT = 30, 8.0
BACKGROUND = torch.full((SIZE,), 1 / SIZE, dtype=torch.float64)
CLIENTS = [f"client{number:02d}" for number in range(12)]


def worker(cap: Cap, clients: list[str] = CLIENTS) -> MarginalWorker:
    """Clients who say Zipf's words, of rank weights that are no multiples of anything."""
    random, caches = np.random.default_rng(0), {}
    for name in clients:
        ids = np.minimum(random.zipf(1.5, 200) - 1, SIZE - 1)
        caches[name] = Cache().plus(ids, random.choice([1.0, 0.6065, 0.1353], 200))
    return MarginalWorker(caches, SIZE, cap)


def private(mechanism: Laplace | Gaussian, budget: Budget, randomness: Randomness = Seeded(3)) -> Fmp:
    ledger = Ledger(budget, Renyi()) if budget.delta else Ledger(budget)
    return Fmp(release=PrivateRelease(mechanism, ledger, BACKGROUND, randomness))


LAPLACE = private(Laplace(LIMIT, epsilon=0.5), Budget(2.0))  # four rounds
GAUSSIAN = private(gaussian_for(LIMIT, Budget(2.0, 1e-5), rounds=4), Budget(2.0, 1e-5))


def engine(algorithm: Fmp, cap: Cap, folder: Path, total: int) -> Engine:
    return Engine(algorithm, LocalPool(worker(cap)), CLIENTS, Rounds(total, cohort=12), folder, seed=0)


@pytest.mark.parametrize(
    ("algorithm", "cap"), [(LAPLACE, CapL1(LIMIT)), (GAUSSIAN, CapL2(LIMIT))], ids=["laplace", "gaussian"]
)
def test_a_run_spends_its_budget_stops_there_and_resumes_exactly(
    algorithm: Fmp, cap: Cap, tmp_path: Path
) -> None:
    params = background_params(BACKGROUND)
    straight = engine(algorithm, cap, tmp_path / "straight", total=4).run(params).state
    engine(algorithm, cap, tmp_path / "parts", total=2).run(params)
    resumed = engine(algorithm, cap, tmp_path / "parts", total=4).run(params, resume=True).state
    assert isinstance(straight, FmpState)
    assert isinstance(resumed, FmpState)
    assert torch.equal(straight.params[MARGINAL], resumed.params[MARGINAL])
    assert straight.released["spent"] == resumed.released["spent"]
    assert torch.equal(straight.released["noised"], resumed.released["noised"])
    for _ in range(2):  # and again, from the checkpoint
        with pytest.raises(Stopped, match=r"4 releases, epsilon 2 of 2 spent"):
            engine(algorithm, cap, tmp_path / "parts", total=9).run(params, resume=True)


def test_noised_counts_are_within_reach_of_the_capped_ones_and_make_a_distribution() -> None:
    cap = CapL1(LIMIT)
    algorithm = private(Laplace(LIMIT, epsilon=0.5), Budget(2.0), Secure())
    state, metrics = algorithm.round(
        algorithm.init(background_params(BACKGROUND)), CLIENTS, LocalPool(worker(cap))
    )
    caches = worker(cap).caches
    exact = sum(cap(torch.from_numpy(caches[name].dense(SIZE))) for name in CLIENTS)
    assert float((state.released["noised"] - exact).abs().max()) < 16 * 40  # e^-40 of failing
    assert metrics["epsilon"] == pytest.approx(0.5)
    assert float(state.params[MARGINAL].sum()) == pytest.approx(1)
    assert bool((state.params[MARGINAL] >= 0).all())


@pytest.mark.parametrize("differences", [False, True])
def test_whatever_a_client_says_pooled_counts_move_by_no_more_than_its_cap(differences: bool) -> None:
    """The same noise in both worlds, so what is left of their difference is the client."""
    cap = CapL1(LIMIT)
    algorithm = Fmp(differences=differences, release=LAPLACE.release)
    seen = [
        algorithm.round(algorithm.init(background_params(BACKGROUND)), clients, LocalPool(worker(cap)))[0]
        for clients in (CLIENTS, CLIENTS[:-1])
    ]
    gap = seen[0].released["noised"] - seen[1].released["noised"]
    assert 0.5 * LIMIT < float(gap.abs().sum()) <= LIMIT


def test_counts_of_clients_without_a_cap_are_refused() -> None:
    uncapped = MarginalWorker(worker(CapL1(LIMIT)).caches, SIZE)
    with pytest.raises(ValueError, match="clients must cap or round their counts"):
        LAPLACE.round(LAPLACE.init(background_params(BACKGROUND)), CLIENTS, LocalPool(uncapped))


def test_a_client_with_another_vocabulary_is_left_out_and_decides_nothing_about_the_others() -> None:
    class Foreign(MarginalWorker):
        def run(self, task: Task, clients: Sequence[str]) -> Iterator[Update]:
            for client, update in zip(clients, super().run(task, clients), strict=True):
                short = {name: tensor[:-1] for name, tensor in update.mean.items()}
                yield replace(update, mean=short) if client == CLIENTS[0] else update

    caps, start = worker(CapL1(LIMIT)), LAPLACE.init(background_params(BACKGROUND))
    pool = LocalPool(Foreign(caps.caches, SIZE, caps.cap))
    seen, metrics = LAPLACE.round(start, CLIENTS, pool)
    without, _ = LAPLACE.round(start, CLIENTS[1:], LocalPool(caps))
    assert metrics["num_clients"] == len(CLIENTS) - 1
    assert torch.equal(seen.released["noised"], without.released["noised"])


def test_a_round_without_a_word_is_noised_and_paid_for_as_well() -> None:
    silent = MarginalWorker(dict.fromkeys(CLIENTS, Cache()), SIZE, CapL1(LIMIT))
    state, metrics = LAPLACE.round(LAPLACE.init(background_params(BACKGROUND)), CLIENTS, LocalPool(silent))
    assert float(state.released["noised"].abs().sum()) > 0
    assert metrics["epsilon"] == pytest.approx(0.5)


def test_decay_and_a_release_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="one of decay and release"):
        Fmp(decay=0.5, release=LAPLACE.release)
