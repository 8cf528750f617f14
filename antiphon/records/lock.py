"""The lock of a folder: one command writes to it at a time.

The file .lock names the process that holds the lock. It is created atomically, also on network file systems,
and `flock` is held on it where the file system can: the kernel then knows when the holder and all processes
that share its descriptor have ended. A holder on another machine cannot be checked, so its lock is never
taken over.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shlex
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

LOCK = ".lock"
SETTLING = 0.5  # seconds after which a process sees what others wrote, where flock does not work
_descriptors: set[int] = set()  # open lock files of this process


class Locked(ValueError):
    """Another process writes to the folder."""


@dataclass(frozen=True)
class Holder:
    """A process that holds a lock. `started` is its start time in clock ticks; empty if it is unknown."""

    pid: int
    host: str
    started: str
    since: str
    command: str
    token: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} since {self.since} ({self.command})"

    @property
    def is_alive(self) -> bool:
        """Return whether the process runs on this machine: not a later one with the same number."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        state, started = _process_state(self.pid)
        return state != "Z" and (not self.started or started in ("", self.started))

    @property
    def has_ended(self) -> bool:
        """Return whether the process is known to have ended; one of another machine never is."""
        return self.host == socket.gethostname() and not self.is_alive


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, which is made if it is missing, and removed if it is still empty at the end.

    Raises `Locked` if another process holds it. The lock of a process that was killed is taken over.
    """
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    path = folder / LOCK
    descriptor = None
    try:
        while descriptor is None:
            folder.mkdir(parents=True, exist_ok=True)
            descriptor = _create(path)
            if descriptor is None:
                descriptor = _take_over(path)
        _descriptors.add(descriptor)
        yield
    finally:
        if descriptor is not None:
            _descriptors.discard(descriptor)
            if _is_at(descriptor, path):
                path.unlink()
            os.close(descriptor)
        with suppress(OSError):  # not empty, or used by another process
            for made in missing:
                made.rmdir()


def holder_of(folder: Path) -> Holder | None:
    """Return the process that a folder's lock names, which may have ended; None if there is none."""
    try:
        descriptor = os.open(folder / LOCK, os.O_RDONLY)
    except OSError:
        return None
    try:
        return _read(descriptor)
    finally:
        os.close(descriptor)


def is_used(folder: Path) -> bool:
    """Return whether another process writes to a folder, as far as this machine can tell."""
    holder = holder_of(folder)
    return holder is not None and not holder.has_ended and holder.pid != os.getpid()


def lock_descriptors() -> tuple[int, ...]:
    """Return the open lock files. A process that inherits them holds the locks too, until it ends."""
    return tuple(_descriptors)


def _create(path: Path) -> int | None:
    """Create a lock file; return its descriptor, or None if there is one."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
        return None
    if _flock(descriptor) is False:  # another process took the new file over, before it had a name in it
        os.close(descriptor)
        return None
    try:
        _write(descriptor, _this_process())
    except BaseException:
        path.unlink(missing_ok=True)
        os.close(descriptor)
        raise
    return descriptor


def _take_over(path: Path) -> int | None:
    """Return the descriptor of a dead process's lock file; None if it has gone. Refuse any other."""
    try:
        descriptor = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return None
    try:
        has_flock = _flock(descriptor)
        if not _is_at(descriptor, path):
            os.close(descriptor)
            return None
        holder = _read(descriptor)
        if holder is None and not has_flock:  # created a moment ago, by a process that is about to write
            time.sleep(SETTLING)
            holder = _read(descriptor)
        _refuse(path, holder, has_flock)
        name = f"process {holder.pid}, which held it since {holder.since}," if holder else "its process"
        print(f"taking over the lock of {path.parent}: {name} has ended", file=sys.stderr)
        process = _this_process()
        _write(descriptor, process)
        if has_flock is None:  # two processes may take it over at once: the last one that writes has it
            time.sleep(SETTLING)
            if (winner := _read(descriptor)) != process:
                raise Locked(f"{path.parent} is in use by {winner or 'another process'}")
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _refuse(path: Path, holder: Holder | None, has_flock: bool | None) -> None:
    """Raise `Locked` unless the holder is known to have ended."""
    remove = f"remove {path}"
    if holder is None:
        if has_flock:
            return
        raise Locked(f"{path.parent} is in use by a process without a name. If none is running, {remove}")
    if holder.host != socket.gethostname():
        raise Locked(
            f"{path.parent} is in use by {holder}. This machine cannot check whether that process still "
            f"runs: if it has ended, {remove}"
        )
    if holder.is_alive:
        raise Locked(f"{path.parent} is in use by {holder}: wait until it has ended, or stop it")
    if has_flock is False:
        raise Locked(
            f"{path.parent} is in use by processes that were started by {holder}. That one has ended: wait "
            "until they have ended too"
        )


def _flock(descriptor: int) -> bool | None:
    """Return whether this process has the file now; None where the file system has no flock."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _is_at(descriptor: int, path: Path) -> bool:
    """Return whether an open file is still the one at a path."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _read(descriptor: int) -> Holder | None:
    try:
        return Holder(**json.loads(os.pread(descriptor, 1 << 20, 0)))
    except (ValueError, TypeError):
        return None


def _write(descriptor: int, holder: Holder) -> None:
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, (json.dumps(asdict(holder)) + "\n").encode(), 0)


def _this_process() -> Holder:
    program = Path(sys.argv[0])
    name = program.parent.name if program.name == "__main__.py" else program.name  # python -m antiphon
    return Holder(
        pid=os.getpid(),
        host=socket.gethostname(),
        started=_process_state(os.getpid())[1],
        since=time.strftime("%Y-%m-%d %H:%M:%S %z"),
        command=shlex.join([name, *sys.argv[1:]])[:200],
        token=secrets.token_hex(8),
    )


def _process_state(pid: int) -> tuple[str, str]:
    """Return the state of a process and its start time, as Linux knows them; empty elsewhere."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return "", ""
    return fields[0], fields[19]
