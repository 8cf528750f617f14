"""Links between the processes of one machine: pairs of sockets, inherited from the process that starts them.

A message takes a fraction of its time through gloo, where threads carry it. The first process has a link to
each of the others, and passes on what it receives. The system closes the links of a process that ends or is
killed, and the others notice. The sockets have no names: nobody else can connect, and nothing is left behind.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Mapping, Sequence
from datetime import timedelta

import torch
from torch import Tensor

VARIABLE = "ANTIPHON_LINKS"  # the descriptors of a process's ends, with commas between them
LENGTH = struct.Struct("<Q")


def make_pairs(num_processes: int) -> list[tuple[socket.socket, socket.socket]]:
    """Return the two ends of a link for every process but the first: that of the first one, and its own."""
    return [socket.socketpair() for _ in range(num_processes - 1)]


def ends_of(rank: int, pairs: Sequence[tuple[socket.socket, socket.socket]]) -> list[socket.socket]:
    """Return the ends that belong to a process."""
    return [first for first, _ in pairs] if rank == 0 else [pairs[rank - 1][1]]


def inherited(environment: Mapping[str, str], rank: int) -> Links | None:
    """Return the links that this process was started with; None if it has none."""
    descriptors = [int(text) for text in environment.get(VARIABLE, "").split(",") if text]
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    return (
        Links(rank, [socket.socket(fileno=descriptor) for descriptor in descriptors]) if descriptors else None
    )


class Links:
    """The links of one process: those of the first one to all others, or that of another to the first one.

    The first process receives before it sends, the others send before they receive: so no two processes wait
    for each other with full buffers. A closed link raises a ConnectionError.
    """

    def __init__(self, rank: int, ends: Sequence[socket.socket]) -> None:
        self.is_first, self.ends = rank == 0, list(ends)

    def exchange(self, own: bytes, patience: timedelta | None = None) -> list[bytes]:
        """Return the messages of all processes, by rank; TimeoutError if one does not come in time."""
        if patience:
            for end in self.ends:
                end.settimeout(patience.total_seconds())
        if not self.is_first:
            _send(self.ends[0], own)
            return _unpack(_receive(self.ends[0]))
        messages = [own, *map(_receive, self.ends)]
        everything = b"".join(LENGTH.pack(len(message)) + message for message in messages)
        for end in self.ends:
            _send(end, everything)
        return messages

    def swap(self, own: Tensor, other: Tensor) -> None:
        """Of two processes: send one tensor, and receive the other's into another of the same size."""
        if self.is_first:
            self.receive(other)
        self.send(own)
        if not self.is_first:
            self.receive(other)

    def send(self, tensor: Tensor) -> None:
        """Of two processes: send a tensor to the other one."""
        self.ends[0].sendall(_bytes_of(tensor))

    def receive(self, tensor: Tensor) -> None:
        """Of two processes: receive a tensor from the other one, in place."""
        _fill(self.ends[0], _bytes_of(tensor))


def _send(end: socket.socket, message: bytes) -> None:
    end.sendall(LENGTH.pack(len(message)) + message)


def _receive(end: socket.socket) -> bytes:
    head = bytearray(LENGTH.size)
    _fill(end, memoryview(head))
    message = bytearray(LENGTH.unpack(head)[0])
    _fill(end, memoryview(message))
    return bytes(message)


def _fill(end: socket.socket, buffer: memoryview) -> None:
    filled = 0
    while filled < len(buffer):
        received = end.recv_into(buffer[filled:])
        if received == 0:
            raise ConnectionError("the other process has closed its end")
        filled += received


def _unpack(everything: bytes) -> list[bytes]:
    messages, start = [], 0
    while start < len(everything):
        begin = start + LENGTH.size
        start = begin + LENGTH.unpack_from(everything, start)[0]
        messages.append(everything[begin:start])
    return messages


def _bytes_of(tensor: Tensor) -> memoryview:
    """Return the memory of a tensor in one piece, as bytes."""
    view: memoryview = tensor.view(-1).view(torch.uint8).numpy().data
    return view
