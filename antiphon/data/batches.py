"""Padded batches of utterances of similar length, within a budget of frames."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

JITTER = 0.1  # lengths are drawn this far up or down before sorting: neighbours change every epoch


class Utterances(Protocol):
    """What batches are made of, such as a `FeatureStore`, which describes the arrays."""

    dim: int
    frames_per_second: float
    frames: np.ndarray
    first_frame: np.ndarray
    num_frames: np.ndarray
    seconds: np.ndarray

    def __len__(self) -> int: ...
    def features(self, index: int) -> np.ndarray: ...
    def text(self, index: int) -> str: ...


@dataclass(frozen=True)
class Batch:
    """Utterances side by side, zero-padded at the end.

    features [B, T, D] float32, feature_lengths [B] int64, tokens [B, U] int64, token_lengths [B] int64;
    `indices` are the utterances' places in their store.

    An utterance may have N candidate texts instead of one: tokens are then [B · N, U], with the texts of an
    utterance next to each other, and `weights` [B · N] say how much each counts. The model encodes the
    utterance once for all its texts.
    """

    features: Tensor
    feature_lengths: Tensor
    tokens: Tensor
    token_lengths: Tensor
    indices: tuple[int, ...]
    weights: Tensor | None = None

    def __len__(self) -> int:
        return len(self.indices)

    def to(self, device: torch.device | str) -> Batch:
        return Batch.of([tensor.to(device, non_blocking=True) for tensor in self.tensors], self.indices)

    def pinned(self) -> Batch:
        """The batch in pinned memory, which a GPU can read while it computes."""
        return Batch.of([tensor.pin_memory() for tensor in self.tensors], self.indices)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        weights = () if self.weights is None else (self.weights,)
        return self.features, self.feature_lengths, self.tokens, self.token_lengths, *weights

    @classmethod
    def of(cls, tensors: Sequence[Tensor], indices: tuple[int, ...] = ()) -> Batch:
        """A batch of its tensors, in the order of `tensors`."""
        features, feature_lengths, tokens, token_lengths, *weights = tensors
        return cls(features, feature_lengths, tokens, token_lengths, indices, *weights)

    @property
    def num_texts(self) -> int:
        """N, the number of texts of each utterance."""
        return len(self.tokens) // len(self.features)

    def per_text(self, values: Tensor) -> Tensor:
        """Values of utterances, repeated for each of their texts: [B, ...] -> [B · N, ...]."""
        return repeated(values, self.num_texts)

    def per_token(self, losses: Tensor) -> Tensor:
        """The training loss: losses of texts [B · N] -> losses per token of utterances [B].

        Σ_n p_n · (loss of text n / its number of tokens), with p the weights.
        """
        by_token = losses / self.token_lengths.clamp(min=1)
        if self.weights is None:
            return by_token
        return (by_token * self.weights).unflatten(0, (-1, self.num_texts)).sum(dim=1)


def repeated(values: Tensor, times: int) -> Tensor:
    """Each row repeated: [B, ...] -> [B · times, ...]; its gradient is a plain sum.

    >>> repeated(torch.tensor([1, 2]), 3).tolist()
    [1, 1, 1, 2, 2, 2]
    """
    if times == 1:
        return values
    return values[:, None].expand(-1, times, *values.shape[1:]).flatten(0, 1)


def padded_tokens(texts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Texts as rows padded with zeros [n, U], and their numbers of tokens [n].

    >>> padded_tokens([[5, 6], [], [7]])[0].tolist()
    [[5, 6], [0, 0], [7, 0]]
    """
    lengths = [len(text) for text in texts]
    tokens = np.zeros((len(texts), max(lengths)), dtype=np.int64)
    for row, text in zip(tokens, texts, strict=True):
        row[: len(text)] = text
    return torch.from_numpy(tokens), torch.tensor(lengths)


def collate(
    store: Utterances, indices: Sequence[int] | np.ndarray, encode: Callable[[str], list[int]]
) -> Batch:
    """The utterances at `indices` of the store as one batch, texts encoded by `encode`.

    An index of −1 is a placeholder: one frame of zeros and no tokens.
    """
    places = tuple(int(index) for index in indices)
    assert places, "a batch needs an utterance"
    texts = [encode(store.text(place)) if place >= 0 else [] for place in places]
    tokens, token_lengths = padded_tokens(texts)
    feature_lengths = torch.tensor([int(store.num_frames[place]) if place >= 0 else 1 for place in places])
    features = np.zeros((len(places), int(feature_lengths.max()), store.dim), dtype=np.float32)
    for row, place in enumerate(places):
        if place >= 0:
            frames = store.features(place)
            features[row, : len(frames)] = frames
    return Batch(torch.from_numpy(features), feature_lengths, tokens, token_lengths, places)


def plan_batches(
    num_frames: np.ndarray,
    indices: np.ndarray,
    max_frames: int,
    generator: np.random.Generator | None,
) -> list[np.ndarray]:
    """Divide `indices` into batches of at most `max_frames` frames, padding included.

    num_frames [n] holds the lengths of all utterances. An utterance longer than `max_frames` is a batch of
    its own. Batches go from the shortest utterances to the longest; the generator decides which utterances of
    similar length are in a batch together.

    >>> plan_batches(np.array([30, 10, 20, 99]), np.arange(4), max_frames=60, generator=None)
    [array([1, 2]), array([0]), array([3])]
    """
    if max_frames < 1:
        raise ValueError(f"a batch needs room for at least one frame, not {max_frames}")
    indices = np.asarray(indices, dtype=np.int64)
    lengths = num_frames[indices].astype(np.float64)
    if generator is None:
        order = np.lexsort((indices, lengths))
    else:
        order = np.argsort(lengths * generator.uniform(1 - JITTER, 1 + JITTER, len(lengths)), kind="stable")
    return _pack(indices[order], num_frames, max_frames)


def unlabelled_batches(
    store: Utterances,
    indices: np.ndarray,
    max_seconds: float,
    feed: Callable[[np.ndarray], Batch] | None = None,
) -> Iterator[tuple[np.ndarray, Batch]]:
    """Batches without texts of utterances to recognise, with their indices, from the shortest to the longest.

    With a feed (`antiphon.data.batches`), the batch is already on the device.
    """
    max_frames = max(1, int(max_seconds * store.frames_per_second))
    for chosen in plan_batches(store.num_frames, indices, max_frames, None):
        yield chosen, feed(chosen) if feed else collate(store, chosen, lambda text: [])


def _pack(ordered: np.ndarray, num_frames: np.ndarray, max_frames: int) -> list[np.ndarray]:
    """Cut a sequence of utterances wherever one more would make the padded batch too large."""
    starts, longest = [0], 0
    for place, length in enumerate(num_frames[ordered].tolist()):
        longest = max(longest, length)
        if place > starts[-1] and (place + 1 - starts[-1]) * longest > max_frames:
            starts.append(place)
            longest = length
    return np.split(ordered, starts[1:]) if len(ordered) else []


# --- Batches on the device -------------------------------------------------------------------------
# All features at once if they fit there, else read ahead of the training. A place of −1 is a placeholder, for
# stacked clients with batches of unequal size: a row of one zero frame and no tokens. Its loss is finite and
# has no weight.


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
