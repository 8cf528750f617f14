"""A site as a service: keeps its carrier running, and answers what the server asks."""

from __future__ import annotations

import random
import threading
import time
from contextlib import suppress

from antiphon.federation.engine_process import EngineProcess, LocalSocket, keep_memory
from antiphon.federation.federation_site import Site
from antiphon.federation.kits import Kit
from antiphon.pools.remote_link import Channel


def serve(kit: Kit, site: Site, stop: threading.Event) -> None:
    """Answer what the server asks until `stop` is set. NVFLARE is started again whenever it ends."""
    keep_memory()
    local = LocalSocket()
    process: EngineProcess | None = None
    pause, started = 1.0, 0.0
    try:
        while not stop.is_set():
            if process is None or not process.is_alive():
                if process is not None:
                    site.notify(f"the connection has ended: starting it again in {pause:.0f} s")
                    stop.wait(pause * random.uniform(0.5, 1.5))
                    pause = 1.0 if time.monotonic() - started > 60 else min(60.0, 2 * pause)
                process, started = EngineProcess(kit, local), time.monotonic()
            stream = local.accept(0.5)
            if stream is not None:
                _answer_one(Channel(stream), site)
    finally:
        if process is not None:
            process.end()
        local.close()


def _answer_one(channel: Channel, site: Site) -> None:
    message = channel.receive_message()
    if message is not None:
        answer = site.answer(message)
        with suppress(ConnectionError):
            channel.send({"head_bytes": len(answer.head)}, answer.head, answer.body)
    channel.close()
