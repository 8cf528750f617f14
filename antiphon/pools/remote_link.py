"""A link over a stream socket, to whatever moves messages between machines.

The other end may be another process on this machine that belongs to an engine for federated learning. It may
die and come back: what was pushed and not answered is then sent again.
"""

from __future__ import annotations

import json
import queue
import socket
import struct
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from antiphon.pools.flat_tensors import Buffer, new_buffer
from antiphon.pools.remote_exchange import Arrival
from antiphon.pools.remote_messages import MAX_BODY, MAX_HEAD, Message, WireError

LENGTHS = struct.Struct("!IQ")  # of the envelope and of the payload


class Channel:
    """Frames over a stream socket: an envelope (JSON) and a payload. Any thread may send, one receives."""

    def __init__(self, stream: socket.socket) -> None:
        self._stream, self._sending = stream, threading.Lock()

    def send(self, envelope: Mapping[str, Any], *payload: Buffer) -> None:
        """Send a frame; ConnectionError if the other end is gone."""
        text = json.dumps(envelope).encode()
        with self._sending:
            try:
                self._stream.sendall(LENGTHS.pack(len(text), sum(map(len, payload))) + text)
                for part in [
                    part for part in payload if part
                ]:  # nothing after the last byte: the other end may be gone
                    self._stream.sendall(part)
            except OSError as error:
                raise ConnectionError(str(error)) from error

    def receive(self) -> tuple[dict[str, Any], Buffer] | None:
        """Wait for a frame; None at the end."""
        try:
            lengths = self._read(LENGTHS.size)
            if not lengths:
                return None
            envelope, payload = LENGTHS.unpack(lengths)
            if envelope > MAX_HEAD or payload > MAX_HEAD + MAX_BODY:
                return None  # the other end does not speak this language
            return json.loads(bytes(self._read(envelope))), self._read(payload)
        except (OSError, ValueError):
            return None

    def close(self) -> None:
        # A thread may wait for a frame: closing alone would not wake it up.
        with suppress(OSError):
            self._stream.shutdown(socket.SHUT_RDWR)
        self._stream.close()

    def _read(self, size: int) -> Buffer:
        data, done = new_buffer(size), 0
        while done < size:
            count = self._stream.recv_into(data[done:])
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


def send_answer(channel: Channel, ticket: str, answer: Buffer) -> None:
    channel.send({"do": "answer", "ticket": ticket}, answer)


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
        while (frame := channel.receive()) is not None:
            envelope, payload = frame
            ticket = str(envelope.get("ticket"))
            if envelope.get("do") == "answer":
                self._arrivals.put(Arrival(ticket, _message(payload)))
            else:
                self._arrivals.put(Arrival(ticket, error=str(envelope.get("error"))))


def _message(data: Buffer) -> Message:
    try:
        return Message.split(data)
    except WireError:
        return Message(
            bytes(data)
        )  # whoever reads its head gets the same error, and knows which client it is
