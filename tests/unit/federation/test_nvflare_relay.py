"""Messages over real cells of NVFLARE, in this process and without TLS, which the integration tests have."""

from __future__ import annotations

import hashlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

pytest.importorskip("nvflare")

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import CellMessageAuthHeaderKey
from nvflare.fuel.f3.cellnet.cell import Cell
from nvflare.fuel.f3.message import Message as CellMessage

from antiphon.federation import nvflare_relay
from antiphon.federation.engine_process import SOCKET, LocalSocket
from antiphon.federation.nvflare_relay import ANSWER, CHANNEL, HEAD, TICKET, ServerRelay, SiteRelay
from antiphon.federation.nvflare_streams import PIECE, Memory, pieces
from antiphon.pools.remote_exchange import Arrival
from antiphon.pools.remote_link import Channel, SocketLink
from antiphon.pools.remote_messages import Message, head_of, pack


@dataclass
class Inside:
    """What a component of NVFLARE gets with an event."""

    cell: Cell

    def get_engine(self) -> Inside:
        return self

    def get_cell(self) -> Cell:
        return self.cell


def started(name: str, port: int) -> Cell:
    cell = Cell(name, f"tcp://localhost:{port}", secure=False, credentials={})

    def signed(message: CellMessage) -> None:  # NVFLARE adds this, and a token, when a site has registered
        message.set_header(CellMessageAuthHeaderKey.CLIENT_NAME, name)

    cell.core_cell.add_outgoing_request_filter("*", "*", signed)
    cell.start()
    return cell


class SlowRelay(ServerRelay):
    """Begins late with answers that NVFLARE has confirmed, as on a crowded machine."""

    delay = 0.0

    def _answered(self, *answer: Any) -> None:
        time.sleep(self.delay)
        super()._answered(*answer)


