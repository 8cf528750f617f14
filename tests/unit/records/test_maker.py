"""What processes leave beside a file or folder when they are killed, and who removes it: real processes."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from antiphon.records.files import replace_file
from antiphon.records.folders import new_folder
from antiphon.records.maker import Maker, beside, short_name, tidy, unfinished, uninterrupted

MAKE = """
import os, signal, sys
from pathlib import Path
from antiphon.records.folders import new_folder
destination, rename, moment = Path(sys.argv[1]), os.rename, int(sys.argv[2])
renames = 0
def killed_at(source, target):
    global renames
    renames += 1
    if renames == moment:
        os.kill(os.getpid(), signal.SIGKILL)
    rename(source, target)
os.rename = killed_at
with new_folder(destination) as folder:
    (folder / "file").write_text("new")
    print("making", flush=True)
    if moment == 0:
        sys.stdin.read()
"""
NESTED = """
import sys
from pathlib import Path
from antiphon.records.folders import new_folder
with new_folder(Path(sys.argv[1])) as outer, new_folder(outer) as inner:
    print("making", flush=True)
    sys.stdin.read()
"""
PART = """
import sys
from pathlib import Path
from antiphon.records.files import replace_file
def write(part):
    part.write_text("half")
    print("making", flush=True)
    sys.stdin.read()
replace_file(Path(sys.argv[1]), write)
"""


@contextmanager
def another_process(script: str, path: Path, moment: int = 0) -> Iterator[subprocess.Popen[str]]:
    """A process that writes until its input is closed, or kills itself at its n-th rename."""
    command = [sys.executable, "-c", script, str(path), str(moment)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "making\n"
        yield process


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("script", [MAKE, NESTED, PART], ids=["folder", "folder in a folder", "file"])
def test_what_a_killed_process_left_is_removed_by_the_next_one(script: str, tmp_path: Path) -> None:
    with another_process(script, tmp_path / "made") as process:
        process.kill()
    assert any(name.startswith(".") for name in names(tmp_path))
    assert "made" not in names(tmp_path)
    with new_folder(tmp_path / "made") as folder:
        (folder / "file").touch()
    assert names(tmp_path) == ["made"]


def test_a_file_is_written_in_place_of_what_a_killed_process_left(tmp_path: Path) -> None:
    with another_process(PART, tmp_path / "made") as process:
        process.kill()
    replace_file(tmp_path / "made", lambda part: part.write_text("whole"))
    assert names(tmp_path) == ["made"]
    assert (tmp_path / "made").read_text() == "whole"


def test_a_folder_that_another_process_is_making_is_refused_and_left_alone(tmp_path: Path) -> None:
    with another_process(MAKE, tmp_path / "made") as process:
        before = names(tmp_path)
        with (
            pytest.raises(ValueError, match=rf"made is being made by process {process.pid}: wait"),
            new_folder(tmp_path / "made"),
        ):
            pass
        assert names(tmp_path) == before
    assert process.returncode == 0
    assert (tmp_path / "made" / "file").read_text() == "new"
    assert names(tmp_path) == ["made"]


def test_of_several_processes_that_make_the_same_folder_the_first_to_finish_makes_it(tmp_path: Path) -> None:
    with new_folder(tmp_path / "made", several=True) as folder:
        (folder / "file").write_text("second")
        with another_process(MAKE.replace("(destination)", "(destination, several=True)"), tmp_path / "made"):
            pass
    assert (tmp_path / "made" / "file").read_text() == "new"
    assert names(tmp_path) == ["made"]


def test_a_folder_that_appears_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    def make() -> None:
        with new_folder(tmp_path / "made"):
            (tmp_path / "made").mkdir()
            (tmp_path / "made" / "precious").touch()

    with pytest.raises(ValueError, match="was made by another process meanwhile"):
        make()
    assert names(tmp_path) == ["made"]
    assert names(tmp_path / "made") == ["precious"]


@pytest.mark.parametrize("finder", [tidy, lambda path: new_folder(path).__enter__()], ids=["tidy", "new"])
def test_the_only_copy_is_put_back_after_a_kill_between_the_two_renames(
    finder: object, tmp_path: Path
) -> None:
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "file").write_text("old")
    with another_process(MAKE, tmp_path / "made", moment=2) as process:
        pass
    assert process.returncode == -signal.SIGKILL
    assert "made" not in names(tmp_path)
    assert callable(finder)
    finder(tmp_path / "made")
    assert (tmp_path / "made" / "file").read_text() == "old"
    assert [name for name in names(tmp_path) if not name.startswith(".made.making-")] == ["made"]


def test_the_old_copy_is_removed_if_the_new_one_has_its_name(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "file").write_text("old")
    with another_process(MAKE, tmp_path / "made", moment=2):
        pass
    (tmp_path / "made").mkdir()
    tidy(tmp_path / "made")
    assert names(tmp_path) == ["made"]
    assert names(tmp_path / "made") == []


def test_leftovers_of_others_stay(tmp_path: Path) -> None:
    ours = beside(tmp_path / "made", "making")
    match = re.fullmatch(r"\.made\.making-(\w{8})-(\d+)-(\d+)-(\d+)", ours.name)
    assert match
    machine, pid, started, _ = match.groups()
    assert Maker.this() == Maker(machine, os.getpid(), started)
    kept = [
        ours.name,  # this process, which runs
        f".made.making-00000000-{pid}-1-0",  # another machine: nobody here knows
        ".made.making-1a2b3c4d",  # another version of antiphon, whose process is unknown
        ".made.txt",
        f".other.making-{machine}-{pid}-1-0",
    ]
    gone = [f".made.making-{machine}-{pid}-1-0"]  # an earlier process with the same number
    for name in [*kept, *gone]:
        (tmp_path / name).mkdir()
    assert {path.name for path, _, _ in unfinished(tmp_path / "made")} == {*kept[:2], *gone}
    tidy(tmp_path / "made")
    assert names(tmp_path) == sorted(kept)


def test_a_signal_waits_until_all_is_tidied_up() -> None:
    tidied: list[str] = []

    def clean() -> None:
        with uninterrupted():
            os.kill(os.getpid(), signal.SIGINT)
            tidied.append("first")
            os.kill(os.getpid(), signal.SIGINT)
            tidied.append("second")

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        clean()
    assert tidied == ["first", "second"]
    assert signal.getsignal(signal.SIGINT) == before


def test_a_signal_while_a_folder_is_removed_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove = shutil.rmtree

    def interrupted(path: Path, ignore_errors: bool = False) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        remove(path, ignore_errors)

    def make() -> None:
        with new_folder(tmp_path / "made") as folder:
            (folder / "file").touch()
            raise ValueError("no space")

    monkeypatch.setattr(shutil, "rmtree", interrupted)
    with pytest.raises(KeyboardInterrupt):
        make()
    assert names(tmp_path) == []


def test_a_destination_with_a_long_name_is_made(tmp_path: Path) -> None:
    destination = tmp_path / ("名" * 85)
    with new_folder(destination) as folder:
        assert len(folder.name.encode()) <= 255
    assert names(tmp_path) == [destination.name]


def test_short_names_stay_and_long_ones_differ() -> None:
    assert short_name("é" * 20, 40) == "é" * 20
    first, second = (short_name("é" * 30 + end, 40) for end in "ab")
    assert first != second
    assert len(first.encode()) <= 40
    assert first.startswith("é" * 11 + "~")
