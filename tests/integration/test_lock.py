"""Two commands that write to one folder: the second is refused, the first is not disturbed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command import Fault, in_fork, kept_files, run_arguments, stopped_at
from marked import needs_proc
from world import World
from writers import WRITERS, Ground, make_ground

from antiphon.records.lock import LOCK


def wait_for(path: Path, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 120
    while not path.exists() and process.poll() is None:
        assert time.monotonic() < deadline, f"{path} never came"
        time.sleep(0.005)


@pytest.mark.parametrize(
    "more",
    [[], pytest.param(["--workers", "2"], marks=pytest.mark.slow), ["--jobs", "2"]],
    ids=["alone", "workers", "jobs"],
)
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


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Ground:
    folder = tmp_path_factory.mktemp("ground")
    return make_ground(folder / "ground", lambda arguments: in_fork(arguments, folder / "log"))


REFUSED, SAFE = r"is in use by process \d+ on ", ""
TRAINING = "antiphon.clients.train.LossMeter.add"
MOMENTS = {  # where the first command is when the second starts, and what that one says
    "import": ("antiphon.data.importing.conversion._prepare", r"is being made by process \d+: wait"),
    "import again": ("antiphon.data.importing.conversion._prepare", r"is being made by process \d+: wait"),
    "features": ("antiphon.data.store._write", SAFE),
    "run": (TRAINING, REFUSED),
    "nbest": ("antiphon.workflows.evaluate_run.write_nbest", SAFE),
    "lm ngram": ("antiphon.workflows.train_lm.estimate", REFUSED),
    "lm ngram arpa": ("antiphon.workflows.train_lm.estimate", SAFE),
    "lm train": ("antiphon.workflows.train_lm.train_lm", REFUSED),
    "adapt": (TRAINING, REFUSED),
    "personalize": ("antiphon.workflows.personalisation_plan.search_grid", REFUSED),
    "prune": (TRAINING, REFUSED),
    "export": ("antiphon.exporting.export_folder.write_folder", r"is being made by process \d+: wait"),
    "report": ("antiphon.report.html.render", SAFE),
}


@needs_proc
@pytest.mark.parametrize("name", MOMENTS)
def test_a_second_command_is_refused_or_does_no_harm(name: str, ground: Ground, tmp_path: Path) -> None:
    writer, (place, message) = WRITERS[name], MOMENTS[name]
    if not writer.is_here:
        pytest.skip(f"needs {', '.join(writer.needs)}")
    folder = tmp_path / "folder"
    folder.mkdir()
    writer.prepare(ground, folder)
    arguments = [str(word) for word in writer.arguments(ground, folder)]
    again = [*arguments, *(["--resume"] if writer.resumes else [])]
    with stopped_at(Fault(place, 1, signal.SIGSTOP), arguments, tmp_path / "log") as go_on:
        second = in_fork(again, tmp_path / "second")
        said = " ".join(second.output.split())
        assert (second.code, bool(re.search(message, said))) == (2 if message else 0, True), said
        first = go_on()
    assert first.code == 0, first.output
    assert list(folder.rglob(".*")) == []


@needs_proc
def test_a_second_demo_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("espeakng_loader")
    arguments = ["demo", "--out", str(tmp_path / "demo")]
    speaking = Fault("antiphon.data.tts.demo_corpus.speak", 2, signal.SIGSTOP)
    with stopped_at(speaking, arguments, tmp_path / "log"):
        second = in_fork([*arguments, "--resume"], tmp_path / "second")
    assert second.code == 2
    assert re.search(REFUSED, " ".join(second.output.split()))


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
