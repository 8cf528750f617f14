"""The server of a federation: keeps a carrier running, and moves messages to sites and back."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from antiphon.core import Stopped
from antiphon.federation.engine_process import EngineProcess, LocalSocket, keep_memory
from antiphon.federation.kits import Kit
from antiphon.pools.remote_link import Channel, SocketLink
from antiphon.pools.remote_messages import Message, WireError, head_of, pack, reason_in

START = 120.0  # seconds that the carrier has to start
MAX_NAME = 500  # characters of the name of a client
Notify = Callable[[str], None]


@dataclass(frozen=True)
class Announcement:
    """What a site says about one of its clients before a run: no more than this."""

    num_utterances: int
    seconds: float

    @property
    def size(self) -> int:
        return self.num_utterances


class Sized(Protocol):
    """What is announced about a client; `size` is the number of its utterances or lists."""

    @property
    def size(self) -> int: ...


About = TypeVar("About", bound=Sized)


@dataclass
class FederationServer:
    """Keeps NVFLARE or Flower running as long as it is open. If the process dies, it starts another."""

    kit: Kit
    link: SocketLink
    notify: Notify
    _socket: LocalSocket
    _closing: threading.Event
    _trouble: str = ""

    @classmethod
    @contextmanager
    def open(cls, kit: Kit, notify: Notify) -> Iterator[FederationServer]:
        keep_memory()
        server = cls(kit, SocketLink(), notify, LocalSocket(), threading.Event())
        thread = threading.Thread(target=server._keep_running, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server._closing.set()
            server.link.close()
            thread.join()
            server._socket.close()

    def _keep_running(self) -> None:
        process: EngineProcess | None = None
        pause = 1.0
        while not self._closing.is_set():
            if process is None or not process.is_alive():
                process = EngineProcess(self.kit, self._socket)
            reader = self._meet(process)
            if reader is None:
                self._closing.wait(pause)
                pause = min(60.0, 2 * pause)
                continue
            pause = 1.0
            while reader.is_alive() and not self._closing.is_set():
                reader.join(0.5)
            if not self._closing.is_set():
                process.end()
                self.notify(f"the process of {self.kit.carrier} has ended: starting another one")
        if process is not None:
            process.end()

    def _meet(self, process: EngineProcess) -> threading.Thread | None:
        """Wait until the relay of a process has connected; return the thread that reads from it."""
        end = time.monotonic() + START
        while time.monotonic() < end and process.is_alive() and not self._closing.is_set():
            if (stream := self._socket.accept(0.5)) is not None:
                return self.link.attach(Channel(stream))
        self._trouble = f"the process of {self.kit.carrier} did not start"
        return None

    def greet(
        self, seconds: float, enough: int, read: Callable[[str, Message], dict[str, About]], unit: str
    ) -> dict[str, dict[str, About]]:
        """Return the clients that each site announces. Waits for all sites, or this long for `enough`.

        read: returns the clients of a site from its answer. unit: the word for what clients have.
        """
        waiting = {self.link.push(site, pack({"verb": "hello"})): site for site in self.kit.sites}
        found: dict[str, dict[str, About]] = {}
        end = time.monotonic() + seconds
        while waiting and (time.monotonic() < end or len(found) < enough):
            if time.monotonic() > end + START:
                why = f" ({self._trouble})" if self._trouble else ""
                raise Stopped(
                    f"{len(found)} of {len(self.kit.sites)} sites have joined, {enough} needed{why}: "
                    f"see {self.kit.work / 'engine.log'}"
                )
            arrival = self.link.poll(0.2)
            if arrival is None or arrival.ticket not in waiting:
                continue
            site = waiting.pop(arrival.ticket)
            if arrival.message is None:
                time.sleep(0.2)
                waiting[self.link.push(site, pack({"verb": "hello"}))] = site
                continue
            found[site] = read(site, arrival.message)
            size = sum(client.size for client in found[site].values())
            self.notify(f"site {site} has joined: {len(found[site])} clients, {size} {unit}")
        for ticket in waiting:
            self.link.cancel(ticket)
        for site in waiting.values():
            self.notify(f"site {site} has not joined: the run begins without it")
        return {site: found[site] for site in self.kit.sites if site in found}


def read_announcements(site: str, message: Message) -> dict[str, Announcement]:
    """Return the clients in a site's answer to a greeting; Stopped if it cannot take part."""
    clients = read_head(site, message).get("clients")
    if not isinstance(clients, dict):
        raise Stopped(f"site {site!r} announces no clients")
    found = {}
    for client, about in clients.items():
        numbers = about if isinstance(about, list) and len(about) == 2 else [None, None]
        count, length = numbers
        if type(count) is not int or type(length) is not float or count < 1 or not 0 <= length < math.inf:
            raise Stopped(f"site {site!r} announces {client[:80]!r} with {about!r}, which makes no sense")
        if not client.startswith(("speaker/", "session/")) or not is_name(client):
            raise Stopped(
                f"site {site!r} announces {client[:80]!r}, which is not the name of a speaker or a session"
            )
        found[client] = Announcement(count, length)
    return found


def is_name(client: str) -> bool:
    """Return whether this can be the name of a client: it is printed, and a folder is named after it."""
    return 0 < len(client) <= MAX_NAME and client.isprintable()


def read_head(site: str, message: Message) -> dict[str, Any]:
    """Return the head of a site's answer to a greeting; Stopped if the site cannot take part."""
    try:
        head = head_of(message)
    except WireError as error:
        raise Stopped(f"site {site!r}: {error}") from None
    if head.get("verb") == "failure":
        raise Stopped(f"site {site!r}: {reason_in(head)}")
    return head
