"""A link over a stream socket, to whatever moves messages between machines.

The other end may be another process on this machine that belongs to an engine for federated learning. It may
die and come back: what was pushed and not answered is then sent again.
"""

from __future__ import annotations

import hashlib
import json
import queue
import socket
import struct
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from antiphon.pools.flat_tensors import Buffer, new_buffer
from antiphon.pools.remote_exchange import Arrival
from antiphon.pools.remote_messages import MAX_BODY, MAX_HEAD, Message, WireError

LENGTHS = struct.Struct("!IQ")  # of the envelope and of the payload
MAX_ANSWER = MAX_HEAD + MAX_BODY  # bytes, with head and body
PIECE = 2 * 2**20  # bytes of a body that are hashed while the next ones arrive


Frame = tuple[dict[str, Any], Buffer]  # the envelope and the payload


class Channel:
    """Frames over a stream socket: an envelope (JSON) and a payload. Any thread may send, one receives."""

    def __init__(self, stream: socket.socket) -> None:
        self._stream, self._sending = stream, threading.Lock()

    def send(self, envelope: Mapping[str, Any], *payload: Buffer) -> None:
        """Send a frame; ConnectionError if the other end is gone."""
        self.send_pieces(envelope, sum(map(len, payload)), payload)

    def send_pieces(self, envelope: Mapping[str, Any], size: int, pieces: Iterable[Buffer]) -> None:
        """Send a frame whose payload of `size` bytes is still arriving."""
        text = json.dumps(envelope).encode()
        with self._sending:
            try:
                self._stream.sendall(LENGTHS.pack(len(text), size) + text)
                for piece in pieces:
                    if piece:  # nothing after the last byte: the other end may be gone
                        self._stream.sendall(piece)
            except OSError as error:
                raise ConnectionError(str(error)) from error

    def receive(self, room: Callable[[dict[str, Any], int], memoryview] | None = None) -> Frame | None:
        """Wait for a frame; None at the end. `room` returns the memory for the payload of an envelope."""
        try:
            begun = self.begin()
            if begun is None:
                return None
            envelope, size = begun
            payload = self._fill(room(envelope, size) if room else new_buffer(size))
            return (envelope, payload) if len(payload) == size else None
        except (OSError, ValueError):
            return None

    def begin(self) -> tuple[dict[str, Any], int] | None:
        """Wait for a frame; return its envelope and the size of its payload, which is to be taken then."""
        lengths = self.take(LENGTHS.size)
        if not lengths:
            return None
        envelope, payload = LENGTHS.unpack(lengths)
        if envelope > MAX_HEAD or payload > MAX_ANSWER:
            raise ValueError("the other end does not speak this language")
        return json.loads(bytes(self.take(envelope))), payload

    def take(self, size: int) -> Buffer:
        """Return the next bytes; b"" at the end."""
        return self._fill(new_buffer(size))

    def receive_message(self) -> Message | None:
        """Wait for a frame with `head_bytes` in its envelope, and hash the body while it arrives."""
        try:
            begun = self.begin()
            if begun is None:
                return None
            size = int(begun[0]["head_bytes"])
            head, body, hasher = self.take(size), new_buffer(begun[1] - size), hashlib.sha256()
            for begin in range(0, len(body), PIECE):
                hasher.update(self._fill(body[begin : begin + PIECE]))
            return Message(bytes(head), body, hasher.hexdigest())
        except (OSError, ValueError):
            return None

    def close(self) -> None:
        # A thread may wait for a frame: closing alone would not wake it up.
        with suppress(OSError):
            self._stream.shutdown(socket.SHUT_RDWR)
        self._stream.close()

    def _fill(self, data: memoryview) -> Buffer:
        done = 0
        while done < len(data):
            # All in one call: after each, this thread would wait until others leave it the interpreter.
            count = self._stream.recv_into(data[done:], 0, socket.MSG_WAITALL)
            if count == 0:
                if done:
                    raise ConnectionError("cut off within a frame")
                return b""
            done += count
        return data


@dataclass(frozen=True)
class Push:
    """A message for a site, as the other end of a link sees it. `None` instead of it: the ticket is void."""

    ticket: str
    site: str
    message: Message | None


def pushes(channel: Channel) -> Iterator[Push]:
    """Yield what the link at the other end of a channel pushes and cancels."""
    body: Buffer = b""
    while (frame := channel.receive()) is not None:
        envelope, payload = frame
        ticket, site = str(envelope.get("ticket")), str(envelope.get("site"))
        if envelope.get("do") == "cancel":
            yield Push(ticket, site, None)
            continue
        size = int(envelope["head_bytes"])
        head, rest = bytes(payload[:size]), payload[size:]
        body = rest or body  # many messages share one body: it is sent once, and held once
        yield Push(ticket, site, Message(head, body if envelope.get("has_body") else b""))


def send_answer(channel: Channel, ticket: str, *answer: Buffer) -> None:
    channel.send({"do": "answer", "ticket": ticket}, *answer)


@dataclass(frozen=True)
class Place:
    """Where a part of an answer belongs."""

    name: str  # of this answer: there may be two to one message, if the first was cut off
    head_bytes: int  # of the answer
    size: int  # of the answer, with its head
    at: int  # bytes before this part


def send_part(channel: Channel, ticket: str, place: Place, part: Buffer) -> None:
    """Send a part of an answer; the parts of an answer are sent in order."""
    channel.send({"do": "part", "ticket": ticket, **asdict(place)}, part)


