"""What a process writes has another name until it is complete. That name says which process it is.

A file or folder NAME is written as .NAME.PURPOSE-MACHINE-PID-STARTED-NUMBER beside it. So the next process
that writes NAME knows what a killed process left there, and removes it.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import shutil
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

OLD = "old"  # the purpose of a folder that is about to be replaced
LONGEST = 180  # bytes of NAME that are part of another name: file systems allow 255 in all
_numbers = itertools.count()


@dataclass(frozen=True)
class Maker:
    """A process: its machine, its number there, and its start in clock ticks (empty where that is unknown).

    >>> Maker.this().has_ended
    False
    """

    machine: str
    pid: int
    started: str

    @classmethod
    def this(cls) -> Maker:
        return cls(_machine(), os.getpid(), process_state(os.getpid())[1])

    @property
    def has_ended(self) -> bool:
        """Return whether the process is known to have ended: one on another machine never is."""
        return self.machine == _machine() and has_ended(self.pid, self.started)

    def __str__(self) -> str:
        return f"process {self.pid}" + ("" if self.machine == _machine() else " on another machine")


def has_ended(pid: int, started: str) -> bool:
    """Return whether a process of this machine has ended; a later one may have the same number."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    state, began = process_state(pid)
    return state == "Z" or bool(started and began and began != started)


def process_state(pid: int) -> tuple[str, str]:
    """Return the state of a process and its start time, as Linux knows them; empty elsewhere."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return "", ""
    return fields[0], fields[19]


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold back signals that would raise an exception, until the end: for tidying up."""
    received: list[int] = []
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    raising = {number: handler for number, handler in handlers.items() if callable(handler)}
    if threading.current_thread() is not threading.main_thread():
        raising = {}  # handlers run in the main thread
    for number in raising:
        signal.signal(number, lambda number, frame: received.append(number))
    try:
        yield
    finally:
        for number, handler in raising.items():
            signal.signal(number, handler)
        if received:
            signal.raise_signal(received[0])


@cache
def _machine() -> str:
    """Return a short name of this machine. A container that numbers its processes itself has its own."""
    try:
        numbering = os.readlink("/proc/self/ns/pid")
    except OSError:
        numbering = ""
    return hashlib.sha256(f"{socket.gethostname()} {numbering}".encode()).hexdigest()[:8]


def beside(path: Path, purpose: str) -> Path:
    """Return a new name beside a path for what this process is about to write there."""
    maker = Maker.this()
    return path.with_name(
        f"{_prefix(path)}{purpose}-{maker.machine}-{maker.pid}-{maker.started}-{next(_numbers)}"
    )


def unfinished(path: Path) -> Iterator[tuple[Path, str, Maker]]:
    """Yield what processes have written beside a path, with the purpose and the process; newest first."""
    prefix, found = _prefix(path), []
    if not path.parent.is_dir():
        return
    for name in os.listdir(path.parent):
        if name.startswith(prefix) and (
            match := re.fullmatch(r"([a-z]+)-([0-9a-f]{8})-(\d+)-(\d*)-\d+", name[len(prefix) :])
        ):
            with suppress(FileNotFoundError):  # its process has just finished it
                changed = path.with_name(name).lstat().st_ctime_ns
                found.append(
                    (changed, path.with_name(name), match[1], Maker(match[2], int(match[3]), match[4]))
                )
    for _, one, purpose, maker in sorted(found, key=lambda item: -item[0]):
        yield one, purpose, maker


def tidy(path: Path) -> None:
    """Remove what processes that have ended left beside a path.

    A folder that was moved away and never replaced is put back.
    """
    for leftover, purpose, maker in unfinished(path):
        if not maker.has_ended:
            continue
        tidy(leftover)  # what was being made for it
        with suppress(FileNotFoundError):  # another process tidies, too
            if purpose == OLD and not path.exists():
                os.rename(leftover, path)
            elif leftover.is_dir():
                shutil.rmtree(leftover, ignore_errors=True)
            else:
                leftover.unlink()


def _prefix(path: Path) -> str:
    return f".{short_name(path.name, LONGEST)}."


def short_name(name: str, longest: int) -> str:
    """Return a name of at most `longest` bytes: a longer one ends with a digest of the whole instead.

    >>> short_name("ada", 40), short_name("a" * 50, 40)
    ('ada', 'aaaaaaaaaaaaaaaaaaaaaaa~160b4e433e384e05')
    """
    data = name.encode(errors="surrogateescape")
    if len(data) <= longest:
        return name
    digest = f"~{hashlib.sha256(data).hexdigest()[:16]}"
    return data[: longest - len(digest)].decode(errors="ignore") + digest
