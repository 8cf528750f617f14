"""What clients keep from round to round, in whole runs: lost, damaged, left behind, and not wanted."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import ROUNDS, Kill, Killed, SmallRun
from world import COMBINATIONS, POOLS, Broken, World, recording, start

from antiphon.clients.states import ClientStates
from antiphon.core import Task, Update
from antiphon.engine import Engine, Rounds
from antiphon.pools.local import LocalPool
from antiphon.records.journal import read

SCAFFOLD = COMBINATIONS["scaffold"]
LONG = replace(ROUNDS, total=6)


@pytest.fixture(params=["local", "two processes"])
def stopped(request: pytest.FixtureRequest, world: World, tmp_path: Path) -> SmallRun:
    """A run of SCAFFOLD that ended after three rounds of six."""
    run = SmallRun(world, SCAFFOLD, tmp_path / "run", request.param, LONG, ordered=True)
    run.run_killed(Kill(3, "after the checkpoint"), resume=False)
    return run


def newest(run: SmallRun) -> tuple[str, Path]:
    """The client whose state is newest, and its file."""
    file = max((run.folder / "clients").rglob("*.safetensors"), key=lambda file: file.name)
    return file.parent.name.replace("%2F", "/"), file


def failures(run: SmallRun) -> dict[str, str]:
    return {
        client: why
        for entry in read(run.folder / "journal.jsonl")[4:]
        for client, why in entry["failures"].items()
    }


@pytest.mark.parametrize("damage", ["missing", "cut", "changed"])
def test_a_client_whose_state_is_lost_is_named_and_left_out(damage: str, stopped: SmallRun) -> None:
    client, file = newest(stopped)
    spoil(file, damage)
    stopped.run(resume=True)
    reason = failures(stopped)[client]
    assert str(file.parent) in reason
    assert {"missing": "is missing", "cut": "is damaged", "changed": "checksum"}[damage] in reason
    assert "rounds.renew_lost_states=true" in reason


@pytest.mark.parametrize("damage", ["missing", "cut", "changed"])
def test_a_client_whose_state_is_lost_starts_anew_if_that_is_asked_for(
    damage: str, stopped: SmallRun
) -> None:
    client, file = newest(stopped)
    spoil(file, damage)
    lenient = replace(stopped, rounds=replace(LONG, renew_lost_states=True))
    lenient.run(resume=True)
    assert client not in {c for c, why in failures(lenient).items() if "simulated" not in why}


def spoil(file: Path, damage: str) -> None:
    data = bytearray(file.read_bytes())
    if damage == "missing":
        file.unlink()
    elif damage == "cut":
        file.write_bytes(data[: len(data) // 2])
    else:
        data[-1] ^= 1
        file.write_bytes(data)


def test_what_a_kill_left_behind_is_removed(world: World, tmp_path: Path) -> None:
    """Half a file, and whole ones of a round that will be repeated with other clients."""
    run = SmallRun(world, SCAFFOLD, tmp_path / "run")
    run.run()
    killed = run.in_folder(tmp_path / "killed")
    killed.run_killed(Kill(2, "before the checkpoint"), resume=False)
    folder = killed.folder / "clients" / "speaker%2Fs00"
    folder.mkdir(exist_ok=True)
    (folder / "000001.000000.safetensors.17.writing").write_bytes(b"half")
    (folder / ".tmpXa81Qz").write_bytes(b"what safetensors writes before it has a name")
    (folder / "000002.000000.safetensors").write_bytes(b"of another run")
    killed.run(resume=True)
    assert killed.contents() == run.contents()


@pytest.mark.parametrize(
    "place", ["antiphon.records.checkpoint.prune", "antiphon.clients.states.ClientStates.prune"]
)
def test_what_the_last_round_had_no_time_to_remove_is_removed_on_resume(
    place: str, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill after the last checkpoint: no round is left that would remove what is old."""
    run = SmallRun(world, SCAFFOLD, tmp_path / "run", rounds=replace(LONG, keep_last=1))
    run.run()
    killed = run.in_folder(tmp_path / "killed")

    def prune(*arguments: object, original: Any = pkgutil.resolve_name(place)) -> None:
        if (killed.folder / "checkpoints" / "round-000006").exists():
            raise Killed
        original(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(place, prune)
        with pytest.raises(Killed):
            killed.run()
    killed.run(resume=True)
    assert killed.contents() == run.contents()


def test_no_more_is_kept_than_a_resume_can_need(world: World, tmp_path: Path) -> None:
    """Of each client one version for each of two checkpoints, and nothing of clients that never took part."""
    run = SmallRun(world, SCAFFOLD, tmp_path / "run", rounds=replace(LONG, valid_every=0, cohort=2, total=5))
    run.run()
    taken = {client for entry in read(run.folder / "journal.jsonl") for client in entry["clients"]}
    folders = {
        folder.name.replace("%2F", "/"): list(folder.iterdir())
        for folder in (run.folder / "clients").iterdir()
    }
    assert folders.keys() == taken < set(world.clients())
    assert all(1 <= len(files) <= 2 for files in folders.values())


def test_a_client_that_fails_keeps_what_it_had(world: World, tmp_path: Path) -> None:
    states = ClientStates(tmp_path)
    worker, cohort = world.worker_for(SCAFFOLD, states=states), ["speaker/s00", "speaker/s01"]
    state = start(SCAFFOLD, world.params())
    state, _ = SCAFFOLD.algorithm.round(state, cohort, recording(LocalPool(worker), cohort))
    before = {client: states.read(client, (1, 0)) for client in cohort}
    broken = LocalPool(Broken(worker, frozenset(cohort[:1])))
    SCAFFOLD.algorithm.round(state, cohort, recording(broken, cohort, 1))
    after = {client: states.read(client, (2, 0)) for client in cohort}
    for name, tensor in before[cohort[0]].items():
        assert torch.equal(tensor, after[cohort[0]][name])
        assert not torch.equal(before[cohort[1]][name], after[cohort[1]][name])


@pytest.mark.parametrize("pool", POOLS)
def test_without_a_folder_work_that_keeps_something_fails_and_says_so(pool: str, world: World) -> None:
    cohort = ["speaker/s00", "speaker/s01"]
    update = POOLS[pool](world.worker_for(SCAFFOLD)).reduce(scaffold_task(world), cohort, lambda report: 0.0)
    assert [failure.client for failure in update.failures] == cohort
    assert "keeps state on the client, and this run has no folder for it" in update.failures[0].reason


def scaffold_task(world: World) -> Task:
    tasks: list[Task] = []

    class Catching:
        def reduce(self, task: Task, cohort: Sequence[str], weigh: object) -> Update:
            tasks.append(task)
            raise Killed

    with pytest.raises(Killed):
        SCAFFOLD.algorithm.round(start(SCAFFOLD, world.params()), ["speaker/s00"], Catching())  # type: ignore[arg-type]
    return tasks[0]


# --- Errors ---------------------------------------------------------------------------------------


class Mistaken:
    """A worker with a mistake in it, which is no client's fault."""

    def run(self, task: Task, clients: Sequence[str]) -> Iterator[Update]:
        raise OSError("the disk is on fire")
        yield


def test_an_error_in_a_round_is_seen_and_not_the_clients_that_it_left_without_an_answer(
    world: World, tmp_path: Path
) -> None:
    rounds = Rounds(total=1, cohort=2, valid_every=0)
    engine = Engine(SCAFFOLD.algorithm, LocalPool(Mistaken()), list(world.clients()), rounds, tmp_path, 7)
    with pytest.raises(OSError, match="the disk is on fire"):
        engine.run(world.params())
