"""`antiphon audit`: canaries in real runs stay below the claim, and planted faults are found."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from typer.testing import CliRunner

import antiphon
from antiphon.algorithms.fedavg import FedAvg
from antiphon.algorithms.private import Private
from antiphon.cli.privacy_commands import audit_command
from antiphon.core import Report, Task, Update
from antiphon.engine import Engine, Rounds
from antiphon.pools.local import LocalPool
from antiphon.privacy import update_accounting
from antiphon.privacy.canary_scores import measure_shift, read_rounds
from antiphon.privacy.participation import PoissonSampling, RoundRobin
from antiphon.seeding import derive
from antiphon.server.optimizers import Adam
from antiphon.server.weighting import Uniform
from antiphon.tasks import update_clipping
from antiphon.tasks.update_clipping import EachLayer, WholeUpdate

CLIENTS = [f"speaker/{number:02d}" for number in range(12)]
PARAMS = {"w": torch.zeros(120, 100), "b": torch.zeros(6000)}
INNER = FedAvg(weighting=Uniform(), server=Adam())
SIX = Private(INNER, epsilon=6.0, cohorts=RoundRobin(3), cohort=4.0, simulated=True, canaries=1000)
Plant = Callable[[pytest.MonkeyPatch], None]


class Clients:
    """Clients with updates of their own, longer than the bound."""

    def run(self, task: Task, clients: Sequence[str]) -> Iterator[Update]:
        for client in clients:
            generator = torch.Generator().manual_seed(derive(task.moment[0], client))
            mean = {n: 0.01 * torch.randn(p.shape, generator=generator) for n, p in task.tensors.items()}
            yield Update(mean, reports=(Report(client, {"loss": 1.0, "num_utterances": 1.0}),))


def run(folder: Path, private: Private, rounds: int = 6, resume: bool = False) -> Any:
    settings = Rounds(rounds, 4, min_clients=0, valid_every=0)
    engine = Engine(private, LocalPool(Clients()), CLIENTS, settings, folder, seed=1)
    return engine.run(PARAMS, resume).state


RUNS = {
    "banded": SIX,
    "independent": replace(SIX, bands=1),
    "layers": replace(SIX, clipping=EachLayer(0.3)),
    "sampled": replace(SIX, cohorts=PoissonSampling(0.3)),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_that_keeps_its_claim_is_not_refuted(name: str, tmp_path: Path) -> None:
    run(tmp_path, RUNS[name])
    found = antiphon.audit(tmp_path)
    assert found.claimed == pytest.approx(6.0, rel=1e-3)
    assert not found.is_refuted
    assert found.at_least > 0.1
    assert 0.65 * found.claimed < found.cosine.low < found.cosine.estimate < found.cosine.high


def halve_noise(patch: pytest.MonkeyPatch) -> None:
    """The accountant does not know: it counts with the noise that was planned."""
    banded, sampled = update_accounting.BandedPlan, update_accounting.SampledPlan
    deviation, cost = banded.deviation.fget, banded.cost  # type: ignore[attr-defined]
    patch.setattr(banded, "deviation", property(lambda one: deviation(one) / 2))
    patch.setattr(banded, "cost", lambda one, n: update_accounting.GaussianCost(cost(one, n).shift / 2))
    patch.setattr(sampled, "deviation", property(lambda one: one.multiplier / 2))


def clip_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(update_clipping._Clipping, "__call__", lambda clipping, update, room=0.0: update)


def take_part_always(patch: pytest.MonkeyPatch) -> None:
    for cohorts in (RoundRobin, PoissonSampling):
        patch.setattr(cohorts, "takes_part", lambda turns, client, round, seed, key: True)


@pytest.mark.parametrize("plant", [halve_noise, clip_nothing, take_part_always])
@pytest.mark.parametrize("name", RUNS)
def test_a_fault_that_is_planted_is_found(
    plant: Plant, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plant(monkeypatch)
    run(tmp_path, RUNS[name])
    found = antiphon.audit(tmp_path)
    assert found.claimed == pytest.approx(6.0, rel=1e-3)
    assert found.is_refuted


def test_one_turn_too_many_is_missed_by_one_run_and_found_by_cosines(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Three turns where two are planned: the bound from one run does not see so little."""
    planned = RoundRobin.takes_part

    def more(turns: RoundRobin, client: str, round: int, seed: int, key: bytes) -> bool:
        return any(
            planned(turns, client, at, seed, key) for at in (round, round - 2 if round == 4 else round)
        )

    monkeypatch.setattr(RoundRobin, "takes_part", more)
    run(tmp_path, SIX)
    found = antiphon.audit(tmp_path)
    assert found.at_least < found.claimed
    assert found.cosine.low > found.claimed


