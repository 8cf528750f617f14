"""An algorithm of somebody else, in a package of its own: chosen, wrapped, killed and resumed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
from command import Done, Fault, in_fork, kept_files, run_arguments
from packages import STRANGER, install
from world import World

from antiphon import config
from antiphon.core import ALGORITHMS
from antiphon.recipes import recipe
from antiphon.records.journal import read
from antiphon.server.weighting import WEIGHTINGS
from antiphon.tasks.client_work import CLIENT_WORK
from antiphon.tasks.views import CLIENT_VIEWS

FAULTY = Path(__file__).parents[1] / "faulty.py"
ALGORITHM = "runs.fedavg.algorithm"
CLIENT = "antiphon.clients.worker.refuse_nonfinite"
KEEP = "antiphon.clients.states.ClientStates.write"
SYNC = "antiphon.clients.states.ClientStates.sync"
SAVE = "antiphon.records.checkpoint.save_file"
SCAFFOLD = ["=scaffold", ".local.lr=0.1", ".local.batch_seconds=1.0"]
PLAIN = ["=cautious", ".local.lr=0.1", ".local.batch_seconds=1.0", ".weighting=by_loss"]
INNER = [f".inner{setting}" for setting in PLAIN]
WRAPPED = {
    "rehearsed": ["=rehearsed", *INNER, ".local.steps=2", ".local.batch_seconds=1.0"],
    "self_trained": [
        "=self_trained",
        *INNER,
        ".labels.num_hypotheses=2",
        ".labels.width=3",
        ".teacher=current_model",
    ],
    "federated_pruning": ["=federated_pruning", *INNER, ".mask_every=1", ".fine_tune_from=3"],
    "twice": ["=twice", *INNER],
}


def settings(changes: Sequence[str]) -> list[str]:
    return [ALGORITHM + change for change in changes]


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the package is installed into."""
    return install(STRANGER, tmp_path_factory.mktemp("installed") / "packages")


class Runs:
    """Experiments in folders of their own, as the command line runs them."""

    def __init__(self, world: World, folder: Path, packages: Sequence[Path]) -> None:
        self.corpus, self.folder, self.packages = world.corpus, folder, packages

    def run(self, name: str, changes: Sequence[str], *more: str, fault: Fault | None = None) -> Done:
        arguments = run_arguments(self.corpus, self.folder / name, *more, settings=settings(changes))
        return in_fork(arguments, self.folder / "log", fault, self.packages)

    def finished(self, name: str, changes: Sequence[str], *more: str) -> dict[str, Any]:
        done = self.run(name, changes, *more)
        assert done.code == 0, done.output
        return self.files(name)

    def files(self, name: str) -> dict[str, Any]:
        return all_files(self.folder / name)


def all_files(out: Path) -> dict[str, Any]:
    """All that must not depend on how often an experiment was stopped; what clients keep, too."""
    kept = sorted((out / "fedavg" / "clients").rglob("*.*"))
    return {**kept_files(out), **{str(file.relative_to(out)): file.read_bytes() for file in kept}}


@pytest.fixture
def runs(world: World, package: Path, tmp_path: Path) -> Runs:
    return Runs(world, tmp_path, [package])


