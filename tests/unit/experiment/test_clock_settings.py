"""What an experiment refuses about its simulated clock, and whose time it simulates."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from world import FRONTEND, MODELS, World

from antiphon import config
from antiphon.algorithms.central import Central
from antiphon.algorithms.fedasync import FedAsync
from antiphon.algorithms.fedavg import FedAvg, fedavg
from antiphon.algorithms.fedbuff import FedBuff
from antiphon.algorithms.private import Private
from antiphon.algorithms.rehearsal import Rehearsed
from antiphon.clients.device_table import DeviceTable
from antiphon.clients.faults import Unreliability
from antiphon.clients.simulated_clock import Clock
from antiphon.clients.simulated_devices import LogNormal
from antiphon.core import Algorithm
from antiphon.data.partition import Iid
from antiphon.engine import Rounds
from antiphon.experiment.preparation import Prepared, prepare
from antiphon.experiment.settings import Experiment, Run, Speakers
from antiphon.server.weighting import Uniform
from antiphon.tasks.local_training import LocalTraining

SEED = Run(Central(LocalTraining(steps=1)), "seed", Iid(1), "", Rounds(total=1, cohort=1))


def experiment(run: Run, clock: Clock | None, **settings: Any) -> Experiment:
    return Experiment(
        "tiny",
        frontend=FRONTEND,
        model=MODELS["ctc"],  # type: ignore[arg-type]
        speakers=Speakers(seed_fraction=0.25),
        clock=clock,
        runs={"seed": SEED, "timed": run},
        **settings,
    )


def prepared(world: World, run: Run, clock: Clock | None) -> Prepared:
    ready = prepare(experiment(run, clock), world.corpus, "cpu")
    torch.use_deterministic_algorithms(False)  # preparing asks for them in the whole process
    return ready


@pytest.mark.parametrize("rounds", [Rounds(deadline=5.0), Rounds(over_selection=1.3)])
def test_late_clients_need_a_clock(rounds: Rounds) -> None:
    with pytest.raises(ValueError, match=r"run 'timed': .* depend on how fast clients are: set clock"):
        experiment(Run(rounds=rounds), None)
    experiment(Run(rounds=rounds), Clock())


@pytest.mark.parametrize("algorithm", [FedBuff(buffer=2), FedAsync(), Rehearsed(FedBuff(buffer=2))])
def test_asynchronous_algorithms_need_a_clock(algorithm: Algorithm[Any]) -> None:
    with pytest.raises(ValueError, match="without a clock, all clients answer at once"):
        experiment(Run(algorithm), None)
    experiment(Run(algorithm), Clock())


def test_there_is_one_kind_of_slow_clients() -> None:
    with pytest.raises(ValueError, match=r"set rounds\.deadline instead"):
        experiment(Run(), Clock(), unreliability=Unreliability(deadline=5.0))


def test_private_rounds_do_not_depend_on_who_is_first() -> None:
    private = Private(FedAvg(weighting=Uniform()))
    with pytest.raises(ValueError, match=r"private: with rounds\.over_selection"):
        Run(private, rounds=Rounds(min_clients=0, over_selection=1.3))
    Run(private, rounds=Rounds(min_clients=0, deadline=30.0))


def test_a_deadline_that_no_client_can_keep_is_refused(world: World) -> None:
    with pytest.raises(
        ValueError, match=r"no client can answer before rounds.deadline \(0.001 s\): the fast"
    ):
        prepared(world, Run(fedavg(), rounds=Rounds(cohort=2, deadline=0.001)), Clock())
    prepared(world, Run(fedavg(), rounds=Rounds(cohort=2, deadline=60.0)), Clock())


def test_a_table_has_every_client(world: World, tmp_path: Path) -> None:
    table = tmp_path / "devices.csv"
    table.write_text("client,slowness,down,up\nspeaker/s00,1,8,8\n")
    with pytest.raises(
        ValueError, match=r"run 'timed': clock: .*devices.csv has no row for client 'speaker/"
    ):
        prepared(world, Run(), Clock(DeviceTable(str(table))))


def test_time_is_that_of_clients_not_of_the_server(world: World) -> None:
    ready = prepared(world, Run(rounds=Rounds(cohort=2)), Clock(LogNormal(slowness=0.5, spread=0.0)))
    assert ready.clock("seed") is None
    assert prepared(world, Run(), None).clock("timed") is None
    clock = ready.clock("timed")
    assert clock is not None
    client = next(iter(ready.clients["timed"]))
    assert clock.audio(client) == ready.store.seconds[ready.clients["timed"][client]].sum()


def test_a_clock_is_written_and_read_again() -> None:
    one = experiment(Run(), Clock(LogNormal(spread=2.0), starts=8.0))
    assert config.from_dict(Experiment, config.to_dict(one)) == one
    tree = {"devices": {"pareto": {"tail": 1.0}}, "availability": "charging"}
    assert config.overlay(replace(one, clock=None), {"clock": tree}).clock is not None
    assert config.override(replace(one, clock=None), ["clock={}", "clock.devices=pareto"]).clock is not None
