"""A TCP proxy on the loopback interface that counts the bytes which pass through it, with the time."""

from __future__ import annotations

import bisect
import socket
import threading
import time
from contextlib import suppress


class CountingProxy:
    """Listens on a free port of 127.0.0.1, and passes connections on to another port there."""

    def __init__(self, target: int) -> None:
        self.target, self._lock = target, threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = int(self._listener.getsockname()[1])
        self._times, self._totals = [0.0], [0]
        threading.Thread(target=self._accept, daemon=True).start()

    def bytes_until(self, moment: float) -> int:
        """Return the bytes of both directions until a moment of `time.time()`."""
        with self._lock:
            return self._totals[bisect.bisect_right(self._times, moment) - 1]

    def _accept(self) -> None:
        while True:
            near, _ = self._listener.accept()
            try:
                far = socket.create_connection(("127.0.0.1", self.target))
            except OSError:  # the server has not started yet, or has ended
                near.close()
                continue
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._pass, args=(source, sink), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 20):
                sink.sendall(data)
                with self._lock:
                    self._times.append(time.time())
                    self._totals.append(self._totals[-1] + len(data))
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)
