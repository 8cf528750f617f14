"""The lock of a folder, held, refused and taken over by real processes."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from antiphon.records import lock
from antiphon.records.lock import LOCK, Locked, lock_descriptors, locked

HOLD = """
import sys
from pathlib import Path
from antiphon.records.lock import locked
with locked(Path(sys.argv[1])):
    print("locked", flush=True)
    sys.stdin.read()
"""


@contextmanager
def another_process(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the lock until its input is closed."""
    command = [sys.executable, "-c", HOLD, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        yield process


def write_holder(folder: Path, **changes: object) -> None:
    """Write the lock file of this process, with changes, as if it had been left there."""
    with locked(folder):
        body = json.loads((folder / LOCK).read_text())
    folder.mkdir(exist_ok=True)
    (folder / LOCK).write_text(json.dumps({**body, **changes}))


def test_a_second_process_is_refused_until_the_first_has_ended(tmp_path: Path) -> None:
    with another_process(tmp_path) as process:
        files = {path: path.read_bytes() for path in tmp_path.iterdir()}
        with pytest.raises(Locked, match=rf"process {process.pid} on \S+ since \d{{4}}-.* \(-c .*wait"):
            locked(tmp_path).__enter__()
        assert {path: path.read_bytes() for path in tmp_path.iterdir()} == files
    assert process.returncode == 0
    with locked(tmp_path):
        pass


def test_the_lock_of_a_killed_process_is_taken_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with another_process(tmp_path) as process:
        process.kill()
    assert (tmp_path / LOCK).exists()
    with locked(tmp_path):
        assert json.loads((tmp_path / LOCK).read_text())["pid"] == os.getpid()
        assert f"taking over the lock of {tmp_path}: process {process.pid}" in capsys.readouterr().err
        with pytest.raises(Locked):
            locked(tmp_path).__enter__()
    assert not (tmp_path / LOCK).exists()


def test_a_killed_process_that_nobody_has_waited_for_is_dead(tmp_path: Path) -> None:
    with another_process(tmp_path) as process:
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        with locked(tmp_path):
            pass


def test_a_later_process_with_the_same_number_does_not_hold_the_lock(tmp_path: Path) -> None:
    write_holder(tmp_path, started="1")
    with locked(tmp_path):
        pass


def test_the_lock_of_another_machine_is_never_taken_over(tmp_path: Path) -> None:
    write_holder(tmp_path, host="elsewhere", pid=1)
    with pytest.raises(Locked, match=r"process 1 on elsewhere .*cannot check.*remove .*\.lock"):
        locked(tmp_path).__enter__()
    (tmp_path / LOCK).unlink()
    with locked(tmp_path):
        pass


def test_a_process_that_was_killed_before_it_wrote_its_name_holds_nothing(tmp_path: Path) -> None:
    (tmp_path / LOCK).touch()
    with locked(tmp_path):
        pass


def test_processes_that_inherit_the_lock_hold_it_after_the_first_was_killed(tmp_path: Path) -> None:
    with locked(tmp_path):
        child = subprocess.Popen(["sleep", "60"], pass_fds=lock_descriptors())
        left = (tmp_path / LOCK).read_text()
        os.link(tmp_path / LOCK, tmp_path / "left")
    try:
        os.rename(tmp_path / "left", tmp_path / LOCK)
        (tmp_path / LOCK).write_text(json.dumps({**json.loads(left), "started": "1"}))
        with pytest.raises(Locked, match="processes that were started by process"):
            locked(tmp_path).__enter__()
    finally:
        child.kill()
        child.wait()
    with locked(tmp_path):
        pass


@pytest.fixture(params=[errno.ENOLCK, errno.ENOTSUP, errno.EBADF], ids=errno.errorcode.get)
def no_flock(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system without flock, such as NFS without its lock service."""

    def unsupported(descriptor: int, operation: int) -> None:
        raise OSError(request.param, os.strerror(request.param))

    monkeypatch.setattr(fcntl, "flock", unsupported)
    monkeypatch.setattr(lock, "SETTLING", 0.05)


@pytest.mark.usefixtures("no_flock")
def test_without_flock_the_process_in_the_file_decides(tmp_path: Path) -> None:
    with another_process(tmp_path) as process, pytest.raises(Locked, match=f"process {process.pid} on "):
        locked(tmp_path).__enter__()
    with locked(tmp_path), pytest.raises(Locked, match=f"process {os.getpid()} on "):
        locked(tmp_path).__enter__()
    with another_process(tmp_path) as process:
        process.kill()
    with locked(tmp_path):
        assert json.loads((tmp_path / LOCK).read_text())["pid"] == os.getpid()
    write_holder(tmp_path, started="1")
    with locked(tmp_path):
        pass
    (tmp_path / LOCK).touch()
    with pytest.raises(Locked, match=r"a process without a name.*if it has ended, remove"):
        locked(tmp_path).__enter__()


@pytest.mark.usefixtures("no_flock")
def test_without_flock_a_lock_that_gets_its_name_late_is_not_taken_over(tmp_path: Path) -> None:
    write_holder(tmp_path)
    body = (tmp_path / LOCK).read_text()
    (tmp_path / LOCK).write_text("")
    writer = threading.Timer(0.02, lambda: (tmp_path / LOCK).write_text(body))
    writer.start()
    with pytest.raises(Locked, match=f"process {os.getpid()} on "):
        locked(tmp_path).__enter__()
    writer.join()


@pytest.mark.usefixtures("no_flock")
def test_without_flock_a_process_whose_new_lock_was_taken_for_a_stale_one_notices(tmp_path: Path) -> None:
    """Two processes find the lock of a dead one; the slower removes the new lock of the faster."""
    settle, settled = time.sleep, 0

    def replaced(seconds: float) -> None:
        nonlocal settled
        settled += 1
        if settled == 1:
            (tmp_path / LOCK).unlink()
            write_holder(tmp_path)
        settle(0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lock.time, "sleep", replaced)
        with pytest.raises(Locked, match=f"process {os.getpid()} on "):
            locked(tmp_path).__enter__()


RACE = """
import fcntl, os, sys, time
from pathlib import Path
from antiphon.records import lock
if sys.argv[2] == "no flock":
    def unsupported(descriptor, operation):
        raise OSError(95, "Operation not supported")
    fcntl.flock = unsupported
folder = Path(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
try:
    with lock.locked(folder):
        print("in", time.monotonic(), flush=True)
        time.sleep(0.7)
        print("out", time.monotonic(), flush=True)
except lock.Locked as error:
    print("refused", flush=True)
"""


@pytest.mark.parametrize("system", ["flock", "no flock"])
@pytest.mark.parametrize("has_stale", [False, True], ids=["new", "stale"])
def test_of_many_processes_at_once_one_has_the_lock(system: str, has_stale: bool, tmp_path: Path) -> None:
    if has_stale:
        write_holder(tmp_path, started="1")
    command = [sys.executable, "-c", RACE, str(tmp_path), system]
    pipe = subprocess.PIPE
    processes = [subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) for _ in range(5)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    said = []
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        out, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
        said.append(out.split())
    spans = sorted((float(words[1]), float(words[3])) for words in said if words[0] == "in")
    assert len(spans) >= 1
    assert all(end < begin for (_, end), (begin, _) in pairwise(spans)), spans
    assert sum(words == ["refused"] for words in said) == 5 - len(spans)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_which_nothing_was_written_is_removed(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), locked(tmp_path / "new" / "out"):
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    with locked(tmp_path / "new"):
        (tmp_path / "new" / "file").touch()
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["file"]