@pytest.fixture(scope="session")
def expected(world: World, package: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What an undisturbed run leaves."""
    return Runs(world, tmp_path_factory.mktemp("undisturbed"), [package]).finished("out", PLAIN)


# --- Chosen ---------------------------------------------------------------------------------------


def test_an_installed_package_is_found_by_its_entry_points(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "cautious" not in ALGORITHMS
    monkeypatch.syspath_prepend(str(package))
    assert {"cautious", "twice", "fed_avg"} <= set(ALGORITHMS)
    assert {"by_loss", "uniform"} <= set(WEIGHTINGS)
    assert {"cautious.probe", "cautious.train", "train"} <= set(CLIENT_WORK)
    assert {"halved", "submodel_view"} <= set(CLIENT_VIEWS)
    experiment = config.override(recipe("fedavg"), settings(WRAPPED["twice"]))
    algorithm = config.to_dict(experiment)["runs"]["fedavg"]["algorithm"]
    assert list(algorithm["twice"]["inner"]) == ["cautious"]
    assert algorithm["twice"]["inner"]["cautious"]["weighting"] == {"by_loss": {"power": 0.5}}


def test_without_an_installed_package_the_module_names_it(tmp_path: Path) -> None:
    changes = ["=cautious:Twice", ".inner=cautious:Cautious", ".inner.weighting=cautious:ByLoss"]
    experiment = config.override(recipe("fedavg"), settings([*changes, ".inner.weighting.power=2.0"]))
    algorithm = config.to_dict(experiment)["runs"]["fedavg"]["algorithm"]
    inner = algorithm["cautious:Twice"]["inner"]["cautious:Cautious"]
    assert inner["weighting"] == {"cautious:ByLoss": {"power": 2.0}}
    (tmp_path / "settings.yaml").write_text(json.dumps({"recipe": "fedavg", **config.to_dict(experiment)}))
    assert recipe(str(tmp_path / "settings.yaml")).runs == experiment.runs


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("=cautius", "unknown choice 'cautius'; did you mean 'cautious'?"),
        ("=cautious:Careless", "cannot import 'cautious:Careless'"),
        ("=no_such_package:Cautious", "No module named 'no_such_package'"),
        ("=cautious:ByLoss", "it has no init, round"),
        ("=cautious:probe", "it has no init, round, dataclass fields"),
        ("=twice", "twice needs inner"),
    ],
)
def test_what_cannot_be_used_is_refused_before_the_corpus_is_opened(
    change: str, message: str, runs: Runs
) -> None:
    arguments = run_arguments(Path("no-corpus"), runs.folder / "out", settings=settings([change]))
    done = in_fork(arguments, runs.folder / "log", packages=runs.packages)
    assert done.code == 2
    assert message in " ".join(done.output.split())
    assert not (runs.folder / "out").exists()


def test_however_it_is_chosen_it_comes_to_the_same_bits(runs: Runs, expected: dict[str, Any]) -> None:
    """By `--set` and by YAML, with the module in place of the name of an entry point."""
    by_path = runs.finished(
        "path",
        ["=cautious:Cautious", *PLAIN[1:3], ".weighting=cautious:ByLoss", ".weighting.power=0.5"],
    )
    file = runs.folder / "settings.yaml"
    file.write_text(
        "recipe: fedavg\n"
        "runs:\n"
        "  fedavg:\n"
        "    algorithm:\n"
        "      cautious:Cautious: {local: {lr: 0.1, batch_seconds: 1.0}, weighting: cautious:ByLoss}\n"
    )
    arguments = run_arguments(runs.corpus, runs.folder / "yaml")
    arguments[1] = str(file)
    done = in_fork(arguments, runs.folder / "log")  # not installed: the module is all there is
    assert done.code == 0, done.output
    written = json.loads((runs.folder / "yaml" / "experiment.json").read_text())["config"]["runs"]["fedavg"]
    assert list(written["algorithm"]) == ["cautious:Cautious"]
    assert by_path == runs.files("yaml") == expected


def test_the_journal_has_every_client_with_both_of_its_tasks(runs: Runs, expected: dict[str, Any]) -> None:
    entries = [json.loads(line) for line in expected["fedavg/journal.jsonl"].splitlines()]
    model = safetensors.torch.load(expected["fedavg/model/model.safetensors"])
    size = sum(4 * parameter.numel() for parameter in model.values())
    for entry in entries[1:]:
        assert list(entry["clients"]) == entry["cohort"]
        assert sum(stats["weight"] for stats in entry["clients"].values()) == pytest.approx(1.0)
        for stats in entry["clients"].values():
            assert stats["tasks"] == 2
            assert stats["state_bytes"] == size  # the momentum is as large as the model
        # The model goes to each of three clients twice, and comes back once, in half precision.
        assert 6 * size < entry["bytes_down"] < 6 * size + 6 * 500
        assert entry["bytes_up"] == 3 * size // 2


# --- Killed and resumed ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault",
    [
        Fault(KEEP, 5),
        Fault(KEEP, 8, before=False),
        Fault(SYNC, 2, before=False),
        Fault(SAVE, 6, before=False),
    ],
    ids=lambda fault: f"{fault.place.rpartition('.')[2]} {fault.number}",
)
def test_a_kill_and_a_resume_give_the_undisturbed_run(
    fault: Fault, runs: Runs, expected: dict[str, Any]
) -> None:
    killed = runs.run("out", PLAIN, fault=fault)
    assert killed.code == -signal.SIGKILL, killed.output
    assert runs.finished("out", PLAIN, "--resume") == expected


@pytest.mark.parametrize("wrapper", WRAPPED)
def test_wrapped_killed_and_resumed(wrapper: str, runs: Runs) -> None:
    changes = WRAPPED[wrapper]
    half_labelled = ["--set", "runs.fedavg.labelled=0.5"] if wrapper == "self_trained" else []
    undisturbed = runs.finished("undisturbed", changes, *half_labelled)
    killed = runs.run("killed", changes, *half_labelled, fault=Fault(KEEP, 8, before=False))
    assert killed.code == -signal.SIGKILL, killed.output
    assert runs.finished("killed", changes, "--resume", *half_labelled) == undisturbed


class Process:
    """`python -m antiphon …` with the package on its path, killed at a real moment."""

    def __init__(self, package: Path) -> None:
        self.environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(package), os.environ.get("PYTHONPATH", "")]),
        }

    def run(self, command: Sequence[str]) -> Done:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=300, env=self.environment, check=False
        )
        return Done(done.returncode, done.stdout + done.stderr)

    def kill_when(self, exists: Path, command: Sequence[str]) -> int:
        """Kill the process as soon as a file is there."""
        with subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=self.environment
        ) as process:
            deadline = time.monotonic() + 300
            while not exists.exists() and process.poll() is None:
                assert time.monotonic() < deadline, "the run never got there"
                time.sleep(0.002)
            process.kill()
        return process.returncode


def test_the_real_command_killed_at_a_real_moment_and_resumed(
    world: World, package: Path, tmp_path: Path, expected: dict[str, Any]
) -> None:
    out, process = tmp_path / "out", Process(package)
    arguments = run_arguments(world.corpus, out, "--resume", settings=settings(PLAIN))
    command = [sys.executable, "-m", "antiphon", *arguments]
    assert process.kill_when(out / "fedavg" / "clients", command) == -signal.SIGKILL
    assert not (out / "fedavg" / "model").exists()
    done = process.run(command)
    assert done.code == 0, done.output
    assert all_files(out) == expected


def step(rank: int, place: str, number: int, **more: Any) -> dict[str, Any]:
    return {"rank": rank, "fault": {"place": place, "number": number, **more}}


@pytest.mark.parametrize(
    ("changes", "faults"),
    [
        # In the middle of a round, and when clients have kept something and half a checkpoint is written.
        pytest.param(*(PLAIN, [step(1, CLIENT, 7), step(0, SAVE, 1, before=False)]), marks=pytest.mark.slow),
        # While a client keeps something, and when all have but no checkpoint knows of it.
        (SCAFFOLD, [step(1, KEEP, 2), step(0, SYNC, 2, before=False)]),
    ],
    ids=["cautious", "scaffold"],
)
def test_two_workers_are_killed_one_after_the_other_and_resumed(
    changes: Sequence[str], faults: Sequence[Mapping[str, Any]], runs: Runs, package: Path
) -> None:
    expected = runs.finished("one process", changes)
    plan, out, process = runs.folder / "plan.json", runs.folder / "out", Process(package)
    plan.write_text(json.dumps(faults))
    more = ("--resume", "--workers", "2", "--ordered")
    arguments = run_arguments(runs.corpus, out, *more, settings=settings(changes))
    command = [sys.executable, str(FAULTY), str(plan), *arguments]
    for _ in faults:
        killed = process.run(command)
        assert killed.code == 4, killed.output
        assert "The last checkpoint is intact" in " ".join(killed.output.split())
    done = process.run(command)
    assert done.code == 0, done.output
    assert len(list(runs.folder.glob("plan-*-happened"))) == len(faults)
    assert all_files(out) == expected
    assert len(read(out / "fedavg" / "journal.jsonl")) == 5


def test_the_package_uses_nothing_but_the_public_vocabulary() -> None:
    """No algorithm, no client, no pool of antiphon's own."""
    source = (STRANGER / "cautious.py").read_text()
    modules = set(re.findall(r"^from (antiphon[\w.]*) import", source, re.MULTILINE))
    folders = {".".join(module.split(".")[:2]) for module in modules}
    assert folders == {"antiphon.core", "antiphon.server", "antiphon.tasks"}
