"""`antiphon run --jobs`: the runs of an experiment in real processes, side by side."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from command import Done, in_fork, kept_files, run_arguments
from world import World

ANTIPHON = [sys.executable, "-m", "antiphon"]


def antiphon(arguments: list[str]) -> Done:
    environment = {**os.environ, "COLUMNS": "100", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*ANTIPHON, *arguments], capture_output=True, text=True, env=environment, timeout=300
    )
    return Done(done.returncode, done.stdout + done.stderr)


def test_runs_side_by_side_leave_what_one_process_leaves(world: World, tmp_path: Path) -> None:
    alone, jobs = tmp_path / "alone", tmp_path / "jobs"
    assert in_fork(run_arguments(world.corpus, alone), tmp_path / "log").code == 0
    done = antiphon(run_arguments(world.corpus, jobs, "--jobs", "2"))
    assert done.code == 0, done.output
    assert kept_files(jobs) == kept_files(alone)
    assert "fedavg" in done.output
    assert (jobs / "report.html").exists()
    before = (jobs / "fedavg" / "run.json").stat().st_mtime_ns
    again = antiphon(run_arguments(world.corpus, jobs, "--jobs", "2", "--resume"))
    assert again.code == 0, again.output
    assert (jobs / "fedavg" / "run.json").stat().st_mtime_ns == before  # what is finished is not begun again


def test_a_run_that_fails_is_named_and_resumed(world: World, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert antiphon(run_arguments(world.corpus, out, "--only", "seed")).code == 0
    obstacle = out / "fedavg" / "checkpoints"
    obstacle.parent.mkdir()
    obstacle.touch()
    done = antiphon(run_arguments(world.corpus, out, "--jobs", "2", "--only", "fedavg", "--resume"))
    assert done.code == 3, done.output
    assert "1 of 1 runs failed (fedavg: error: " in done.output
    assert "--resume" in done.output
    obstacle.unlink()
    whole = antiphon(run_arguments(world.corpus, out, "--jobs", "2", "--resume"))
    assert whole.code == 0, whole.output
    assert (out / "fedavg" / "model" / "model.safetensors").exists()


def test_other_processes_and_jobs_are_refused(world: World, tmp_path: Path) -> None:
    done = antiphon(run_arguments(world.corpus, tmp_path / "out", "--jobs", "2", "--workers", "2"))
    assert done.code == 2
    assert "--jobs is for runs of one process each" in done.output