class World:
    """A server and two sites. `answer` is what the antiphon processes of both sites do."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ended: list[int] = []
        monkeypatch.setattr(nvflare_relay.os, "_exit", self.ended.append)
        monkeypatch.setattr(nvflare_relay, "PATIENCE", 0.4)
        monkeypatch.setattr(nvflare_relay, "RETRY", 0.1)
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = int(listener.getsockname()[1])
        self.link, self._sockets = SocketLink(), [LocalSocket(), LocalSocket()]
        self.answer: Callable[[Message], Message | None] = lambda message: message
        self.cells = {name: started(name, port) for name in ("server", "berlin", "oslo")}
        monkeypatch.setenv(SOCKET, str(self._sockets[0].path))
        self.relay = SlowRelay()
        self.relay.handle_event(EventType.SYSTEM_START, Inside(self.cells["server"]))
        stream = self._sockets[0].accept(5.0)
        assert stream is not None
        self._reader = self.link.attach(Channel(stream))
        monkeypatch.setenv(SOCKET, str(self._sockets[1].path))
        threading.Thread(target=self._serve, daemon=True).start()
        self.sites = {name: SiteRelay() for name in ("berlin", "oslo")}
        for name, site in self.sites.items():
            site.handle_event(EventType.SYSTEM_START, Inside(self.cells[name]))

    def _serve(self) -> None:
        while (stream := self._sockets[1].accept(60.0)) is not None:
            channel = Channel(stream)
            message = channel.receive_message()
            assert message is not None
            if (answer := self.answer(message)) is not None:
                channel.send({"head_bytes": len(answer.head)}, answer.head, answer.body)
            channel.close()

    def arrival(self) -> Arrival:
        found = self.link.poll(20.0)
        assert found is not None
        return found

    def close(self) -> None:
        for name, site in self.sites.items():
            site.handle_event(EventType.SYSTEM_END, Inside(self.cells[name]))
        self.link.close()
        self._reader.join(5.0)
        end = time.monotonic() + 5.0
        while not self.ended and time.monotonic() < end:
            time.sleep(0.01)
        for cell in self.cells.values():
            cell.stop()
        for local in self._sockets:
            local.close()
        for thread in threading.enumerate():
            if thread.name == "antiphon-site":  # a thread that asks on would log errors into later tests
                thread.join(5.0)
                assert not thread.is_alive()


@pytest.fixture(scope="module")
def opened() -> Iterator[World]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        made = World(monkeypatch)
        yield made
        made.close()


@pytest.fixture
def world(opened: World) -> World:
    opened.answer = lambda message: message
    return opened


def body_of(size: int) -> memoryview:
    return memoryview(os.urandom(min(size, 9973)) * (size // 9973 + 1))[:size]


def test_memory_is_read_in_order_and_not_copied() -> None:
    data = bytearray(b"abcdefgh")
    stream = Memory(b"12", b"", data)
    assert stream.get_size() == 10
    first, second = stream.read(4), stream.read(4)
    data[0], data[4] = ord("X"), ord("Y")
    assert [bytes(piece) for piece in (first, second, stream.read(9), stream.read(9))] == [
        b"12",
        b"Xbcd",
        b"Yfgh",
        b"",
    ]
    assert b"".join(pieces(Memory(b"12", b"345"))) == b"12345"


@pytest.mark.parametrize("size", [0, 1, PIECE, 3 * PIECE + 7])
def test_messages_and_answers_of_any_size_arrive_as_they_were(world: World, size: int) -> None:
    body = body_of(size)
    asked = Message(pack({"verb": "work"}).head, body)
    tickets = {world.link.push(site, asked) for site in ("berlin", "oslo")}
    for arrival in (world.arrival(), world.arrival()):
        tickets.remove(arrival.ticket)
        assert arrival.message is not None
        assert arrival.message.head == asked.head
        assert arrival.message.body == body
        assert arrival.message.digest == hashlib.sha256(body).hexdigest()


@pytest.mark.parametrize("delay", [0.0, 0.1])
def test_a_site_gets_its_messages_one_after_another_and_in_order(
    world: World, monkeypatch: pytest.MonkeyPatch, delay: float
) -> None:
    monkeypatch.setattr(world.relay, "delay", delay)
    seen: list[int] = []

    def answer(message: Message) -> Message:
        seen.append(head_of(message)["number"])
        return message

    world.answer = answer
    sent = {world.link.push("oslo", pack({"number": number})) for number in range(8)}
    assert {world.arrival().ticket for _ in sent} == sent
    assert world.link.poll(0.5) is None
    assert seen == list(range(8))  # and each once


def test_what_a_site_does_not_answer_is_sent_again(world: World) -> None:
    seen: list[bytes] = []

    def answer(message: Message) -> Message | None:
        seen.append(message.head)
        return message if len(seen) == 3 else None

    world.answer = answer
    ticket = world.link.push("berlin", pack({"verb": "work"}))
    assert world.arrival().ticket == ticket
    assert seen == [seen[0]] * 3


def test_a_message_that_nobody_wants_any_more_is_not_sent(world: World) -> None:
    release = threading.Event()

    def answer(message: Message) -> Message:
        assert release.wait(20.0)
        return message

    world.answer = answer
    first, second, third = (world.link.push("berlin", pack({"number": number})) for number in range(3))
    world.link.cancel(second)
    time.sleep(0.5)  # longer than a site waits before it asks again
    release.set()
    # The second answer may be handed over before the first one is: each has a thread of its own.
    assert {world.arrival().ticket, world.arrival().ticket} == {first, third}
    assert world.link.poll(0.5) is None


def test_a_site_cannot_answer_for_another(world: World) -> None:
    release = threading.Event()

    def answer(message: Message) -> Message:
        assert release.wait(20.0)
        return message

    world.answer = answer
    asked = pack({"verb": "work"})
    ticket = world.link.push("berlin", asked)
    head = pack({"verb": "answer", "forged": True}).head
    forged: Any = CellMessage({TICKET: ticket, HEAD: len(head)}, Memory(head))
    world.cells["oslo"].send_stream(CHANNEL, ANSWER, "server", forged, reliable=True).result(20.0)
    assert world.link.poll(0.5) is None
    release.set()
    arrival = world.arrival()
    assert arrival.ticket == ticket
    assert arrival.message == asked


def test_the_process_ends_when_the_antiphon_process_is_gone(world: World) -> None:
    world.close()
    assert world.ended == [1]
