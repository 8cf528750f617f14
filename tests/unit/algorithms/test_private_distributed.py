"""Private updates whose noise clients add in shares: releases, runs, resuming, budgets and refusals."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from antiphon import config
from antiphon.algorithms.fedavg import FedAvg, hierarchical
from antiphon.algorithms.private import Private
from antiphon.core import Failure, Report, Task, Tensors, Update
from antiphon.engine import Engine, Outcome, Rounds
from antiphon.experiment.canary_audit import audit_updates
from antiphon.experiment.settings import Run
from antiphon.pools.local import LocalPool
from antiphon.privacy.accounting import epsilon_of_rho
from antiphon.privacy.announced_noise import AnnouncedNoise
from antiphon.privacy.canary_scores import read_rounds
from antiphon.privacy.distributed_noise import Distributed, choose_steps, scale_of_share
from antiphon.privacy.participation import PoissonSampling, RoundRobin
from antiphon.privacy.samplers import Seeded, discrete_gaussian
from antiphon.privacy.update_accounting import epsilon_of
from antiphon.records.journal import read
from antiphon.report.privacy_statement import privacy_statement
from antiphon.report.run_folder import RunFolder
from antiphon.report.server_view import server_view
from antiphon.secure_aggregation.rules import SecureAggregation
from antiphon.secure_aggregation.secure_pool import SecurePool, in_process
from antiphon.seeding import derive
from antiphon.server.optimizers import Adam
from antiphon.server.weighting import ByExamples, Uniform
from antiphon.tasks.noised_update import NoisedByClient
from antiphon.tasks.update_clipping import AdaptiveUpdate, WholeUpdate
from antiphon.tasks.views import through, views_of
from antiphon.workflows.audit_run import audit

CLIENTS = [f"speaker/{number:02d}" for number in range(24)]
PARAMS = {"w": torch.ones(6, 3), "b": torch.zeros(4)}
SIZE, SEED = 22, 5
SECURE = SecureAggregation()
STEADY = Private(
    FedAvg(weighting=Uniform()),
    clipping=WholeUpdate(0.4),
    cohorts=RoundRobin(1),
    noise=Distributed(colluding=1),
    cohort=8.0,
    rounds=6,
    simulated=True,
    trusts_clients=True,
)
APART = replace(STEADY, inner=hierarchical(server=Adam()), cohorts=RoundRobin(4), rounds=8, cohort=6.0)


@dataclass
class Clients:
    """Clients whose answers follow from their names and the round; some do not answer."""

    away: Sequence[str] = ()
    sizes: Mapping[str, float] = field(default_factory=dict)  # client -> times its update
    tasks: list[Task] = field(default_factory=list)

    def run(self, task: Task, clients: Sequence[str]) -> Iterator[Update]:
        for client in clients:
            self.tasks.append(task)
            stats = {"loss": 1.0, "num_utterances": 3.0, "norm": 1.0, "seconds": 1.0}
            if client in self.away:
                yield Update.nothing(Failure(client, "away"))
            else:
                yield Update(self.answer(task.moment[0], client), reports=(Report(client, stats),))

    def answer(self, round: int, client: str) -> Tensors:
        generator = torch.Generator().manual_seed(derive(round, client))
        times = self.sizes.get(client, 1.0)
        return {name: times * torch.randn(p.shape, generator=generator) for name, p in PARAMS.items()}


def pool_of(clients: Clients) -> SecurePool:
    return SecurePool(in_process(clients, SECURE.max_share, SEED), LocalPool(clients), SECURE, "run")


def released(algorithm: Private, clients: Clients, cohort: Sequence[str]) -> np.ndarray:
    """What the first round subtracts from the model, in the order of names."""
    state = algorithm.init(PARAMS).with_seed(SEED)
    after, _ = algorithm.round(state, cohort, pool_of(clients))
    moved = [(PARAMS[name] - after.params[name]).double().numpy().ravel() for name in sorted(PARAMS)]
    return np.concatenate(moved)


def noise_of(client: str, scale: int, round: int = 0) -> np.ndarray:
    words = Seeded(derive(SEED, "noise of a client", client)).words(round)
    return discrete_gaussian(words, scale, SIZE)


# --- What a round releases ------------------------------------------------------------------------


def test_a_round_releases_updates_on_the_grid_and_the_shares_of_all_over_the_planned_cohort() -> None:
    """Seven clients: sums of five are opened, and four shares carry the noise."""
    cohort, plan = CLIENTS[:7], STEADY.plan
    steps = choose_steps(SIZE, 7, plan.deviation, 1)
    view = NoisedByClient(STEADY.clipping, steps, plan.deviation, 1)
    scale = scale_of_share(plan.deviation, steps, 4)
    for away in ((), cohort[:2]):
        total = np.zeros(SIZE, dtype=np.int64)
        for client in cohort:
            if client not in away:
                total += view.on_grid(Clients().answer(0, client)) + noise_of(client, scale)
        moved = released(STEADY, Clients(away=away), cohort)
        assert np.allclose(moved, total * view.step / 8.0, atol=2e-6)


def test_a_round_with_too_few_answers_and_one_without_clients_move_nothing() -> None:
    for cohort, away in ((CLIENTS[:7], CLIENTS[:3]), (CLIENTS[:2], ()), ([], ())):
        assert not released(STEADY, Clients(away=away), cohort).any()


def test_a_client_that_sends_anything_moves_the_sum_by_its_bound() -> None:
    """Against an update of zeros, as neighbours differ: C / cohort, and noise is the same."""
    cohort = CLIENTS[:5]
    still, loud, other = (released(STEADY, Clients(sizes={cohort[0]: x}), cohort) for x in (0, 1e6, -3))
    assert np.linalg.norm(loud - still) == pytest.approx(0.4 / 8, rel=1e-3)
    assert np.linalg.norm(loud - still) <= 0.4 / 8 + 2e-6
    assert np.linalg.norm(loud - other) <= 2 * 0.4 / 8 + 2e-6


def test_clients_are_asked_to_work_without_a_hint_of_the_noise() -> None:
    clients = Clients()
    released(STEADY, clients, CLIENTS[:4])
    assert len(clients.tasks) == 4
    assert all(views_of(task) == [] for task in clients.tasks)


# --- A run ----------------------------------------------------------------------------------------


def run(folder: Path, algorithm: Private, clients: Clients | None = None, resume: bool = False) -> Outcome:
    settings = Rounds(algorithm.rounds, 6, min_clients=0, valid_every=0)
    pool = pool_of(clients or Clients())
    return Engine(algorithm, pool, CLIENTS, settings, folder, SEED).run(PARAMS, resume)


def test_the_journal_has_epsilon_after_every_round(tmp_path: Path) -> None:
    run(tmp_path, APART)
    spent = [entry["metrics"]["epsilon"] for entry in read(tmp_path / "journal.jsonl")]
    turns = [1 + round // 4 for round in range(8)]
    rho = APART.plan.cost(4).rho
    assert spent == [epsilon_of_rho(rho * number, 1e-6) for number in turns]
    assert spent[-1] == pytest.approx(8.0, rel=1e-6)
    assert spent[-1] <= 8.0


def test_a_run_that_is_stopped_after_any_round_resumes_to_the_same_bits(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", APART).state
    for stop in (1, 5):
        folder = tmp_path / f"stop{stop}"
        settings = Rounds(stop, 6, min_clients=0, valid_every=0)
        Engine(APART, pool_of(Clients()), CLIENTS, settings, folder, SEED).run(PARAMS)
        again = run(folder, APART, resume=True).state
        assert all(torch.equal(p, whole.params[name]) for name, p in again.params.items())
        assert (folder / "journal.jsonl").read_bytes() == (tmp_path / "whole" / "journal.jsonl").read_bytes()


def test_a_run_does_not_resume_with_other_clients_that_may_collude(tmp_path: Path) -> None:
    settings = Rounds(2, 6, min_clients=0, valid_every=0)
    Engine(APART, pool_of(Clients()), CLIENTS, settings, tmp_path, SEED).run(PARAMS)
    with pytest.raises(ValueError, match="other settings of its noise"):
        run(tmp_path, replace(APART, noise=Distributed(2)), resume=True)


def test_a_run_goes_on_when_a_round_releases_nothing(tmp_path: Path) -> None:
    first = APART.draw(CLIENTS, 6, SEED, 0)
    after = run(tmp_path, APART, Clients(away=first)).state
    assert after.released == 8


def test_a_run_with_canaries_is_audited_and_keeps_its_claim(tmp_path: Path) -> None:
    """A round that stayed closed is no turn of a canary."""
    algorithm = replace(APART, canaries=20)
    run(tmp_path, algorithm, Clients(away=APART.draw(CLIENTS, 6, SEED, 0)))
    rounds = read_rounds(tmp_path)
    assert not any(rounds[0].turns)
    assert not any(rounds[0].seen)
    assert any(rounds[1].turns)
    assert rounds[1].deviation == algorithm.plan.deviation
    found = audit(tmp_path)
    assert found.claimed == pytest.approx(8.0, rel=1e-6)
    assert not found.is_refuted


def test_an_audit_of_settings_is_refused_because_clients_have_the_noise() -> None:
    with pytest.raises(ValueError, match=r"audit it, with private\.canaries"):
        audit_updates(STEADY)


def test_the_report_says_who_added_the_noise_and_whom_it_protects_from(tmp_path: Path) -> None:
    written = {"algorithm": {"private": config.to_dict(APART)}, "secure_aggregation": {"bound": 1.0}}
    entries = [{"round": 1, "metrics": {"epsilon": 2.0}, "clients": {}}]
    folder = RunFolder(tmp_path, "run", {"config": written}, entries, [], {})
    stated = privacy_statement(folder)
    for words in (
        "(ε = 2, δ = 1e-06)",
        "against the server, too",
        "report to the server",
        "1 at most tell others",
        "simulation",
    ):
        assert words in stated
    assert "floating-point" not in stated
    assert "with the noise that clients added" in server_view(folder)[-1]


# --- What sites are told --------------------------------------------------------------------------


def test_the_loss_from_the_announcement_is_that_of_the_run() -> None:
    written = json.dumps(config.to_dict(APART.announced(8)))
    announced = config.from_dict(AnnouncedNoise, json.loads(written))
    assert announced.noise == Distributed(1)
    assert epsilon_of((announced.cost,), 1e-6) == pytest.approx(epsilon_of((APART.plan.cost(8),), 1e-6))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, ""),
        ({"multiplier": 99.0, "colluding": 2}, ""),
        ({"multiplier": 0.1}, "smaller share"),
        ({"colluding": 0}, "smaller share"),
    ],
)
def test_a_site_sees_whether_it_is_asked_for_its_whole_share(change: Mapping[str, Any], reason: str) -> None:
    announced = APART.announced(8)
    view = replace(NoisedByClient(WholeUpdate(0.4), 2**12, announced.deviation, 1), **change)
    task = through(Task("train", {}, {}), view)
    found = announced.why_unprotected(json.loads(str(task.config["views"])))
    assert reason in found
    assert bool(found) == bool(reason)
    assert "does not clip the update" in announced.why_unprotected([])
    assert "does not ask for it" in announced.why_unprotected([("clipped", {})])


# --- Refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "secure", "reason"),
    [
        (STEADY, None, "set secure_aggregation="),
        (replace(STEADY, trusts_clients=False), SECURE, "trusts_clients=true"),
        (replace(STEADY, noise=Distributed(3)), SECURE, "nobody is left whose noise counts"),
        (replace(STEADY, clipping=AdaptiveUpdate()), SECURE, "adaptive_update counts"),
    ],
)
def test_runs_whose_noise_would_not_count_are_refused(algorithm: Private, secure: Any, reason: str) -> None:
    rounds = Rounds(cohort=4, min_clients=0)
    Run(STEADY, rounds=rounds, secure_aggregation=SECURE)
    with pytest.raises(ValueError, match=reason):
        Run(algorithm, rounds=rounds, secure_aggregation=secure)


def test_weights_secret_samples_and_bands_are_refused() -> None:
    with pytest.raises(ValueError, match="before they are weighed: set weighting=uniform"):
        replace(STEADY, inner=FedAvg(weighting=ByExamples(max_utterances=5)))
    for change in ({"cohorts": PoissonSampling(0.3)}, {"bands": 2}):
        with pytest.raises(ValueError, match="independent from round to round"):
            _ = replace(STEADY, **change).plan  # type: ignore[arg-type]


def test_sites_draw_their_own_noise_and_simulations_from_the_seed() -> None:
    STEADY.check_place(is_away=False)
    replace(STEADY, simulated=False).check_place(is_away=True)
    with pytest.raises(ValueError, match="sites draw distributed noise themselves"):
        STEADY.check_place(is_away=True)
    with pytest.raises(ValueError, match="clients in one place"):
        replace(STEADY, simulated=False).check_place(is_away=False)
    Private(FedAvg(weighting=Uniform())).check_place(is_away=True)


def test_updates_with_too_many_entries_for_the_noise_are_refused_before_any_work() -> None:
    clients, flat = Clients(), replace(STEADY, noise_multiplier=1e7)
    with pytest.raises(ValueError, match="does not fit 32 bits"):
        released(flat, clients, CLIENTS[:4])
    assert clients.tasks == []
    assert math.isfinite(flat.plan.deviation)
