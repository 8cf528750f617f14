"""Two commands that write to one folder: the second is refused, the first is not disturbed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command import Fault, in_fork, kept_files, run_arguments
from world import World

from antiphon.records.lock import LOCK


def wait_for(path: Path, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 120
    while not path.exists() and process.poll() is None:
        assert time.monotonic() < deadline, f"{path} never came"
        time.sleep(0.005)


@pytest.mark.parametrize("more", [[], ["--workers", "2"], ["--jobs", "2"]], ids=["alone", "workers", "jobs"])
def test_a_second_command_is_refused_and_the_first_is_not_disturbed(
    more: list[str], world: World, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-m", "antiphon", *run_arguments(world.corpus, out, *more)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as first:
        wait_for(out / "seed" / "checkpoints" / "round-000001", first)
        second = in_fork(run_arguments(world.corpus, out, "--resume"), tmp_path / "log")
        assert first.poll() is None, "the first command ended too early for this test"
    said = " ".join(second.output.split())
    assert second.code == 2
    assert f"{out} is in use by process " in said
    assert " since 20" in said
    assert first.returncode == 0
    assert not (out / LOCK).exists()
    if not more:
        assert in_fork(run_arguments(world.corpus, tmp_path / "alone"), tmp_path / "log").code == 0
        assert kept_files(out) == kept_files(tmp_path / "alone")


def test_a_killed_command_is_said_and_a_stopped_one_leaves_no_lock(world: World, tmp_path: Path) -> None:
    arguments, step = run_arguments(world.corpus, tmp_path / "out"), "antiphon.clients.train.LossMeter.add"
    in_fork(arguments, tmp_path / "log", Fault(step, 30))
    assert (tmp_path / "out" / LOCK).exists()
    followed = in_fork(["report", str(tmp_path / "out"), "--follow"], tmp_path / "log")
    assert followed.code == 0
    assert " has ended, and not all runs are finished. To go on, repeat the command" in followed.output
    stopped = in_fork([*arguments, "--resume"], tmp_path / "log", Fault(step, 5, 2))
    assert stopped.code == 130
    assert "taking over the lock" in stopped.output
    assert not (tmp_path / "out" / LOCK).exists()
    again = in_fork([*arguments, "--resume"], tmp_path / "log")
    assert again.code == 0
    assert "taking over" not in again.output


def test_a_command_that_fails_before_its_first_round_leaves_no_folder(world: World, tmp_path: Path) -> None:
    wrong = run_arguments(tmp_path / "nothing", tmp_path / "new" / "out")
    assert in_fork(wrong, tmp_path / "log").code == 2
    assert os.listdir(tmp_path) == ["log"]
