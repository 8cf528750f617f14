"""What a power cut leaves: files are on the disk before they get their names, states before checkpoints.

The system calls of real commands are traced by strace (apt-get install strace).
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest
from command import SETTINGS, run_arguments
from system_calls import CALLS, Call, Disk, calls_in, is_whole, traced
from world import World, write_source

SCAFFOLD = [f"runs.scaffold.rounds.{setting}" for setting in ("total=3", "cohort=2", "save_every=2")]
NOT_NEEDED = re.compile(r"tensorboard|output\.txt|report\.html|RESULTS\.md")  # to resume, or to read results

if shutil.which("strace") is None:
    pytest.skip("strace is not installed: apt-get install strace", allow_module_level=True)


def follow(command: list[str], folder: Path, tmp_path: Path) -> list[str]:
    """Run a command that writes to a folder; return what would be lost if the power failed.

    It is checked when a file gets its name, whenever a checkpoint is complete, and at the end.
    """
    trace, lost = tmp_path / "trace", list[str]()
    done = traced([sys.executable, "-m", "antiphon", *command], trace, "-e", f"trace={CALLS}")
    if "ptrace" in done.stderr.lower():
        pytest.skip(f"strace cannot trace here: {done.stderr.splitlines()[0]}")
    assert done.returncode == 0, done.stderr
    disk, num_renames = Disk(tmp_path), 0
    for call in calls_in(trace):
        if call.name == "rename" and call.paths[-1].is_relative_to(folder) and is_whole(call.paths[-1]):
            num_renames += 1
            lost += [f"renamed too early: {path}" for path in disk.unsynced_data if _is_early(call, path)]
        disk.follow(call)
        if call.name == "rename" and call.paths[-1].name.startswith("round-"):
            lost += [f"at {call.paths[-1].name}: {one}" for one in disk.unsafe() if "round-" not in one]
    assert num_renames > 0
    print(f"{' '.join(command[:2])}: {num_renames} files and folders got their names", file=sys.stderr)
    lost += [f"at the end: {one}" for one in disk.unsafe()]
    return [one for one in lost if not NOT_NEEDED.search(one)]


def _is_early(call: Call, path: Path) -> bool:
    """The states of clients are flushed together, before the checkpoint; other files before their names."""
    return path.is_relative_to(call.paths[0]) and "clients" not in path.parts


def test_everything_that_a_resume_needs_is_on_the_disk_before_the_checkpoint(
    world: World, tmp_path: Path
) -> None:
    chosen = [setting for setting in SETTINGS if "fedavg" not in setting] + SCAFFOLD
    settings = [word for setting in chosen for word in ("--set", setting)]
    command = ["run", "scaffold", "--data", str(world.corpus), "--out", str(tmp_path / "out"), *settings]
    assert follow(command, tmp_path / "out", tmp_path) == []
    states = list((tmp_path / "out" / "scaffold" / "clients").rglob("*.safetensors"))
    assert states, "the clients have states"


def test_a_corpus_is_on_the_disk_before_it_has_its_name(tmp_path: Path) -> None:
    source = write_source(tmp_path / "source")
    command = ["corpus", "import", str(source), str(tmp_path / "made" / "corpus")]
    assert follow(command, tmp_path / "made", tmp_path) == []


def test_a_language_model_is_on_the_disk_before_it_has_its_name(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("a bad cab\na bead\n")
    for name in ("lm", "lm.arpa"):
        (tmp_path / f"made-{name}").mkdir()
        out = tmp_path / f"made-{name}" / name
        command = ["lm", "ngram", str(tmp_path / "text.txt"), "--out", str(out), "--order", "2"]
        assert follow(command, out.parent, tmp_path) == []


REMEMBERED = """
import sys
from datetime import datetime
from pathlib import Path
import numpy as np
from antiphon.federation.site_policy import Ledger
from antiphon.privacy.update_accounting import GaussianCost
from antiphon.privacy.update_ledger import SharedBudget, check_release
from antiphon.secure_aggregation.member import Revealed
from antiphon.secure_aggregation.record_files import RecordFiles

folder = Path(sys.argv[1])
SharedBudget(str(folder / "budgets" / "budget.json"), 8.0).spend("run", 1, GaussianCost(0.5), 1e-6)
check_release(folder / "run", bytes(32), 0, {"w": np.arange(3.0)})
record = RecordFiles(folder / "secure" / "run" / "ada")
for session in "12":
    record.add(Revealed(session, ("a", "b", "c", "d"), (({}, {}),) * 4), (session,))
Ledger(folder / "ledger.json").add(datetime(2026, 1, 2), 300, "run", "ada")
"""


def test_what_was_spent_and_revealed_is_on_the_disk_before_the_answer(tmp_path: Path) -> None:
    """What is forgotten could be spent, released or revealed again."""
    folder, trace = tmp_path / "made", tmp_path / "trace"
    folder.mkdir()
    done = traced([sys.executable, "-c", REMEMBERED, str(folder)], trace, "-e", f"trace={CALLS}")
    assert done.returncode == 0, done.stderr
    disk = Disk(folder)
    for call in calls_in(trace):
        disk.follow(call)
    names = {path.name for path in disk.names if path.suffix}
    assert {"budget.json", "releases.json", "used.json", "last.message", "ledger.json"} <= names
    assert disk.unsafe() == []


def test_a_trace_shows_a_file_that_was_renamed_before_it_was_on_the_disk(tmp_path: Path) -> None:
    """The test of the tests: what a careless program does is found."""
    script = "import os, sys; f = open('part', 'w'); f.write('x'); f.close(); os.rename('part', 'whole')"
    trace = tmp_path / "trace"
    done = traced(["env", "-C", str(tmp_path), sys.executable, "-c", script], trace, "-e", f"trace={CALLS}")
    assert done.returncode == 0, done.stderr
    disk = Disk(tmp_path)
    for call in calls_in(trace):
        disk.follow(Call(call.name, tuple(tmp_path / path for path in call.paths)))
    assert disk.unsafe() == ["data of whole", "name of whole"]


@pytest.mark.parametrize(("error", "advice"), [("EIO", "Check the disk"), ("ENOSPC", "Free some space")])
@pytest.mark.parametrize("when", [3, 20, 45])
def test_a_disk_that_fails_is_one_line_with_the_path(
    error: str, advice: str, when: int, world: World, tmp_path: Path
) -> None:
    """An fsync fails, which is where a disk tells of writes that went wrong."""
    command = [sys.executable, "-m", "antiphon", *run_arguments(world.corpus, tmp_path / "out")]
    done = traced(command, tmp_path / "trace", "-e", f"inject=fsync:error={error}:when={when}")
    said = " ".join(done.stderr.split())
    assert done.returncode == 2, said
    assert re.search(rf"error: could not write {re.escape(str(tmp_path))}\S+: .*{advice}", said), said
    assert "Traceback" not in said
    assert [path for path in (tmp_path / "out").rglob(".*") if path.name != ".lock"] == []
