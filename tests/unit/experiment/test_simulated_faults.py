"""Whom the simulated faults of an experiment concern."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from world import FRONTEND, MODELS, World

from antiphon.algorithms.central import Central
from antiphon.algorithms.fedavg import fedavg
from antiphon.clients.faults import Unreliability
from antiphon.core import Task
from antiphon.data.partition import Iid
from antiphon.engine import Rounds
from antiphon.experiment.preparation import Prepared, prepare
from antiphon.experiment.settings import Experiment, Run, Speakers
from antiphon.tasks.local_training import LocalTraining

RUNS = {
    "seed": Run(Central(LocalTraining(steps=1)), "seed", Iid(1), "", Rounds(total=1, cohort=1)),
    "fedavg": Run(fedavg(), rounds=Rounds(total=1, cohort=2)),
}


@pytest.fixture
def prepared(world: World) -> Prepared:
    experiment = Experiment(
        "tiny",
        frontend=FRONTEND,
        model=MODELS["ctc"],  # type: ignore[arg-type]
        speakers=Speakers(seed_fraction=0.25),
        unreliability=Unreliability(dropout=1.0),
        runs=RUNS,
    )
    ready = prepare(experiment, world.corpus, "cpu")
    torch.use_deterministic_algorithms(False)  # preparing asks for them in the whole process
    return ready


def failures(prepared: Prepared, name: str) -> list[str]:
    task, faults = Task("train", {}, {"round": 0}), prepared.faults(name)
    return [reason for client in prepared.clients[name] if (reason := faults(task, client))]


def test_clients_of_a_federated_run_drop_out(prepared: Prepared) -> None:
    assert len(failures(prepared, "fedavg")) == len(prepared.clients["fedavg"])


def test_the_one_client_of_central_training_never_drops_out(prepared: Prepared) -> None:
    assert failures(prepared, "seed") == []


def test_without_unreliability_nobody_drops_out(prepared: Prepared) -> None:
    reliable = replace(prepared.experiment, unreliability=Unreliability())
    assert failures(replace(prepared, experiment=reliable), "fedavg") == []
