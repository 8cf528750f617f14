"""From the feature store to the device: all at once if it fits there, else read ahead of the training.

A place of −1 is a placeholder, for stacked clients with batches of unequal size: a row of one zero frame and
no tokens. Its loss is finite and has no weight.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from antiphon.data.batches import Batch, Utterances, collate

Encode = Callable[[str], list[int]]
Item = TypeVar("Item")
RESIDENT_SHARE = 0.25  # the share of the device's memory that the corpus may fill


class Feeder(Protocol):
    """Brings the utterances at `places` of the store to the device as one batch."""

    def __call__(self, places: np.ndarray) -> Batch: ...
    def one_by_one(self, plan: Iterable[np.ndarray]) -> Iterator[Batch]: ...


def feeder(store: Utterances, encode: Encode, device: torch.device) -> Feeder:
    """The fastest way for this store and device."""
    if device.type == "cuda":
        room = torch.cuda.get_device_properties(device).total_memory
        if store.frames.nbytes <= RESIDENT_SHARE * room:
            return Resident(store, encode, device)
    return Streamed(store, encode, device)


class Streamed:
    """Reads every batch from the store; sends it to a GPU through pinned memory, without waiting."""

    def __init__(self, store: Utterances, encode: Encode, device: torch.device) -> None:
        self.store, self.encode, self.device = store, encode, device

    def __call__(self, places: np.ndarray) -> Batch:
        return self._read(places).to(self.device)

    def one_by_one(self, plan: Iterable[np.ndarray]) -> Iterator[Batch]:
        """Batches one after another; for a GPU, the next ones are read while this one is trained on."""
        read = map(self._read, plan)
        for batch in ahead(read) if self.device.type == "cuda" else read:
            yield batch.to(self.device)

    def _read(self, places: np.ndarray) -> Batch:
        batch = collate(self.store, places, self.encode)
        return batch.pinned() if self.device.type == "cuda" else batch


class Resident:
    """Keeps all frames (float16) and tokens on the device: a batch is one gather, only places are sent."""

    def __init__(self, store: Utterances, encode: Encode, device: torch.device) -> None:
        self.device = device
        self.frames = torch.from_numpy(store.frames.copy()).to(device)
        texts = [encode(store.text(place)) for place in range(len(store))]
        self.tokens = torch.tensor([token for text in texts for token in text] or [0]).to(device)
        # One more, at place −1: the placeholder, with a masked frame and no token.
        self.first_frame = np.append(store.first_frame[:-1], 0)
        self.num_frames = np.append(store.num_frames, 0).astype(np.int64)
        self.num_tokens = np.array([*(len(text) for text in texts), 0], dtype=np.int64)
        self.first_token = np.cumsum(self.num_tokens) - self.num_tokens

    def __call__(self, places: np.ndarray) -> Batch:
        features = self._rows(self.frames, self.first_frame[places], self.num_frames[places], 1)
        tokens = self._rows(self.tokens, self.first_token[places], self.num_tokens[places], 0)
        lengths = np.maximum(self.num_frames[places], 1)
        return Batch(
            features.float(),
            self._sent(lengths),
            tokens,
            self._sent(self.num_tokens[places]),
            tuple(places.tolist()),
        )

    def one_by_one(self, plan: Iterable[np.ndarray]) -> Iterator[Batch]:
        return map(self, plan)

    def _rows(self, values: Tensor, first: np.ndarray, count: np.ndarray, at_least: int) -> Tensor:
        """Rows of unequal length of `values`, zero-padded: [B, longest, ...]."""
        place = torch.arange(max(int(count.max()), at_least), device=self.device)
        source = self._sent(first)[:, None] + place
        real = place < self._sent(count)[:, None]
        rows = values[source.masked_fill(~real, 0)]
        return rows.masked_fill(~real.view(*real.shape, *[1] * (rows.dim() - 2)), 0)

    def _sent(self, numbers: np.ndarray) -> Tensor:
        return to_device(torch.from_numpy(np.ascontiguousarray(numbers)), self.device)


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on the device, sent without waiting."""
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def ahead(items: Iterable[Item], depth: int = 2) -> Iterator[Item]:
    """The same items, made by a thread up to `depth` in advance. Its exceptions are raised here."""
    ready: queue.Queue[tuple[bool, Item | BaseException | None]] = queue.Queue(depth)
    stopped = threading.Event()

    def put(more: bool, what: Item | BaseException | None) -> None:
        while not stopped.is_set():
            try:
                return ready.put((more, what), timeout=0.1)
            except queue.Full:
                continue

    def make() -> None:
        try:
            for item in items:
                put(True, item)
                if stopped.is_set():
                    return
            put(False, None)
        except BaseException as error:
            put(False, error)

    thread = threading.Thread(target=make, daemon=True)
    thread.start()
    try:
        while True:
            more, what = ready.get()
            if more:
                yield what  # type: ignore[misc]
            elif isinstance(what, BaseException):
                raise what
            else:
                return
    finally:
        stopped.set()
        thread.join()