def test_half_of_the_canaries_leave_the_guarantee_and_the_noise_as_they_are(tmp_path: Path) -> None:
    """What canaries add to a round is their clipped sum over the cohort, and nothing else."""
    few = replace(SIX, clipping=WholeUpdate(0.5), canaries=10, inner=FedAvg(weighting=Uniform()))
    plain = run(tmp_path / "plain", replace(few, canaries=0), rounds=1)
    canaries = run(tmp_path / "canaries", few, rounds=1)
    (found,) = read_rounds(tmp_path / "canaries")
    there = sum(a and b for a, b in zip(found.included, found.turns, strict=True))
    moved = [(plain.params[name] - p).double().flatten() for name, p in canaries.params.items()]
    assert there > 0
    assert float(torch.cat(moved).norm()) == pytest.approx(np.sqrt(there) * 0.5 / 4.0, rel=1e-3)


def test_a_run_that_is_resumed_has_the_same_canaries(tmp_path: Path) -> None:
    private = replace(SIX, rounds=6)
    run(tmp_path / "whole", private)
    run(tmp_path / "parts", private, rounds=2)
    run(tmp_path / "parts", private, resume=True)
    assert read_rounds(tmp_path / "parts") == read_rounds(tmp_path / "whole")


def test_the_shift_of_a_known_gaussian_mechanism_is_within_its_limits() -> None:
    """In 200 audits of a true shift of 1.5, the limits at 97.5 % miss it 2.5 % of the time on each side."""
    generator, below, above = np.random.default_rng(0), 0, 0
    for _ in range(200):
        included = generator.random(400) < 0.5
        turns = np.ones((1, 400), dtype=bool)
        seen = included + generator.standard_normal((1, 400)) / 1.5
        shift = measure_shift(seen, turns, included, (1.0,), 0.975)
        below, above = below + (shift.high < 1.5), above + (shift.low > 1.5)
    assert below <= 12
    assert above <= 12


def test_the_command_prints_claim_and_findings_and_fails_when_refuted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    app = typer.Typer()
    app.command()(audit_command)
    run(tmp_path / "right", SIX)
    done = CliRunner().invoke(app, [str(tmp_path / "right")], catch_exceptions=False)
    assert done.exit_code == 0
    assert "1000 canaries, 6 rounds, delta 1e-06" in done.output
    assert "not refuted" in done.output
    halve_noise(monkeypatch)
    run(tmp_path / "wrong", SIX)
    done = CliRunner().invoke(app, [str(tmp_path / "wrong")], catch_exceptions=False)
    assert done.exit_code == 1
    assert "REFUTED" in done.output


def test_runs_without_canaries_and_models_that_are_too_small_are_refused(tmp_path: Path) -> None:
    run(tmp_path / "none", replace(SIX, canaries=0))
    with pytest.raises(ValueError, match="has no canaries to look for"):
        antiphon.audit(tmp_path / "none")
    with pytest.raises(ValueError, match="99999 canaries need a model of as many parameters"):
        run(tmp_path / "many", replace(SIX, canaries=99_999))
