"""Streams of NVFLARE, piece by piece: between the network and a socket or the memory of this machine.

A piece is passed on as soon as it is there. So sending, receiving and the sockets of a message work at the
same time, and no process of NVFLARE holds a whole answer.
"""

from __future__ import annotations

from collections.abc import Iterator

from nvflare.fuel.f3.streaming.stream_types import Stream

from antiphon.pools.flat_tensors import Buffer
from antiphon.pools.remote_link import PIECE, Channel


class Memory(Stream):
    """Bytes in memory, which are not copied."""

    def __init__(self, *parts: Buffer) -> None:
        super().__init__(sum(map(len, parts)))
        self._rest = [memoryview(part) for part in parts if part]

    def read(self, size: int) -> Buffer:
        if not self._rest:
            return b""
        piece, rest = self._rest[0][:size], self._rest[0][size:]
        self._rest[:1] = [rest] if rest else []
        return piece


class Incoming(Stream):
    """The payload of a frame that is arriving through a channel."""

    def __init__(self, channel: Channel, size: int) -> None:
        super().__init__(size)
        self._channel, self._left = channel, size

    def read(self, size: int) -> Buffer:
        count = min(size, self._left)
        self._left -= count
        return self._channel.take(count) if count else b""


def pieces(stream: Stream) -> Iterator[Buffer]:
    """Yield what arrives until the stream has ended."""
    while piece := stream.read(PIECE):
        yield piece
