"""The server of a federation: starts NVFLARE, keeps a job running, and moves messages to sites and back."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from antiphon.core import Stopped
from antiphon.federation.engine_process import EngineProcess, LocalSocket, ask_engine
from antiphon.federation.kits import RELAY, Kit
from antiphon.pools.remote_link import Channel, SocketLink
from antiphon.pools.remote_messages import Message, WireError, head_of, pack

START = 120.0  # seconds that NVFLARE has to start a job
END = 2.0  # seconds in which sites hear that a job has ended
Notify = Callable[[str], None]


@dataclass(frozen=True)
class Announcement:
    """What a site says about one of its clients before a run: no more than this."""

    num_utterances: int
    seconds: float


@dataclass
class FederationServer:
    """Keeps a job running as long as it is open. If NVFLARE or its job dies, it starts another."""

    kit: Kit
    link: SocketLink
    notify: Notify
    _socket: LocalSocket
    _closing: threading.Event
    _ready: threading.Event
    _trouble: str = ""

    @classmethod
    @contextmanager
    def open(cls, kit: Kit, notify: Notify) -> Iterator[FederationServer]:
        server = cls(kit, SocketLink(), notify, LocalSocket(), threading.Event(), threading.Event())
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
            reader = self._start_job(process)
            if reader is None:
                self._closing.wait(pause)
                pause = min(60.0, 2 * pause)
                continue
            pause = 1.0
            self._ready.set()
            while reader.is_alive() and not self._closing.is_set():
                reader.join(0.5)
            if not self._closing.is_set():
                self.notify("the job of the federation has ended: starting another one")
        if process is not None:
            if self._ready.is_set() and process.is_alive():
                time.sleep(END)
            process.end()

    def _start_job(self, process: EngineProcess) -> threading.Thread | None:
        """Submit a job and wait until its relay is here; return the thread that reads from it."""
        end = time.monotonic() + START
        job = _write_job(self.kit.work / "job", self.kit.sites)
        # Flower has no jobs: its process connects by itself.
        answer: Mapping[str, Any] = {"error": "not asked"} if self.kit.carrier == "nvflare" else {}
        while "error" in answer and time.monotonic() < end and process.is_alive():
            if self._closing.wait(0.5):
                return None
            answer = ask_engine(self.kit, "submit", str(job))
        while time.monotonic() < end and process.is_alive() and not self._closing.is_set():
            if (stream := self._socket.accept(0.5)) is not None:
                return self.link.attach(Channel(stream))
        self._trouble = str(answer.get("error", "the job did not start"))
        return None

    def greet(self, seconds: float, enough: int) -> dict[str, dict[str, Announcement]]:
        """Return the clients that each site announces. Waits for all sites, or this long for `enough`."""
        waiting = {self.link.push(site, pack({"verb": "hello"})): site for site in self.kit.sites}
        found: dict[str, dict[str, Announcement]] = {}
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
            found[site] = read_announcements(site, arrival.message)
            size = sum(client.num_utterances for client in found[site].values())
            self.notify(f"site {site} has joined: {len(found[site])} clients, {size} utterances")
        for ticket in waiting:
            self.link.cancel(ticket)
        for site in waiting.values():
            self.notify(f"site {site} has not joined: the run begins without it")
        return found


def read_announcements(site: str, message: Message) -> dict[str, Announcement]:
    """Return the clients in a site's answer to a greeting; Stopped if it cannot take part."""
    try:
        head = head_of(message)
    except WireError as error:
        raise Stopped(f"site {site!r}: {error}") from None
    if head.get("verb") == "failure":
        raise Stopped(f"site {site!r}: {head.get('reason')}")
    clients = head.get("clients")
    if not isinstance(clients, dict):
        raise Stopped(f"site {site!r} announces no clients")
    found = {}
    for client, about in clients.items():
        numbers = about if isinstance(about, list) and len(about) == 2 else [None, None]
        count, length = numbers
        if type(count) is not int or type(length) is not float or count < 1 or not math.isfinite(length):
            raise Stopped(f"site {site!r} announces {client[:80]!r} with {about!r}, which makes no sense")
        if not client.startswith("speaker/"):
            raise Stopped(f"site {site!r} announces {client[:80]!r}, which is not the name of a speaker")
        found[client] = Announcement(count, length)
    return found


def _write_job(folder: Path, sites: tuple[str, ...]) -> Path:
    """Write the job that NVFLARE runs: configuration only, no code."""
    waits = {"get_task_timeout": 300.0, "submit_task_result_timeout": 300.0}
    executor = {"tasks": ["work"], "executor": {"path": f"{RELAY}.SiteRelay"}}
    workflow = {"id": "relay", "path": f"{RELAY}.ServerRelay"}
    files = {
        "meta.json": {
            "name": "antiphon",
            "resource_spec": {},
            "min_clients": 1,
            "deploy_map": {"app_server": ["server"], "app_site": list(sites)},
        },
        "app_server/config/config_fed_server.json": {
            "format_version": 2,
            "server": {"task_request_interval": 0.05},
            "workflows": [workflow],
        },
        "app_site/config/config_fed_client.json": {"format_version": 2, **waits, "executors": [executor]},
    }
    for name, contents in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(contents))
    return folder
