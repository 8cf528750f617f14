"""The lock of a folder: one command writes to it at a time.

The file .lock names the process that holds the lock. What is assumed of the file system:

- Creating a file that must not exist (O_EXCL) is atomic. This holds for NFS since version 3.
- flock is optional. Where it works, the kernel knows when the holder and all processes that share its
  descriptor have ended. Elsewhere the process that the file names decides.

The lock of another machine is never taken over: whether its process still runs cannot be known here.
"""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from antiphon.records.files import make_folder, read_whole, saving
from antiphon.records.maker import has_ended, process_state, uninterrupted
from antiphon.records.reading import parse_json
from antiphon.records.schema import AtLeast, checked

LOCK = ".lock"
SETTLING = 0.5  # seconds after which a process sees what others wrote, where flock does not work
_descriptors: set[int] = set()  # open lock files of this process


class Locked(ValueError):
    """Another process writes to the folder."""


@dataclass(frozen=True)
class Holder:
    """A process that holds a lock. `started` is its start time in clock ticks; empty if it is unknown."""

    pid: Annotated[int, AtLeast(1)]
    host: str
    started: str
    since: str
    command: str

    @classmethod
    def this(cls) -> Holder:
        program = Path(sys.argv[0])
        name = program.parent.name if program.name == "__main__.py" else program.name  # python -m antiphon
        return cls(
            pid=os.getpid(),
            host=socket.gethostname(),
            started=process_state(os.getpid())[1],
            since=time.strftime("%Y-%m-%d %H:%M:%S %z"),
            command=shlex.join([name, *sys.argv[1:]])[:200],
        )

    @property
    def is_here(self) -> bool:
        return self.host == socket.gethostname()

    @property
    def has_ended(self) -> bool:
        """Return whether the process is known to have ended: one on another machine never is."""
        return self.is_here and has_ended(self.pid, self.started)

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} since {self.since} ({self.command})"


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
            make_folder(folder)
            with saving(path):
                descriptor = _acquire(path)
        _descriptors.add(descriptor)
        yield
    finally:
        with uninterrupted():
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
        return _holder(read_whole(folder / LOCK))
    except OSError:
        return None


def is_used(folder: Path) -> bool:
    """Return whether another process writes to a folder, as far as this machine can tell."""
    holder = holder_of(folder)
    return holder is not None and not holder.has_ended and holder.pid != os.getpid()


def lock_descriptors() -> tuple[int, ...]:
    """Return the open lock files. A process that inherits them holds the locks too, until it ends."""
    return tuple(_descriptors)


def _acquire(path: Path) -> int | None:
    """Make a lock file and return its descriptor; None if another process was faster: try again."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
        _remove_stale(path)
        return None
    except FileNotFoundError:  # another process has removed the empty folder
        return None
    try:
        has_flock = _flock(descriptor)
        os.write(descriptor, (json.dumps(asdict(Holder.this())) + "\n").encode())
        if has_flock is None:  # one that took this file for a stale one may just be replacing it
            time.sleep(SETTLING)
    except BaseException:
        path.unlink(missing_ok=True)
        os.close(descriptor)
        raise
    if has_flock is not False and _is_at(descriptor, path):
        return descriptor
    os.close(descriptor)
    return None


def _remove_stale(path: Path) -> None:
    """Remove the lock file of a process that has ended; raise `Locked` if it is not known to have ended."""
    try:
        descriptor = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return
    try:
        has_flock, holder = _flock(descriptor), _holder(os.pread(descriptor, 4096, 0))
        if holder is None and not has_flock:  # its process may be about to write
            time.sleep(SETTLING)
            holder = _holder(os.pread(descriptor, 4096, 0))
        if not _is_at(descriptor, path):
            return
        _check_ended(path, holder, has_flock)
        path.unlink(missing_ok=True)  # another process may do the same at once
    finally:
        os.close(descriptor)


def _check_ended(path: Path, holder: Holder | None, has_flock: bool | None) -> None:
    """Raise `Locked` unless the process that made a lock file is known to have ended; tell if it has."""
    is_here, is_dead = holder is None or holder.is_here, holder is not None and holder.has_ended
    if is_here and (has_flock or (is_dead and has_flock is None)):
        name = f"process {holder.pid}, which held it since {holder.since}," if holder else "its process"
        print(f"taking over the lock of {path.parent}: {name} has ended", file=sys.stderr)
    elif is_dead:
        starter = f"processes that were started by {holder}"
        raise Locked(f"{path.parent} is in use by {starter}. That one has ended: wait for them, too")
    elif is_here and holder:
        raise Locked(f"{path.parent} is in use by {holder}: wait until it has ended, or stop it")
    else:
        user, advice = holder or "a process without a name", f"if it has ended, remove {path}"
        raise Locked(
            f"{path.parent} is in use by {user}. This machine cannot check whether it runs: {advice}"
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


def _holder(content: bytes) -> Holder | None:
    """Return the process in a lock file; None if it was killed before it wrote its name."""
    try:
        holder: Holder = checked(Holder, parse_json(content))
    except ValueError:
        return None
    return holder
