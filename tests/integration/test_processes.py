"""Real processes, started in every way there is; killed, interrupted, failing; and still the same result."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from command import Done, in_fork, kept_files, run_arguments
from safetensors.torch import load_file
from world import World

from antiphon.records.journal import read

FAULTY = Path(__file__).parents[1] / "faulty.py"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
STEP = "antiphon.clients.train.LossMeter.add"
CLIENT = "antiphon.clients.worker.refuse_nonfinite"
JOURNAL = "antiphon.records.journal.Journal.append"
SAVE = "antiphon.records.checkpoint.save_file"
REPLACE = "antiphon.records.checkpoint.os.replace"


def step(rank: int, place: str, number: int, **more: Any) -> dict[str, Any]:
    """A fault in one of the processes."""
    target = more.pop("target", "self")
    return {"rank": rank, "target": target, "fault": {"place": place, "number": number, **more}}


class Trial:
    """An experiment in a folder, run by commands of one's own."""

    def __init__(self, world: World, folder: Path, steps: Sequence[dict[str, Any]] = ()) -> None:
        self.folder, self.out, self.corpus = folder, folder / "out", world.corpus
        self.steps = steps
        self.plan = folder / "plan.json"
        self.plan.write_text(json.dumps(list(steps)))

    def command(self, *more: str) -> list[str]:
        return [str(FAULTY), str(self.plan), *run_arguments(self.corpus, self.out, *more)]

    def run(self, *command: str) -> Done:
        (done,) = self.run_all([list(command)])
        return done

    def run_all(
        self, commands: Sequence[list[str]], environments: Sequence[Mapping[str, str]] = ()
    ) -> list[Done]:
        """Side by side, as on several machines, each perhaps with variables of its own."""
        started = [
            subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env={**os.environ, "COLUMNS": "100", **own},
            )
            for command, own in zip(commands, environments or [{}] * len(commands), strict=True)
        ]
        try:
            outputs = [process.communicate(timeout=300)[0] for process in started]
        finally:
            for process in started:
                process.kill()
        return [Done(process.returncode, output) for process, output in zip(started, outputs, strict=True)]

    @property
    def num_faults(self) -> int:
        return len(list(self.folder.glob("plan-*-happened")))


@pytest.fixture
def trial(world: World, tmp_path: Path) -> Callable[..., Trial]:
    return lambda *steps: Trial(world, tmp_path, steps)


@pytest.fixture(scope="session")
def undisturbed(world: World, tmp_path_factory: pytest.TempPathFactory) -> Trial:
    """`antiphon run --workers 2`, as a user types it."""
    trial = Trial(world, tmp_path_factory.mktemp("two"))
    done = trial.run(sys.executable, *trial.command("--workers", "2"))
    assert done.code == 0, done.output
    assert done.output.count("WER %") == 1, "only the first process is heard"
    return trial


@pytest.fixture(scope="session")
def expected(undisturbed: Trial) -> dict[str, Any]:
    return kept_files(undisturbed.out)


# --- One machine ----------------------------------------------------------------------------------


def test_two_workers_come_to_the_model_of_one_process(
    world: World, undisturbed: Trial, tmp_path: Path
) -> None:
    assert in_fork(run_arguments(world.corpus, tmp_path / "out"), tmp_path / "log").code == 0
    for run in ("seed", "fedavg"):
        one, two = (
            load_file(out / run / "model" / "model.safetensors")
            for out in (tmp_path / "out", undisturbed.out)
        )
        for name in one:
            torch.testing.assert_close(two[name], one[name], rtol=0, atol=1e-6)
        journals = [read(out / run / "journal.jsonl") for out in (tmp_path / "out", undisturbed.out)]
        assert [entry.get("cohort") for entry in journals[0]] == [
            entry.get("cohort") for entry in journals[1]
        ]
        assert [entry["valid"] for entry in journals[0]] == [entry["valid"] for entry in journals[1]]
    assert json.loads((undisturbed.out / "fedavg" / "run.json").read_text())["num_processes"] == 2


def test_ordered_workers_leave_the_bytes_of_one_process(
    world: World, trial: Callable[..., Trial], tmp_path: Path
) -> None:
    assert in_fork(run_arguments(world.corpus, tmp_path / "one"), tmp_path / "log").code == 0
    ordered = trial()
    done = ordered.run(sys.executable, *ordered.command("--workers", "2", "--ordered"))
    assert done.code == 0, done.output
    assert kept_files(ordered.out) == kept_files(tmp_path / "one")


INTERRUPTS = [
    step(0, STEP, 30, signal=signal.SIGTERM, target="parent"),  # central training: the other process waits
    step(1, STEP, 3, signal=signal.SIGINT, target="parent"),  # in the other process's client
    step(1, CLIENT, 3, signal=signal.SIGINT),  # only one process hears of it
]


