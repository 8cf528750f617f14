"""Bounds of layers by norm: learnt once, on the server's speech; kept for later rounds; exact resume."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from antiphon import config
from antiphon.algorithms.fedavg import FedAvg
from antiphon.algorithms.private import Private
from antiphon.core import Failure, Report, Task, Tensors, Update
from antiphon.engine import Engine, Rounds
from antiphon.experiment.settings import Run
from antiphon.pools.local import LocalPool
from antiphon.privacy.participation import RoundRobin
from antiphon.records.checkpoint import folder_of
from antiphon.seeding import derive
from antiphon.server.optimizers import Adam
from antiphon.server.run_context import RunContext, prepare
from antiphon.server.weighting import Uniform
from antiphon.tasks.update_clipping import EachLayer, EachLayerByNorm

SEED = 5
SERVER = "server/rehearsal"
CLIENTS = [f"speaker/{number:02d}" for number in range(12)]
PARAMS = {"w": torch.zeros(6, 3), "b": torch.zeros(4)}
PRIVATE = Private(
    FedAvg(weighting=Uniform()),
    clipping=EachLayerByNorm(0.5),
    cohorts=RoundRobin(3),
    cohort=4.0,
    rounds=6,
    simulated=True,
)


@dataclass
class Clients:
    """Clients whose updates have other proportions than that of the server: b 3 : w 4."""

    size: float = 20.0
    has_server: bool = True
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def run(self, task: Task, clients: Sequence[str]) -> Iterator[Update]:
        for client in clients:
            self.asked.append((client, dict(task.config)))
            if client == SERVER and not self.has_server:
                yield Update.nothing(Failure(client, "no speech"))
                continue
            yield Update(
                self.answer(task, client), reports=(Report(client, {"loss": 1.0, "num_utterances": 3.0}),)
            )

    def answer(self, task: Task, client: str) -> Tensors:
        generator = torch.Generator().manual_seed(derive(task.moment[0], client))
        drawn = {name: torch.randn(p.shape, generator=generator) for name, p in task.tensors.items()}
        if client == SERVER:
            lengths = {"w": 4.0, "b": 3.0}
            return {name: lengths[name] * tensor / tensor.norm() for name, tensor in drawn.items()}
        return {name: self.size * tensor for name, tensor in drawn.items()}


def run(
    folder: Path,
    private: Private = PRIVATE,
    clients: Clients | None = None,
    rounds: int = 6,
    resume: bool = False,
) -> Any:
    settings = Rounds(rounds, 4, min_clients=0, valid_every=0)
    engine = Engine(private, LocalPool(clients or Clients()), CLIENTS, settings, folder, SEED)
    return engine.run(PARAMS, resume).state


def first_round(private: Private, clients: Clients, cohort: Sequence[str]) -> tuple[Any, Tensors]:
    state = private.init(PARAMS).with_seed(SEED)
    after, _ = private.round(state, cohort, LocalPool(clients))
    return after, {name: p - after.params[name] for name, p in PARAMS.items()}


def test_the_server_trains_once_in_the_first_round_with_the_task_of_the_clients(tmp_path: Path) -> None:
    clients = Clients()
    state = run(tmp_path, clients=clients)
    names = [name for name, _ in clients.asked]
    assert (names[0], names.count(SERVER)) == (SERVER, 1)
    own, other = clients.asked[0][1], clients.asked[1][1]
    assert "views" not in own  # its update is not clipped: its norms are wanted
    assert {k: v for k, v in own.items() if k != "call"} == {
        k: v for k, v in other.items() if k not in ("call", "views")
    }
    assert state.norms == (pytest.approx(3.0, rel=1e-6), pytest.approx(4.0, rel=1e-6))


def test_one_client_moves_each_layer_by_the_bound_that_the_server_has_learnt() -> None:
    """All updates are too long, so removing a client moves layers by C_l / N: 0.3 and 0.4 of 0.5 over 4."""
    cohort = PRIVATE.draw(CLIENTS, 4, SEED, 0)
    _, full = first_round(PRIVATE, Clients(), cohort)
    for left_out in cohort:
        _, part = first_round(PRIVATE, Clients(), [client for client in cohort if client != left_out])
        change = {name: float((full[name] - part[name]).double().norm()) for name in PARAMS}
        assert change["b"] == pytest.approx(0.3 / 4, rel=1e-4)
        assert change["w"] == pytest.approx(0.4 / 4, rel=1e-4)
        assert math.hypot(*change.values()) <= 0.5 / 4


def test_the_norms_come_from_the_server_alone_and_not_from_clients() -> None:
    cohort = PRIVATE.draw(CLIENTS, 4, SEED, 0)
    states = [
        first_round(PRIVATE, Clients(size), part)[0] for size, part in ((1.0, cohort), (50.0, cohort[1:]))
    ]
    assert states[0].norms == states[1].norms


@pytest.mark.parametrize("simulated", [True, False])
def test_a_run_that_is_stopped_resumes_to_the_same_bits(simulated: bool, tmp_path: Path) -> None:
    private = replace(PRIVATE, inner=FedAvg(weighting=Uniform(), server=Adam()), simulated=simulated)
    whole = run(tmp_path / "whole", private)
    for stop in (1, 4):
        folder = tmp_path / f"stop{stop}"
        folder.mkdir()
        if not simulated:
            shutil.copy(tmp_path / "whole" / "noise.key", folder)
        run(folder, private, rounds=stop)
        clients = Clients()
        again = run(folder, private, clients, resume=True)
        assert SERVER not in {name for name, _ in clients.asked}
        assert again.norms == whole.norms
        assert all(torch.equal(p, whole.params[name]) for name, p in again.params.items())
        assert (folder / "journal.jsonl").read_bytes() == (tmp_path / "whole" / "journal.jsonl").read_bytes()


def without_norms(folder: Path, round: int) -> None:
    """Write a checkpoint as versions did that knew no norms."""
    path = folder_of(folder / "checkpoints", round) / "state.json"
    body = json.loads(path.read_text().split("\n")[1])
    del body["state"]["norms"], body["state"]["bound"]
    text = json.dumps(body)
    path.write_text(f"{hashlib.sha256(text.encode()).hexdigest()}\n{text}\n")


def test_a_run_of_an_older_version_resumes_to_the_same_bits_and_cannot_change_its_clipping(
    tmp_path: Path,
) -> None:
    plain = replace(PRIVATE, clipping=EachLayer(0.5))
    whole = run(tmp_path / "whole", plain)
    run(tmp_path / "old", plain, rounds=3)
    without_norms(tmp_path / "old", 3)
    shutil.copytree(tmp_path / "old", tmp_path / "changed")
    again = run(tmp_path / "old", plain, resume=True)
    assert all(torch.equal(p, whole.params[name]) for name, p in again.params.items())
    with pytest.raises(ValueError, match="this run began with another clipping") as error:
        run(tmp_path / "changed", PRIVATE, resume=True)
    assert "\n" not in str(error.value)


def test_without_speech_of_the_server_the_run_is_refused_with_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"there is none: set speakers\.seed_fraction above 0"):
        prepare(PRIVATE, RunContext(tuple(CLIENTS), num_rounds=6, cohort=4, has_server_speech=False))
    with pytest.raises(ValueError, match=r"there is none: set speakers\.seed_fraction above 0"):
        first_round(PRIVATE, Clients(has_server=False), PRIVATE.draw(CLIENTS, 4, SEED, 0))


@pytest.mark.parametrize("data", ["both", "seed", {"federated": 1, "seed": 2}])
def test_speech_that_clients_have_too_is_refused(data: Any) -> None:
    rounds = Rounds(min_clients=0)
    Run(PRIVATE, rounds=rounds)
    with pytest.raises(ValueError, match="and here clients have it, too"):
        Run(PRIVATE, data=data, rounds=rounds)


def test_norms_can_be_given_in_place_of_speech_and_must_fit_the_model() -> None:
    given = replace(PRIVATE, clipping=EachLayerByNorm(0.5, (3.0, 4.0)))
    cohort = PRIVATE.draw(CLIENTS, 4, SEED, 0)
    clients = Clients()
    state, moved = first_round(given, clients, cohort)
    _, learnt = first_round(PRIVATE, Clients(), cohort)
    assert SERVER not in {name for name, _ in clients.asked}
    assert state.norms == (3.0, 4.0)
    assert all(torch.allclose(moved[name], learnt[name], atol=1e-6) for name in PARAMS)
    wrong = replace(PRIVATE, clipping=EachLayerByNorm(0.5, (3.0, 4.0, 5.0)))
    with pytest.raises(ValueError, match="norms of 3 tensors, and an update has 2"):
        first_round(wrong, Clients(), cohort)


def test_canaries_fill_the_bounds_that_were_learnt() -> None:
    """Two canaries move each layer of the mean by no more than two clients would."""
    cohort = PRIVATE.draw(CLIENTS, 4, SEED, 0)
    with_canaries = replace(PRIVATE, canaries=2)
    _, plain = first_round(PRIVATE, Clients(), cohort)
    _, seen = first_round(with_canaries, Clients(), cohort)
    change = {name: float((seen[name] - plain[name]).double().norm()) for name in PARAMS}
    assert 0 < change["w"] <= 2 * 0.4 / 4
    assert change["b"] <= 2 * 0.3 / 4


def test_settings_are_read_and_written() -> None:
    tree = config.to_dict(PRIVATE)
    assert json.loads(json.dumps(tree))["clipping"] == {"each_layer_by_norm": {"bound": 0.5, "norms": []}}
    assert config.from_dict(Private, tree) == PRIVATE
