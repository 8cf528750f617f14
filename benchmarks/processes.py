"""Programs that take turns: each does a few rounds when told to, and is measured from outside meanwhile.

Linux only: it reads /proc, and the processor clocks of other processes.
"""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Spell:
    """How long something took: by the clock on the wall, and on the processors (user and system)."""

    wall: float
    cpu: float


class Player:
    """A program that waits at a socket, `gate` in its folder, before its rounds and after them."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], folder: Path) -> None:
        self.folder, self.door = folder, socket.socket(socket.AF_UNIX)
        self.gate: socket.socket | None = None
        self.door.bind(str(folder / "gate"))
        self.door.listen()
        with (folder / "log").open("wb") as log:
            self.command = [*command, str(folder)]
            self.process = subprocess.Popen(
                self.command, env=environment, stdout=log, stderr=subprocess.STDOUT
            )

    def ready(self) -> None:
        """Waits until it stands at its gate."""
        self.door.settimeout(0.1)
        while self.process.poll() is None:
            try:
                self.gate = self.door.accept()[0]
            except TimeoutError:
                continue
            return self._reached()
        self._give_up()

    def turn(self) -> Spell:
        """Lets it play its rounds; what they took, in it and in all processes below it."""
        assert self.gate is not None, "it is not ready yet"
        cpu, wall = cpu_seconds(self.process.pid), time.perf_counter()
        self.gate.send(b"!")
        self._reached()
        return Spell(time.perf_counter() - wall, cpu_seconds(self.process.pid) - cpu)

    def finish(self) -> None:
        """Lets it write its results."""
        assert self.gate is not None, "it is not ready yet"
        self.gate.send(b"!")
        if self.process.wait() != 0:
            self._give_up()

    def end(self) -> None:
        """Whatever it is doing: with its gate gone it has nothing to wait for."""
        for end in (self.door, self.gate):
            if end is not None:
                end.close()
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait()

    def _reached(self) -> None:
        assert self.gate is not None, "it is not ready yet"
        if self.gate.recv(1) == b"":
            self._give_up()

    def _give_up(self) -> NoReturn:
        self.process.wait()
        log = (self.folder / "log").read_text(errors="replace")
        raise SystemExit(f"{' '.join(self.command)} failed:\n{log[-3000:]}")


@contextmanager
def started(command: Sequence[str], environment: Mapping[str, str]) -> Iterator[Player]:
    """Runs `command FOLDER`, and ends it whatever happens."""
    with tempfile.TemporaryDirectory() as folder:
        player = Player(command, environment, Path(folder))
        try:
            yield player
        finally:
            player.end()


def cpu_seconds(root: int) -> float:
    """Processor time so far of a process and of all below it, those that ended and were waited for too."""
    below: dict[int, list[int]] = {}
    waited: dict[int, int] = {}
    for process, parent, ticks in _processes():
        below.setdefault(parent, []).append(process)
        waited[process] = ticks
    total, waiting = 0.0, [root]
    while waiting:
        process = waiting.pop()
        waiting += below.get(process, [])
        total += waited.get(process, 0) / TICKS + own_cpu_seconds(process)
    return total


def own_cpu_seconds(process: int) -> float:
    """Of one process, all its threads, to the nanosecond; its clock's number is made as in the kernel."""
    try:
        return time.clock_gettime((~process << 3) | 2)
    except OSError:  # it has ended
        return 0.0


def _processes() -> Iterator[tuple[int, int, int]]:
    """Of every process: its number, its parent's, and the ticks of its children that ended."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                text = (entry / "stat").read_text()
            except OSError:  # it has ended
                continue
            fields = text.rpartition(")")[2].split()  # the name before it may hold anything
            yield int(entry.name), int(fields[1]), int(fields[13]) + int(fields[14])
