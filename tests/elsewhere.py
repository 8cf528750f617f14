"""A pool whose clients are really in another process, at the other end of a socket: a fork serves them."""

from __future__ import annotations

import os
import socket
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from antiphon.core import Tensors, Worker, lives_with_server
from antiphon.pools.remote_answers import answer_task, failure
from antiphon.pools.remote_exchange import Patience
from antiphon.pools.remote_link import Channel, SocketLink, pushes, send_answer
from antiphon.pools.remote_messages import Message, MissingBody, pack, unpack
from antiphon.pools.remote_pool import RemotePool, RemoteRun, RemoteStates

Answer = Callable[[Mapping[str, Any], Tensors], Message]


class AllSites(dict[str, str]):
    """Every client that does not live with the server is at one of two sites."""

    def __contains__(self, client: object) -> bool:
        return not lives_with_server(str(client))

    def __missing__(self, client: str) -> str:
        return f"site-{sum(client.encode()) % 2}"


class NoStates:
    """Clients that live with the server keep no state."""

    def __init__(self) -> None:
        self.expected: dict[str, tuple[int, int]] = {}

    def sync(self) -> None: ...
    def wrote(self, client: str, moment: Any) -> None: ...
    def prune(self, rounds: Any) -> None: ...
    def rollback(self, round: int) -> None: ...


def remote_run(id: str = "run") -> RemoteRun:
    return RemoteRun(id, pack({"verb": "setup"}), RemoteStates(NoStates()))


@dataclass
class Sites:
    """What sites hold: the bodies they were sent."""

    answer: Answer
    bodies: dict[tuple[str, str], bytes] = field(default_factory=dict)

    def __call__(self, site: str, message: Message) -> Message:
        known = {digest: body for (name, digest), body in self.bodies.items() if name == site}
        try:
            head, tensors = unpack(message, known)
        except MissingBody as error:
            return pack({"verb": "need", "digest": error.digest})
        if message.body:
            self.bodies = {key: body for key, body in self.bodies.items() if key[0] != site}
            self.bodies[site, head["body"]["sha256"]] = message.body
        try:
            return self.answer(head, tensors)
        except Exception as error:
            return failure(f"{type(error).__name__}: {error}")


def fork(serve: Callable[[Channel], None]) -> Channel:
    """Serve in a fork until this end of the channel is closed or forgotten; return this end."""
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        ours.close()
        try:
            serve(Channel(theirs))
        finally:
            os._exit(0)
    theirs.close()
    channel = Channel(ours)
    weakref.finalize(channel, _end, ours, child)
    return channel


def _end(stream: socket.socket, child: int) -> None:
    with suppress(OSError):
        stream.shutdown(socket.SHUT_RDWR)
    stream.close()
    os.waitpid(child, 0)


def serve_worker(worker: Worker) -> Callable[[Channel], None]:
    def serve(channel: Channel) -> None:
        sites = Sites(lambda head, tensors: answer_task(worker, head, tensors))
        for push in pushes(channel):
            if push.message is not None:
                send_answer(channel, push.ticket, bytes(sites(push.site, push.message)))

    return serve


def remote(worker: Worker, ordered: bool = True) -> RemotePool:
    link = SocketLink()
    pool = RemotePool(link, AllSites(), worker, remote_run(), Patience(timeout=60.0), ordered)
    link.attach(channel := fork(serve_worker(worker)))
    weakref.finalize(pool, channel.close)
    return pool
