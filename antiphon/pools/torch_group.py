"""A process group by torch.distributed (SPMD), with messages of JSON and tensors, no pickle.

Every operation begins with an exchange of short messages: through the links of processes that `--workers` has
started, else through gloo. A process that fails sends its error as its last message, so the others end too
instead of waiting. A killed process breaks its connections, which the others notice at their next message.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import safetensors.torch
import torch
import torch.distributed as dist
from torch import Tensor

from antiphon.core import Pool, Stopped, Worker
from antiphon.pools.dispatched import DispatchedPool
from antiphon.pools.distributed import DistributedPool
from antiphon.pools.links import Links
from antiphon.records.checkpoint import in_own_memory, pack, unpack, unshared

T = TypeVar("T")
GOODBYE = timedelta(seconds=30)  # how long a failing process waits for the others to receive its error
LENGTH = 8  # bytes of a message's length
# Words in the messages of gloo and NCCL when a peer is gone.
SIGNS_OF_LOSS = ("onnection", "peer", "imed out", "socket", "NCCL")


class PeerLost(Exception):
    """Another process of the run ended without a message."""


class PeerError(ValueError):
    """An error of another process of the run."""


class TorchGroup:
    """The group as one of its processes sees it; torch.distributed must be initialised.

    `ordered` pools add updates in cohort order: the bits of a single process, for more traffic and memory.
    With a `counter`, a store of all processes, each takes the next clients when it is free. `links` carry all
    messages, and the tensors of two processes on CPUs.
    """

    def __init__(
        self,
        device: torch.device,
        ordered: bool = False,
        gpus: dist.ProcessGroup | None = None,
        counter: dist.Store | None = None,
        links: Links | None = None,
    ) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.device, self.ordered = device, ordered
        self._gpus = gpus  # the same processes with NCCL; None: gloo carries all tensors
        self._counter, self._num_counts = counter, 0
        self.links = links
        self._is_over = False
        self._late: Exception | None = None  # an error of `on_rank_zero_async`
        self.is_broken = False  # the others may wait for a message that this process will never send

    @property
    def is_rank_zero(self) -> bool:
        return self.rank == 0

    def pool(self, worker: Worker, seconds: Callable[[str], float]) -> Pool:
        shares = DistributedPool(worker, self, seconds, self.ordered)
        return shares if self._counter is None else DispatchedPool(shares, self.take)

    def take(self, limit: int) -> Iterator[int]:
        """Yield numbers from 0 to below `limit` that no other process gets. All must call it, in turn."""
        assert self._counter is not None
        self._num_counts += 1
        while (number := self._counter.add(f"dispatch/{self._num_counts}", 1) - 1) < limit:
            yield number

    def on_rank_zero(self, action: Callable[[], T], like: T | None = None) -> T:
        if self.is_rank_zero:
            return self._do_first(action)
        message = self.all_gather(lambda: None)[0]
        tensors = {}
        if message["num_bytes"]:
            buffer = torch.empty(message["num_bytes"], dtype=torch.uint8)
            self.broadcast(buffer, 0)
            tensors = in_own_memory(safetensors.torch.load(buffer.numpy().tobytes()))
        on_device = {name: tensor.to(self.device) for name, tensor in tensors.items()}
        value: T = unpack(message["tree"], on_device, like)
        return value

    def _do_first(self, action: Callable[[], T]) -> T:
        done: list[T] = []
        tensors: dict[str, Tensor] = {}
        buffer = bytearray()

        def act() -> dict[str, Any]:
            done.append(action())
            tree = pack(done[0], "value", tensors)
            buffer.extend(safetensors.torch.save(unshared(tensors)) if tensors else b"")
            return {"tree": tree, "num_bytes": len(buffer)}

        self.all_gather(act)
        if buffer:
            self.broadcast(torch.frombuffer(buffer, dtype=torch.uint8), 0)
        return done[0]

    def on_rank_zero_async(self, action: Callable[[], None]) -> None:
        if not self.is_rank_zero:
            return
        try:
            action()
        except Exception as error:
            self._late = error

    def all_gather(self, action: Callable[[], Any]) -> list[Any]:
        failure: Exception | None = None
        try:
            if self._late is not None:
                raise self._late
            message = {"value": action()}
        except Exception as error:
            failure, message = error, _described(error)
        answers = self._exchange(message)
        self._raise_together(answers, failure)
        return [answer["value"] for answer in answers]

    def _raise_together(self, answers: list[dict[str, Any]], error: Exception | None) -> None:
        """Raise the error of any process, the same on all of them; `error` is that of this process."""
        failed = [rank for rank, answer in enumerate(answers) if "error" in answer]
        if not failed:
            return
        self._is_over = any(answer.get("is_last") for answer in answers)
        rank = min(failed, key=lambda rank: (answers[rank]["is_stop"], rank))
        if rank == self.rank:
            assert error is not None
            raise error
        if answers[rank]["is_stop"]:
            raise Stopped(answers[rank]["error"])
        raise PeerError(f"in process {rank} of {self.size}: {answers[rank]['error']}")

    def __enter__(self) -> TorchGroup:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Send the last message: the error that ended this process, if any."""
        if self._is_over:
            return
        if error is None:
            self._raise_together(self._exchange({"value": None, "is_last": True}), None)
        elif isinstance(error, Exception) and not _is_sudden(error):
            self._say_goodbye(error)
        else:
            self.is_broken = True

    def _say_goodbye(self, error: Exception) -> None:
        try:
            self._exchange({**_described(error), "is_last": True}, GOODBYE)
        except PeerLost:  # the others are gone or busy, and will not report this error
            self.is_broken = True
            if not isinstance(error, Stopped):
                print(f"process {self.rank} of {self.size}: {error}", file=sys.stderr)

    def all_reduce(self, flat: Tensor) -> None:
        with self._peers():
            if flat.is_cuda or self.size > 2:
                dist.all_reduce(flat, group=self._gpus if flat.is_cuda else None)
            else:  # two processes: as many bytes as gloo's ring, in one step
                both = [torch.empty_like(flat) for _ in range(self.size)]
                if self.links:
                    both[self.rank] = flat
                    self.links.swap(flat, both[1 - self.rank])
                else:
                    dist.all_gather(both, flat)
                torch.add(*both, out=flat)

    def broadcast(self, flat: Tensor, source: int) -> None:
        with self._peers():
            if flat.is_cuda or self.size > 2 or not self.links:
                dist.broadcast(flat, source, group=self._gpus if flat.is_cuda else None)
            elif self.rank == source:
                self.links.send(flat)
            else:
                self.links.receive(flat)

    def _exchange(self, message: dict[str, Any], patience: timedelta | None = None) -> list[dict[str, Any]]:
        """Return the messages of all processes, by rank."""
        text = json.dumps(message).encode()
        if self.links:
            with self._peers():
                texts = self.links.exchange(text, patience)
        else:
            texts = self._exchange_by_gloo(text, patience)
        return [json.loads(text) for text in texts]

    def _exchange_by_gloo(self, text: bytes, patience: timedelta | None) -> list[bytes]:
        """Return the texts of all processes.

        Their beginnings go to the first process and back as a tree, in log2(size) steps. Whole texts go round
        the ring, in size − 1 steps, only if one of them is longer.
        """
        head = min(4096, max(256, 65536 // self.size))
        start = _padded(len(text).to_bytes(LENGTH, "big") + text, head)
        heads = torch.zeros(self.size, head, dtype=torch.uint8)
        with self._peers():
            _wait(dist.gather(start, list(heads) if self.is_rank_zero else None, async_op=True), patience)
            _wait(dist.broadcast(heads, 0, async_op=True), patience)
        texts = [row.numpy().tobytes() for row in heads]
        lengths = [int.from_bytes(text[:LENGTH], "big") for text in texts]
        texts = [text[LENGTH:] for text in texts]
        if max(lengths) > head - LENGTH:
            rows = [torch.zeros(max(lengths), dtype=torch.uint8) for _ in lengths]
            with self._peers():
                _wait(dist.all_gather(rows, _padded(text, max(lengths)), async_op=True), patience)
            texts = [row.numpy().tobytes() for row in rows]
        return [text[:length] for text, length in zip(texts, lengths, strict=True)]

    @contextmanager
    def _peers(self) -> Iterator[None]:
        try:
            yield
        except (RuntimeError, ConnectionError, TimeoutError) as error:
            if isinstance(error, RuntimeError) and not any(sign in str(error) for sign in SIGNS_OF_LOSS):
                raise
            raise PeerLost("another process of this run is gone: killed, or out of memory?") from error


def _described(error: BaseException) -> dict[str, Any]:
    is_mistake = isinstance(error, ValueError | OSError | Stopped)
    text = str(error) if is_mistake else f"{type(error).__name__}: {error}"
    return {"error": text, "is_stop": isinstance(error, Stopped)}


def _is_sudden(error: Exception) -> bool:
    """Return whether the others are gone, or Ctrl-C came twice: there is no time for messages then."""
    return isinstance(error, PeerLost) or isinstance(error.__context__, KeyboardInterrupt)


def _padded(data: bytes, num_bytes: int) -> Tensor:
    """Return the first `num_bytes` as a tensor, padded with zeros."""
    return torch.frombuffer(bytearray(data[:num_bytes].ljust(num_bytes, b"\0")), dtype=torch.uint8)


def _wait(work: dist.Work, patience: timedelta | None) -> None:
    work.wait(patience) if patience else work.wait()
