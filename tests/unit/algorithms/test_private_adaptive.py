"""Adaptive clipping: the count is part of the release, the bound finds its quantile, resuming is exact."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from antiphon import config
from antiphon.algorithms.fedavg import FedAvg
from antiphon.algorithms.private import Private
from antiphon.core import Report, Task, Update
from antiphon.engine import Engine, Rounds
from antiphon.experiment.settings import Run
from antiphon.pools.local import LocalPool
from antiphon.privacy.correlated_noise import NoiseRows
from antiphon.privacy.noise_key import derived_key, simulated_key
from antiphon.privacy.participation import PoissonSampling, RoundRobin
from antiphon.records.journal import read
from antiphon.secure_aggregation.rules import SecureAggregation
from antiphon.seeding import derive
from antiphon.server.weighting import Uniform
from antiphon.tasks.round_release import RoundRelease
from antiphon.tasks.update_clipping import AdaptiveUpdate, Clipped

SEED = 5
CLIENTS = [f"speaker/{number:03d}" for number in range(200)]
PARAMS = {"w": torch.zeros(6, 3), "b": torch.zeros(4)}
INNER = FedAvg(weighting=Uniform())
PRIVATE = Private(
    INNER,
    epsilon=8.0,
    clipping=AdaptiveUpdate(1.0),
    cohorts=RoundRobin(4),
    cohort=50.0,
    rounds=40,
    simulated=True,
)


@dataclass
class Clients:
    """Client k always sends an update of length k / 100, so that half of them are below 1."""

    scale: float = 1.0

    def run(self, task: Task, clients: Sequence[str]) -> Iterator[Update]:
        for client in clients:
            generator = torch.Generator().manual_seed(derive(0, client))
            flat = torch.randn(22, generator=generator)
            flat *= self.scale * int(client[-3:]) / 100 / flat.norm()
            mean = {"w": flat[:18].view(6, 3), "b": flat[18:]}
            yield Update(mean, reports=(Report(client, {"loss": 1.0, "num_utterances": 1.0}),))


def run(folder: Path, private: Private, rounds: int = 40, resume: bool = False, scale: float = 1.0) -> Any:
    settings = Rounds(rounds, 50, min_clients=0, valid_every=0)
    engine = Engine(private, LocalPool(Clients(scale)), CLIENTS, settings, folder, SEED)
    return engine.run(PARAMS, resume).state


def noise_row(private: Private, round: int) -> np.ndarray:
    rows = NoiseRows(derived_key(simulated_key(SEED), "noise"), private.plan.coefficients, 23, None)
    return rows.row(round)


def test_updates_and_counts_together_have_the_noise_of_the_plan() -> None:
    """z_Δ = (z⁻² − (2 σ_b)⁻²)^(−½): one client moves both by at most 1 / z deviations in all."""
    for deviation, cohort, given in ((1.3, 50.0, 0.0), (0.7, 400.0, 0.0), (2.0, 10.0, 1.5)):
        count = AdaptiveUpdate(count_deviation=given).deviation_of_count(deviation, cohort)
        updates = (deviation**-2 - (2 * count) ** -2) ** -0.5
        private = replace(PRIVATE, noise_multiplier=1.0)
        plan = replace(private.plan, multiplier=deviation / private.plan.deviation)
        release = RoundRelease(plan, 0.4, cohort, 0, bytes(32), "", True, 0.4, count)
        assert plan.deviation == pytest.approx(deviation)
        assert release.relative_deviation == pytest.approx(updates, rel=1e-12)
        assert math.hypot(1 / updates, 0.5 / count) == pytest.approx(1 / deviation, rel=1e-12)


def test_a_round_releases_updates_and_count_with_the_noise_that_is_accounted() -> None:
    """By hand: the first round, its mean, and the bound of the second."""
    state = PRIVATE.init(PARAMS).with_seed(SEED)
    cohort = PRIVATE.draw(CLIENTS, 50, SEED, 0)
    after, metrics = PRIVATE.round(state, cohort, LocalPool(Clients()))
    row = noise_row(PRIVATE, 0)
    count = max(50 / 20, PRIVATE.plan.deviation)
    updates = (PRIVATE.plan.deviation**-2 - (2 * count) ** -2) ** -0.5
    total = np.zeros(22)
    for update in Clients().run(Task("train", PARAMS), cohort):
        flat = torch.cat([tensor.flatten() for tensor in update.mean.values()]).double().numpy()
        total += flat * min(1.0, 1 / max(1e-9, float(np.linalg.norm(flat))))
    moved = -torch.cat([tensor.flatten() for tensor in after.params.values()]).double().numpy()
    assert moved == pytest.approx((total + updates * row[:22]) / 50, abs=1e-5)
    within = sum(int(client[-3:]) < 100 for client in cohort)
    share = 0.5 + (within - len(cohort) / 2 + count * row[22]) / 50
    assert after.bound == pytest.approx(math.exp(-0.2 * (min(1.0, max(0.0, share)) - 0.5)), rel=1e-9)
    assert metrics["clipping_bound"] == 1.0


@pytest.mark.parametrize(("quantile", "scale"), [(0.5, 1.0), (0.5, 5.0), (0.8, 0.3)])
def test_the_bound_finds_the_quantile_of_the_norms(quantile: float, scale: float, tmp_path: Path) -> None:
    clipping = AdaptiveUpdate(1.0, quantile)
    run(tmp_path, replace(PRIVATE, epsilon=30.0, clipping=clipping), scale=scale)
    bounds = [entry["metrics"]["clipping_bound"] for entry in read(tmp_path / "journal.jsonl")]
    assert float(np.mean(bounds[-10:])) == pytest.approx(2 * quantile * scale, rel=0.25)


@pytest.mark.parametrize("cohorts", [RoundRobin(4), PoissonSampling(0.25)], ids=["banded", "sampled"])
@pytest.mark.parametrize("simulated", [True, False])
def test_a_run_that_is_stopped_resumes_to_the_same_bits(
    cohorts: Any, simulated: bool, tmp_path: Path
) -> None:
    private = replace(PRIVATE, cohorts=cohorts, rounds=8, simulated=simulated)
    whole = run(tmp_path / "whole", private, rounds=8)
    for stop in (1, 5):
        folder = tmp_path / f"stop{stop}"
        folder.mkdir()
        if not simulated:
            (folder / "noise.key").write_bytes((tmp_path / "whole" / "noise.key").read_bytes())
            (folder / "noise.key").chmod(0o600)
        run(folder, private, rounds=stop)
        again = run(folder, private, rounds=8, resume=True)
        assert again.bound == whole.bound
        assert all(torch.equal(p, whole.params[name]) for name, p in again.params.items())
        assert (folder / "journal.jsonl").read_bytes() == (tmp_path / "whole" / "journal.jsonl").read_bytes()


def test_one_client_changes_a_round_by_no_more_than_is_accounted() -> None:
    """Over the deviations of their noise, updates and count move by at most 1 / z together."""
    state = PRIVATE.init(PARAMS).with_seed(SEED)
    cohort = PRIVATE.draw(CLIENTS, 50, SEED, 0)
    count = max(50 / 20, PRIVATE.plan.deviation)
    full, _ = PRIVATE.round(state, cohort, LocalPool(Clients(50.0)))
    updates = (PRIVATE.plan.deviation**-2 - (2 * count) ** -2) ** -0.5
    for left_out in (cohort[1], cohort[-1]):
        less = [client for client in cohort if client != left_out]
        part, _ = PRIVATE.round(state, less, LocalPool(Clients(50.0)))
        change = torch.cat([(full.params[n] - part.params[n]).flatten() for n in PARAMS]).double()
        share = -math.log(full.bound / part.bound) / 0.2
        moved = math.hypot(50 * float(change.norm()) / updates, 50 * share / count)
        assert 0 < moved <= 1 / PRIVATE.plan.deviation + 1e-4


def test_the_server_finds_who_was_within_the_bound_whatever_clients_report() -> None:
    clipping = AdaptiveUpdate(0.7)
    view = Clipped(clipping)
    for length, within in ((0.3, 1.0), (0.6999, 1.0), (0.8, 0.0), (50.0, 0.0)):
        update = Update({"w": torch.tensor([length])}, reports=(Report("a", {"within_bound": 0.5}),))
        sent = replace(update, mean=clipping(update.mean))
        for arriving in (update, sent):  # a client that does not clip, and one that does
            assert view.arrive(arriving).reports[0].stats["within_bound"] == within


def test_settings_are_read_and_written_and_impossible_ones_refused() -> None:
    tree = config.to_dict(PRIVATE)
    assert json.loads(json.dumps(tree))["clipping"]["adaptive_update"]["quantile"] == 0.5
    assert config.from_dict(Private, tree) == PRIVATE
    with pytest.raises(ValueError, match="a quantile between 0 and 1"):
        AdaptiveUpdate(quantile=1.5)
    with pytest.raises(ValueError, match="spends the whole privacy budget on the count"):
        AdaptiveUpdate(count_deviation=0.3).deviation_of_count(0.7, 10.0)
    secure = SecureAggregation(bound=0.5)
    with pytest.raises(ValueError, match="the server sees none of them"):
        Run(replace(PRIVATE, trusts_clients=True), rounds=Rounds(min_clients=0), secure_aggregation=secure)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_release_leaves_the_update_that_it_is_given_as_it_was(dtype: torch.dtype) -> None:
    plan = replace(PRIVATE, noise_multiplier=1.0).plan
    release = RoundRelease(plan, 0.4, 5.0, 0, bytes(32), "", True, 0.4)
    given = {"w": torch.linspace(-1, 1, 6, dtype=dtype).view(2, 3)}
    update = Update({name: tensor.clone() for name, tensor in given.items()}, log_weight=math.log(3.0))
    first, second = (release.mean(update, given, largest_weight=1.0)["w"] for _ in range(2))
    assert torch.equal(update.mean["w"], given["w"])
    assert torch.equal(first, second)
    row = NoiseRows(derived_key(bytes(32), "noise"), plan.coefficients, 6, None).row(0)
    expected = release.deviation * torch.from_numpy(row).view(2, 3) + 3 * given["w"].double() / 5.0
    assert torch.allclose(first.double(), expected, rtol=1e-6 if dtype == torch.float32 else 1e-12)
