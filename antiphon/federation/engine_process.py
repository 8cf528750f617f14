"""Starting and ending the processes of NVFLARE or Flower, and the socket through which they reach us."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from antiphon.federation.kits import Kit
from antiphon.pools.remote_link import PIECE, Channel

SOCKET = "ANTIPHON_SOCKET"  # in the environment of the carrier: the socket of the antiphon process
GRACE = 10.0  # seconds that a process has to end
# One message as large as a model follows the other. By default, the C library gives the memory of each back
# to the kernel, and fetches it again page by page, which takes longer than all else that is done with it.
KEPT, FREE, ARENAS = 2**30, 2**31 - 1, 1  # blocks up to KEPT stay; so much may be free; there is one heap
CARRIER = {  # settings of the carrier's processes
    "MALLOC_MMAP_THRESHOLD_": str(KEPT),
    "MALLOC_TRIM_THRESHOLD_": str(FREE),
    "MALLOC_ARENA_MAX": str(ARENAS),
    "NVFLARE_STREAMING_CHUNK_SIZE": str(PIECE),
    "NVFLARE_STREAMING_WINDOW_SIZE": str(16 * 2**20),  # of one message, so much may be on its way
    "NVFLARE_STREAMING_ACK_INTERVAL": str(4 * 2**20),
    "NVFLARE_STREAMING_READ_TIMEOUT": "60",
}


def keep_memory() -> None:
    """Let this process keep the memory of messages for the next ones. Without glibc, nothing happens."""
    with suppress(OSError, AttributeError):
        change = ctypes.CDLL(None).mallopt
        for setting, value in ((-3, KEPT), (-1, FREE), (-8, ARENAS)):  # their numbers in malloc.h
            change(setting, value)


class LocalSocket:
    """A socket that only processes of this user can reach."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="antiphon-"))  # mode 700; sockets need short paths
        self.path = self._folder / "socket"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
        self._listener.listen()

    def accept(self, seconds: float) -> socket.socket | None:
        """Return the next connection; None if there is none for this long, or if the socket is closed."""
        try:
            self._listener.settimeout(seconds)
            stream, _ = self._listener.accept()
        except OSError:
            return None
        stream.settimeout(None)
        return _with_room(stream)

    def close(self) -> None:
        self._listener.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def connect() -> Channel:
    """Connect a process of the carrier to the antiphon process that started it."""
    stream = socket.socket(socket.AF_UNIX)
    stream.connect(os.environ[SOCKET])
    return Channel(_with_room(stream))


def _with_room(stream: socket.socket) -> socket.socket:
    """Let two pieces wait in a socket: with less room, both ends would wait for each other more often."""
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * PIECE)
    return stream


class EngineProcess:
    """A server or a site of the carrier. It ends when this process ends, for any reason."""

    def __init__(self, kit: Kit, local: LocalSocket, settings: Mapping[str, str] = CARRIER) -> None:
        self.log = kit.work / "engine.log"
        descriptor = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        role = "server" if kit.is_server else "site"
        with os.fdopen(descriptor, "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", _module(kit), role, str(kit.workspace()), kit.name],
                env={**_environment(kit), **settings, SOCKET: str(local.path)},
                stdin=subprocess.PIPE,  # closes when this process ends
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C in a terminal is for this process
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(GRACE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def ask_engine(kit: Kit, command: str, *arguments: str, seconds: float = 60.0) -> dict[str, Any]:
    """Return what the server's carrier answers to a command of its administrator; {"error": …} if nothing."""
    folder = kit.folder / "admin" if kit.carrier == "nvflare" else kit.folder
    words: Sequence[str] = [sys.executable, "-m", _module(kit), command, str(folder), *arguments]
    try:
        done = subprocess.run(
            words, env=_environment(kit), stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds
        )
        answer: dict[str, Any] = json.loads(done.stdout.decode().splitlines()[-1])
    except (subprocess.TimeoutExpired, ValueError, IndexError):
        return {"error": "the server of this federation did not answer"}
    return answer


def _module(kit: Kit) -> str:
    return f"antiphon.federation.{kit.carrier}_process"


def _environment(kit: Kit) -> dict[str, str]:
    home = kit.work / "home"  # where carriers write
    home.mkdir(mode=0o700, exist_ok=True)
    return {**os.environ, "HOME": str(home), "OMP_NUM_THREADS": "1"}