def test_interrupts_stop_all_workers_and_resumes_give_the_undisturbed_experiment(
    trial: Callable[..., Trial], expected: dict[str, Any]
) -> None:
    stopping = trial(*INTERRUPTS)
    arguments = run_arguments(stopping.corpus, stopping.out, "--workers", "2")
    for fault in INTERRUPTS:
        stopped = stopping.run(sys.executable, str(FAULTY), str(stopping.plan), *arguments)
        assert stopped.code == 128 + fault["fault"]["signal"], stopped.output
        assert stopped.output.count("Stopped: ") == 1
        if fault["target"] == "parent":
            assert stopped.output.count("finishing the current client") == 1
        again = re.search(r"Go on with: antiphon (.*)", stopped.output)
        assert again, stopped.output
        arguments = shlex.split(again[1])
    resumed = stopping.run(sys.executable, str(FAULTY), str(stopping.plan), *arguments)
    assert resumed.code == 0, resumed.output
    assert kept_files(stopping.out) == expected


def test_a_killed_worker_ends_the_others_and_a_resume_gives_the_undisturbed_experiment(
    trial: Callable[..., Trial], expected: dict[str, Any]
) -> None:
    killing = trial(step(0, STEP, 65), step(1, STEP, 3))
    for _ in range(2):
        killed = killing.run(sys.executable, *killing.command("--workers", "2", "--resume"))
        assert killed.code == 4, killed.output
        assert killed.output.count("The last checkpoint is intact") == 1
    resumed = killing.run(sys.executable, *killing.command("--workers", "2", "--resume"))
    assert resumed.code == 0, resumed.output
    assert kept_files(killing.out) == expected


def test_workers_whose_starter_was_killed_save_and_end(trial: Callable[..., Trial]) -> None:
    orphaned = trial(step(1, STEP, 3, signal=signal.SIGKILL, target="parent"))
    done = orphaned.run(sys.executable, *orphaned.command("--workers", "2"))  # until the last one is gone
    assert done.code == -signal.SIGKILL
    assert "Stopped: terminated" in done.output


def test_a_mistake_is_told_once(trial: Callable[..., Trial]) -> None:
    wrong = trial()
    done = wrong.run(sys.executable, *wrong.command("--workers", "2", "--set", "speakers.test=exam"))
    assert done.code == 2, done.output
    assert done.output.count("error:") == 1
    assert "no split 'exam'" in done.output


# --- torchrun -------------------------------------------------------------------------------------

KILLS = [
    step(0, STEP, 30),  # in central training, while the other process waits
    step(1, STEP, 4),  # in a federated round
    step(0, SAVE, 1, before=False),  # half a checkpoint is written
    step(0, REPLACE, 1),  # it is written, and not in place
    step(1, CLIENT, 1, before=False),  # between two clients
]


@pytest.mark.slow
def test_ranks_killed_under_torchrun_are_restarted_and_end_at_the_undisturbed_result(
    trial: Callable[..., Trial], expected: dict[str, Any]
) -> None:
    killing = trial(*KILLS)
    command = [*TORCHRUN, "--nproc-per-node", "2", "--max-restarts", str(len(KILLS))]
    done = killing.run(*command, *killing.command("--resume"))
    assert done.code == 0, done.output
    assert killing.num_faults == len(KILLS), done.output
    assert kept_files(killing.out) == expected


@pytest.mark.slow
def test_two_machines_lose_a_process_each_and_end_at_the_undisturbed_result(
    trial: Callable[..., Trial], expected: dict[str, Any]
) -> None:
    """Two agents that meet on the loopback; how often they restarted differs between them."""
    killing = trial(step(1, STEP, 4), step(0, CLIENT, 2))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    agent = [
        *TORCHRUN,
        "--nnodes",
        "2",
        "--nproc-per-node",
        "1",
        "--max-restarts",
        "3",
        "--rdzv-backend",
        "c10d",
    ]
    agent += ["--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "trial"]
    done = killing.run_all([[*agent, *killing.command("--resume")] for _ in range(2)])
    assert [machine.code for machine in done] == [0, 0], done[0].output + done[1].output
    assert killing.num_faults == 2
    assert kept_files(killing.out) == expected


# --- Slurm and MPI --------------------------------------------------------------------------------


def test_processes_with_slurm_s_variables_find_each_other(
    trial: Callable[..., Trial], expected: dict[str, Any]
) -> None:
    """What srun sets for two tasks; no address is given: the first machine's name and the job's number do."""
    by_slurm = trial()
    step = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "localhost"}
    job = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_ID": "0"}
    tasks = [{**step, **job, "SLURM_PROCID": rank, "SLURM_LOCALID": rank} for rank in ("0", "1")]
    done = by_slurm.run_all([[sys.executable, *by_slurm.command()] for _ in tasks], tasks)
    assert [task.code for task in done] == [0, 0], done[0].output + done[1].output
    assert [task.output.count("WER %") for task in done] == [1, 0]
    assert kept_files(by_slurm.out) == expected


MPIEXEC = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


@pytest.mark.skipif(MPIEXEC is None, reason="no mpiexec: pip install 'antiphon[mpi]'")
def test_mpiexec_starts_a_run(trial: Callable[..., Trial], expected: dict[str, Any]) -> None:
    assert MPIEXEC is not None
    pytest.importorskip("mpi4py", reason="no mpi4py: pip install 'antiphon[mpi]'")
    by_mpi = trial()
    done = by_mpi.run(MPIEXEC, "-n", "2", sys.executable, *by_mpi.command())
    assert done.code == 0, done.output
    assert done.output.count("WER %") == 1
    assert kept_files(by_mpi.out) == expected
