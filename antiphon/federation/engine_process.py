"""Starting and ending the processes of NVFLARE or Flower, and the socket through which they reach us."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from antiphon.federation.kits import Kit
from antiphon.pools.remote_link import Channel

SOCKET = "ANTIPHON_SOCKET"  # in the environment of the carrier: the socket of the antiphon process
GRACE = 10.0  # seconds that a process has to end


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
        return stream

    def close(self) -> None:
        self._listener.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def connect() -> Channel:
    """Connect a process of the carrier to the antiphon process that started it."""
    stream = socket.socket(socket.AF_UNIX)
    stream.connect(os.environ[SOCKET])
    return Channel(stream)


class EngineProcess:
    """A server or a site of the carrier. It and its jobs end with this process, whatever ends that."""

    def __init__(self, kit: Kit, local: LocalSocket) -> None:
        self.log = kit.work / "engine.log"
        descriptor = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        role = "server" if kit.is_server else "site"
        with os.fdopen(descriptor, "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", _module(kit), role, str(kit.workspace()), kit.name],
                env=_environment(kit) | {SOCKET: str(local.path)},
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
