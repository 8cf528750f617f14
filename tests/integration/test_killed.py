"""Experiments that are killed, interrupted or run out of clients, and resumed: the result is the same."""

from __future__ import annotations

import random
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from command import Fault, in_fork, kept_files, run_arguments
from world import World

STEP = "antiphon.clients.train.LossMeter.add"
CLIENT = "antiphon.clients.worker.refuse_nonfinite"
JOURNAL = "antiphon.records.journal.Journal.append"
SAVE = "antiphon.records.checkpoint.save_file"
REPLACE = "os.replace"
SYNC = "os.fsync"
REMOVE = "shutil.rmtree"
MODEL = "antiphon.models.model.save_file"
SCORES = "antiphon.experiment.score.write_trn"


@pytest.fixture(scope="session")
def expected(world: World, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What an experiment leaves behind that nobody disturbed."""
    folder = tmp_path_factory.mktemp("undisturbed")
    done = in_fork(run_arguments(world.corpus, folder / "out"), folder / "log")
    assert done.code == 0, done.output
    return kept_files(folder / "out")


# --- Killed ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault",
    [
        Fault(STEP, 30),  # inside the seed model's second round
        Fault(STEP, 66),  # inside a client of a federated round
        Fault(CLIENT, 11, before=False),  # between two clients
        Fault(JOURNAL, 3, before=False),  # the journal knows a round that the clock does not
        Fault(SAVE, 6, before=False),  # half a checkpoint is written
        Fault(REPLACE, 2),  # before the experiment's own file is in place
        Fault(REPLACE, 14, before=False),
        Fault(REMOVE, 12),
        Fault(SYNC, 25),
        Fault(MODEL, 1, before=False),  # tokens and model.json are missing
        Fault(SCORES, 2),  # of the starting model
        Fault(SCORES, 4, before=False),
    ],
    ids=lambda fault: f"{fault.place.rpartition('.')[2]} {fault.number}",
)
def test_a_kill_and_a_resume_give_the_undisturbed_experiment(
    fault: Fault, world: World, expected: dict[str, Any], tmp_path: Path
) -> None:
    arguments = run_arguments(world.corpus, tmp_path / "out")
    killed = in_fork(arguments, tmp_path / "log", fault)
    assert killed.code == -signal.SIGKILL, killed.output
    resumed = in_fork([*arguments, "--resume"], tmp_path / "log")
    assert resumed.code == 0, resumed.output
    assert kept_files(tmp_path / "out") == expected


def test_many_kills_at_random_points_and_as_many_resumes(
    world: World, expected: dict[str, Any], tmp_path: Path
) -> None:
    chance, arguments = random.Random(0), [*run_arguments(world.corpus, tmp_path / "out"), "--resume"]
    # A run of one or two rounds makes about so many calls, so most of these kill.
    calls = {STEP: 25, CLIENT: 5, JOURNAL: 4, SAVE: 2, REPLACE: 5, SYNC: 8, REMOVE: 4, SCORES: 2}
    num_kills = 0
    for _ in range(6):
        place = chance.choice(list(calls))
        fault = Fault(place, chance.randint(1, calls[place]), before=chance.random() < 0.5)
        done = in_fork(arguments, tmp_path / "log", fault)
        assert done.code in (0, -signal.SIGKILL), done.output
        num_kills += done.code != 0
    assert num_kills >= 3
    assert in_fork(arguments, tmp_path / "log").code == 0
    assert kept_files(tmp_path / "out") == expected


def test_the_real_command_killed_at_a_real_moment(
    world: World, expected: dict[str, Any], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-m", "antiphon", *run_arguments(world.corpus, out), "--resume"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 120
        while not (out / "fedavg" / "checkpoints" / "round-000000").exists() and process.poll() is None:
            assert time.monotonic() < deadline, "the run never got there"
            time.sleep(0.005)
        process.kill()
    assert process.returncode == -signal.SIGKILL
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert kept_files(out) == expected


# --- Interrupted ----------------------------------------------------------------------------------


def resume_command(output: str) -> list[str]:
    """The command that a stopped run says to go on with."""
    found = re.search(r"Go on with: antiphon (.*)", output)
    assert found, output
    return shlex.split(found[1])


@pytest.mark.parametrize(
    ("kind", "number"),
    [(signal.SIGTERM, 5), (signal.SIGINT, 66), (signal.SIGHUP, 30)],
    ids=["central", "federated", "hung up"],
)
def test_an_interrupt_finishes_the_client_saves_and_says_how_to_go_on(
    kind: signal.Signals, number: int, world: World, expected: dict[str, Any], tmp_path: Path
) -> None:
    arguments = run_arguments(world.corpus, tmp_path / "out")
    stopped = in_fork(arguments, tmp_path / "log", Fault(STEP, number, kind))
    assert stopped.code == 128 + kind
    assert "finishing the current client" in stopped.output
    again = resume_command(stopped.output)
    assert again == [*arguments, "--resume"]
    assert in_fork(again, tmp_path / "log").code == 0
    assert kept_files(tmp_path / "out") == expected


def test_two_interrupts_stop_at_once_and_lose_nothing_saved(
    world: World, expected: dict[str, Any], tmp_path: Path
) -> None:
    arguments = run_arguments(world.corpus, tmp_path / "out")
    stopped = in_fork(arguments, tmp_path / "log", Fault(STEP, 66, signal.SIGINT, times=2))
    assert stopped.code == 130
    assert in_fork(resume_command(stopped.output), tmp_path / "log").code == 0
    assert kept_files(tmp_path / "out") == expected


# --- Damaged --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["state.safetensors", "state.json"])
def test_a_damaged_checkpoint_is_refused_and_passed_over_when_asked(
    name: str, world: World, expected: dict[str, Any], tmp_path: Path
) -> None:
    arguments = run_arguments(world.corpus, tmp_path / "out")
    assert in_fork(arguments, tmp_path / "log", Fault(STEP, 73, signal.SIGINT)).code == 130
    newest = max((tmp_path / "out" / "fedavg" / "checkpoints").glob("round-*"))
    data = bytearray((newest / name).read_bytes())
    data[-30] ^= 4
    (newest / name).write_bytes(bytes(data) if name.endswith("safetensors") else bytes(data[:-10]))

    refused = in_fork([*arguments, "--resume"], tmp_path / "log")
    assert refused.code == 2
    assert newest.name in refused.output
    assert "--skip-corrupt" in refused.output
    skipped = in_fork([*arguments, "--resume", "--skip-corrupt"], tmp_path / "log")
    assert skipped.code == 0, skipped.output
    assert kept_files(tmp_path / "out") == expected


# --- Clients that fail ----------------------------------------------------------------------------

FAULTS = ["unreliability.dropout=0.4", "runs.fedavg.rounds.cohort=4"]


def test_too_few_clients_stop_the_run_with_code_3_and_it_goes_on_when_fewer_are_enough(
    world: World, tmp_path: Path
) -> None:
    strict = run_arguments(
        world.corpus, tmp_path / "out", settings=[*FAULTS, "runs.fedavg.rounds.min_clients=3"]
    )
    stopped = in_fork(strict, tmp_path / "log")
    assert stopped.code == 3, stopped.output
    assert re.search(r"[0-2] of 4 clients\s+answered, 3 needed \(speaker/s", stopped.output)
    again = in_fork(resume_command(stopped.output), tmp_path / "log")
    assert again.code == 3  # the same clients drop out of the same round

    lenient = run_arguments(world.corpus, tmp_path / "out", "--resume", settings=FAULTS)
    assert in_fork(lenient, tmp_path / "log").code == 0
    straight = run_arguments(world.corpus, tmp_path / "straight", settings=FAULTS)
    assert in_fork(straight, tmp_path / "log").code == 0
    assert kept_files(tmp_path / "out") == kept_files(tmp_path / "straight")
    journal = (tmp_path / "straight" / "fedavg" / "journal.jsonl").read_text()
    assert "dropped out (simulated)" in journal


def test_a_deadline_leaves_slow_clients_out_in_every_round(world: World, tmp_path: Path) -> None:
    settings = [
        "unreliability.deadline=0.15",
        "unreliability.speed_spread=2.0",
        "runs.fedavg.rounds.cohort=4",
    ]
    done = in_fork(run_arguments(world.corpus, tmp_path / "out", settings=settings), tmp_path / "log")
    assert done.code == 0, done.output
    journal = (tmp_path / "out" / "fedavg" / "journal.jsonl").read_text()
    assert journal.count("too slow (simulated)") == 4 * len(
        set(re.findall(r'"(speaker/\w+)":"too slow', journal))
    )


def test_another_experiment_in_the_folder_is_left_alone(world: World, tmp_path: Path) -> None:
    arguments = run_arguments(world.corpus, tmp_path / "out")
    assert in_fork(arguments, tmp_path / "log", Fault(STEP, 5)).code == -signal.SIGKILL
    before = sorted(path.name for path in (tmp_path / "out").rglob("*"))
    refused = in_fork(arguments, tmp_path / "log")
    assert refused.code == 2
    assert "add --resume to go on" in refused.output
    assert sorted(path.name for path in (tmp_path / "out").rglob("*")) == before


def test_a_finished_experiment_can_be_made_longer(
    world: World, expected: dict[str, Any], tmp_path: Path
) -> None:
    arguments = run_arguments(world.corpus, tmp_path / "out")
    assert in_fork(arguments, tmp_path / "log").code == 0
    longer = [*arguments, "--set", "runs.fedavg.rounds.total=6", "--resume"]
    assert in_fork(longer, tmp_path / "log").code == 0
    journal = (tmp_path / "out" / "fedavg" / "journal.jsonl").read_bytes()
    assert journal.startswith(expected["fedavg/journal.jsonl"])
    assert len(journal.splitlines()) == 7
