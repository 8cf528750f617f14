"""A slow link that loses packets, between two network namespaces. It needs root, `ip` and /dev/net/tun.

Each namespace has the end of a tunnel. A thread carries IP packets from one to the other, as a poor line
does. It drops some at random, and those that find its queue full. It sends the others one after another at
its rate, and they arrive after a delay. The kernel needs no netem for this.
"""

from __future__ import annotations

import fcntl
import os
import random
import select
import shutil
import struct
import subprocess
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

TUN = "/dev/net/tun"
SET_INTERFACE, TUNNEL, NO_HEADER = 0x400454CA, 0x0001, 0x1000  # of linux/if_tun.h
MAX_PACKET = 65536


def ip(*words: str, check: bool = True) -> bool:
    return subprocess.run(["ip", *words], check=check, capture_output=True).returncode == 0


def missing() -> str:
    """Return why there can be no namespaces and no link here; "" if there can be."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return "network namespaces need root and the command ip"
    return "" if os.access(TUN, os.R_OK | os.W_OK) else f"a link between namespaces needs {TUN}"


@dataclass(frozen=True)
class Shape:
    """What a link does to packets, in each direction."""

    delay: float = 0.05  # seconds
    loss: float = 0.01  # share of packets
    rate: float = 10e6  # bits per second
    queue: int = 64 * 1500  # bytes that may wait; what comes then is dropped
    seed: int = 0


@dataclass
class Way:
    """One direction of a link. Times are seconds of any clock."""

    shape: Shape
    generator: random.Random
    carried: int = 0  # packets
    dropped: int = 0
    _free: float = 0.0  # when the line has sent all that waits
    _travelling: deque[tuple[float, bytes]] = field(default_factory=deque)  # when it arrives, and the packet

    def put(self, packet: bytes, now: float) -> None:
        waiting = max(0.0, self._free - now) * self.shape.rate / 8
        if self.generator.random() < self.shape.loss or waiting + len(packet) > self.shape.queue:
            self.dropped += 1
            return
        self._free = max(self._free, now) + len(packet) * 8 / self.shape.rate
        self.carried += 1
        self._travelling.append((self._free + self.shape.delay, packet))

    def arrived(self, now: float) -> Iterator[bytes]:
        while self._travelling and self._travelling[0][0] <= now:
            yield self._travelling.popleft()[1]

    def next_arrival(self) -> float | None:
        return self._travelling[0][0] if self._travelling else None


@contextmanager
def tunnel(namespace: str, name: str, address: str) -> Iterator[int]:
    """Give a namespace an interface; yield the file from which its packets are read, and to which they go."""
    file = os.open(TUN, os.O_RDWR | os.O_NONBLOCK)
    try:
        fcntl.ioctl(file, SET_INTERFACE, struct.pack("16sH", name.encode(), TUNNEL | NO_HEADER))
        ip("link", "set", name, "netns", namespace)
        ip("-n", namespace, "addr", "add", address, "dev", name)
        ip("-n", namespace, "link", "set", name, "up")
        yield file
    finally:
        os.close(file)


@contextmanager
def namespaces(*names: str, hosts: str = "") -> Iterator[None]:
    """Network namespaces with a loopback interface; `hosts` are lines of their /etc/hosts."""
    folders = [Path("/etc/netns") / name for name in names]
    try:
        for name, folder in zip(names, folders, strict=True):
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "hosts").write_text(f"127.0.0.1 localhost\n{hosts}")
        yield
    finally:
        for name, folder in zip(names, folders, strict=True):
            ip("netns", "del", name, check=False)
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def slow_link(ends: dict[str, str], shape: Shape) -> Iterator[tuple[Way, Way]]:
    """Join two namespaces; `ends` has the address of each. Yields the ways from the first and to it."""
    there, back = (Way(shape, random.Random(shape.seed + number)) for number in range(2))
    with ExitStack() as stack:
        near, far = (
            stack.enter_context(tunnel(space, f"slow-{number}", address))
            for number, (space, address) in enumerate(ends.items())
        )
        over = threading.Event()
        thread = threading.Thread(target=_carry, args=({near: (there, far), far: (back, near)}, over))
        thread.start()
        try:
            yield there, back
        finally:
            over.set()
            thread.join()


def _carry(ways: dict[int, tuple[Way, int]], over: threading.Event) -> None:
    while not over.is_set():
        soonest = min(
            (due for way, _ in ways.values() if (due := way.next_arrival()) is not None), default=None
        )
        wait = 0.1 if soonest is None else min(0.1, max(0.0, soonest - time.monotonic()))
        readable, _, _ = select.select(list(ways), [], [], wait)
        for source in readable:
            with suppress(BlockingIOError):
                while packet := os.read(source, MAX_PACKET):
                    ways[source][0].put(packet, time.monotonic())
        for way, sink in ways.values():
            for packet in way.arrived(time.monotonic()):
                with suppress(OSError):  # an interface that is down, or whose queue is full, loses it
                    os.write(sink, packet)