def send_error(channel: Channel, ticket: str, error: str) -> None:
    """Tell the link that a message did not reach its site; it may be tried again."""
    channel.send({"do": "error", "ticket": ticket, "error": error})


class SocketLink:
    """A link whose other end reads `pushes` and sends answers."""

    def __init__(self) -> None:
        self._arrivals: queue.SimpleQueue[Arrival] = queue.SimpleQueue()
        self._open: dict[str, tuple[str, Message]] = {}
        self._channel: Channel | None = None
        self._last_body: Buffer = b""
        self._arriving: dict[str, _Arriving] = {}  # ticket -> its answer
        self._lock = threading.Lock()

    def attach(self, channel: Channel) -> threading.Thread:
        """Use this channel from now on; return the thread that reads it. Open messages are sent again."""
        with self._lock:
            self._channel, self._last_body = channel, b""
            for ticket, (site, message) in self._open.items():
                self._send(ticket, site, message)
        thread = threading.Thread(target=self._read, args=(channel,), daemon=True)
        thread.start()
        return thread

    def push(self, site: str, message: Message) -> str:
        ticket = uuid.uuid4().hex
        with self._lock:
            self._open[ticket] = (site, message)
            self._send(ticket, site, message)
        return ticket

    def poll(self, seconds: float) -> Arrival | None:
        try:
            arrival = self._arrivals.get(timeout=seconds)
        except queue.Empty:
            return None
        with self._lock:
            self._open.pop(arrival.ticket, None)
        return arrival

    def cancel(self, ticket: str) -> None:
        with self._lock:
            site, _ = self._open.pop(ticket, ("", None))
            self._arriving.pop(ticket, None)
            self._deliver({"do": "cancel", "ticket": ticket, "site": site})

    def close(self) -> None:
        with self._lock:
            if self._channel is not None:
                self._channel.close()
            self._channel = None

    def _send(self, ticket: str, site: str, message: Message) -> None:
        envelope = {"do": "push", "ticket": ticket, "site": site, "head_bytes": len(message.head)}
        is_new = bool(message.body) and message.body is not self._last_body
        body = [message.body] if is_new else []
        if self._deliver({**envelope, "has_body": bool(message.body)}, message.head, *body) and is_new:
            self._last_body = message.body

    def _deliver(self, envelope: Mapping[str, Any], *payload: Buffer) -> bool:
        if self._channel is None:
            return False
        try:
            self._channel.send(envelope, *payload)
        except ConnectionError:  # the reader notices too; what is open is sent again through the next one
            self._channel = None
        return self._channel is not None

    def _read(self, channel: Channel) -> None:
        while (frame := channel.receive(self._room)) is not None:
            envelope, payload = frame
            ticket = str(envelope.get("ticket"))
            if envelope.get("do") == "answer":
                self._arrivals.put(Arrival(ticket, _message(payload)))
            elif envelope.get("do") == "part":
                self._take_part(ticket, envelope, payload)
            else:
                self._arrivals.put(Arrival(ticket, error=str(envelope.get("error"))))

    def _room(self, envelope: Mapping[str, Any], size: int) -> memoryview:
        """Return the memory for a payload: for a part of an answer, its place in the answer."""
        if envelope.get("do") != "part":
            return new_buffer(size)
        ticket, place = str(envelope.get("ticket")), _place_in(envelope)
        with self._lock:
            if place.at == 0 and ticket in self._open:
                self._arriving[ticket] = _Arriving(place)
            answer = self._arriving.get(ticket)
        room = answer.room(place, size) if answer else None
        return new_buffer(size) if room is None else room

    def _take_part(self, ticket: str, envelope: Mapping[str, Any], part: Buffer) -> None:
        place, answer = _place_in(envelope), self._arriving.get(ticket)
        if answer is not None and answer.take(place, part):
            self._arriving.pop(ticket, None)
            self._arrivals.put(Arrival(ticket, answer.message()))


class _Arriving:
    """An answer whose parts are arriving, in order. Its body is hashed meanwhile."""

    def __init__(self, first: Place) -> None:
        self._first, self._done, self._hasher = first, 0, hashlib.sha256()
        self._data = new_buffer(min(first.size, MAX_ANSWER))

    def room(self, place: Place, size: int) -> memoryview | None:
        """Return the memory for a part; None if it does not belong here."""
        is_next = place.name == self._first.name and place.at == self._done
        room = self._data[place.at : place.at + size]
        return room if is_next and len(room) == size else None

    def take(self, place: Place, part: Buffer) -> bool:
        """Note that a part is here; return whether it was the last."""
        if self.room(place, len(part)) is None:
            return False
        self._hasher.update(part[max(0, self._first.head_bytes - self._done) :])
        self._done += len(part)
        return self._done == len(self._data)

    def message(self) -> Message:
        message = _message(self._data)
        is_hashed = len(message.head) == self._first.head_bytes
        return replace(message, digest=self._hasher.hexdigest()) if is_hashed else message


def _place_in(envelope: Mapping[str, Any]) -> Place:
    numbers = (int(envelope[key]) for key in ("head_bytes", "size", "at"))
    return Place(str(envelope["name"]), *numbers)


def _message(data: Buffer) -> Message:
    try:
        return Message.split(data)
    except WireError:
        return Message(
            bytes(data)
        )  # whoever reads its head gets the same error, and knows which client it is
