"""Padded batches of utterances of similar length, within a budget of frames."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from antiphon.data.processes import map_ahead

JITTER = 0.1  # lengths are changed at random by up to this share before sorting: neighbours vary
RESIDENT_SHARE = 0.25  # the share of the device's memory that the corpus may fill
Encode = Callable[[str], list[int]]


class Utterances(Protocol):
    """The source of batches, such as a `FeatureStore`, which describes the arrays."""

    dim: int
    frames_per_second: float
    first_frame: np.ndarray
    num_frames: np.ndarray
    seconds: np.ndarray

    @property
    def frames(self) -> np.ndarray: ...
    def __len__(self) -> int: ...
    def features(self, index: int) -> np.ndarray: ...
    def text(self, index: int) -> str: ...


@dataclass(frozen=True)
class Batch:
    """Utterances, padded at the end with zeros.

    features [B, T, D] float32, feature_lengths [B] int64, tokens [B, U] int64, token_lengths [B] int64;
    `indices` are those of the utterances in their store.

    An utterance may have N candidate texts instead of one. Then tokens are [B · N, U], with the texts of an
    utterance next to each other, and `weights` [B · N] are the weights of the texts. The model encodes the
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

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        weights = () if self.weights is None else (self.weights,)
        return self.features, self.feature_lengths, self.tokens, self.token_lengths, *weights

    @classmethod
    def of(cls, tensors: Sequence[Tensor], indices: tuple[int, ...] = ()) -> Batch:
        """Make a batch from tensors in the order of the property `tensors`."""
        features, feature_lengths, tokens, token_lengths, *weights = tensors
        return cls(features, feature_lengths, tokens, token_lengths, indices, *weights)

    @property
    def num_texts(self) -> int:
        """N, the number of texts of each utterance."""
        return len(self.tokens) // len(self.features)

    def per_text(self, values: Tensor) -> Tensor:
        """Repeat the values of each utterance for each of its texts: [B, ...] -> [B · N, ...]."""
        return repeated(values, self.num_texts)

    def per_token(self, losses: Tensor) -> Tensor:
        """Return the training losses of utterances [B] from the losses of their texts [B · N].

        Σ_n p_n · (loss of text n / its number of tokens), with p the weights.
        """
        by_token = losses / self.token_lengths.clamp(min=1)
        if self.weights is None:
            return by_token
        return (by_token * self.weights).unflatten(0, (-1, self.num_texts)).sum(dim=1)


def repeated(values: Tensor, times: int) -> Tensor:
    """Repeat each row: [B, ...] -> [B · times, ...]. The gradient is a plain sum.

    >>> repeated(torch.tensor([1, 2]), 3).tolist()
    [1, 1, 1, 2, 2, 2]
    """
    if times == 1:
        return values
    return values[:, None].expand(-1, times, *values.shape[1:]).flatten(0, 1)


def padded_tokens(texts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Return texts as rows padded with zeros [n, U], and their numbers of tokens [n].

    >>> padded_tokens([[5, 6], [], [7]])[0].tolist()
    [[5, 6], [0, 0], [7, 0]]
    """
    rows = [torch.tensor(text, dtype=torch.int64) for text in texts]
    return pad_sequence(rows, batch_first=True), torch.tensor([len(text) for text in texts])


def collate(store: Utterances, indices: Sequence[int] | np.ndarray, encode: Encode) -> Batch:
    """Return the utterances of the store at `indices` as one batch.

    An index of −1 is a placeholder: one frame of zeros and no tokens.
    """
    indices = tuple(int(index) for index in indices)
    assert indices, "a batch needs an utterance"
    tokens, token_lengths = padded_tokens([encode(store.text(i)) if i >= 0 else [] for i in indices])
    feature_lengths = torch.tensor([int(store.num_frames[i]) if i >= 0 else 1 for i in indices])
    features = torch.zeros(len(indices), int(feature_lengths.max()), store.dim)
    values = features.numpy()  # in torch's memory: see `checkpoint.in_own_memory`
    for row, index in enumerate(indices):
        if index >= 0:
            frames = store.features(index)
            values[row, : len(frames)] = frames
    return Batch(features, feature_lengths, tokens, token_lengths, indices)


def plan_batches(
    num_frames: np.ndarray, indices: np.ndarray, max_frames: int, generator: np.random.Generator | None
) -> list[np.ndarray]:
    """Divide `indices` into batches of at most `max_frames` frames, padding included.

    num_frames [n] holds the lengths of all utterances. An utterance longer than `max_frames` is a batch of
    its own. Batches go from the shortest utterances to the longest. The generator decides which utterances of
    similar length share a batch.

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
    ordered, starts, longest = indices[order], [0], 0
    for position, length in enumerate(num_frames[ordered].tolist()):
        longest = max(longest, length)
        if position > starts[-1] and (position + 1 - starts[-1]) * longest > max_frames:
            starts.append(position)
            longest = length
    return np.split(ordered, starts[1:]) if len(ordered) else []


def unlabelled_batches(
    store: Utterances,
    indices: np.ndarray,
    max_seconds: float,
    feed: Callable[[np.ndarray], Batch] | None = None,
) -> Iterator[tuple[np.ndarray, Batch]]:
    """Yield batches without texts, for recognition, with their indices, from the shortest to the longest.

    A `Feeder` as `feed` returns batches that are already on the device.
    """
    max_frames = max(1, int(max_seconds * store.frames_per_second))
    for chosen in plan_batches(store.num_frames, indices, max_frames, None):
        yield chosen, feed(chosen) if feed else collate(store, chosen, lambda text: [])


# --- Batches on the device -------------------------------------------------------------------------
# All features are there at once if they fit, else they are read ahead of the training. An index of −1 is a
# placeholder, for stacked clients with batches of unequal size. Its loss is finite and has no weight.


def feeder(store: Utterances, encode: Encode, device: torch.device) -> Feeder:
    """Return the fastest feeder for this store and device."""
    if device.type == "cuda":
        memory = torch.cuda.get_device_properties(device).total_memory
        num_values = int(store.first_frame[-1]) * store.dim
        if np.dtype(np.float16).itemsize * num_values <= RESIDENT_SHARE * memory:
            return Resident(store, encode, device)
    return Streamed(store, encode, device)


class Streamed:
    """Reads every batch from the store. Sends it to a GPU through pinned memory, without waiting."""

    def __init__(self, store: Utterances, encode: Encode, device: torch.device) -> None:
        self.store, self.encode, self.device = store, encode, device

    def __call__(self, indices: np.ndarray) -> Batch:
        return self._read(indices).to(self.device)

    def one_by_one(self, plan: Iterable[np.ndarray]) -> Iterator[Batch]:
        """Yield batches in order; for a GPU, a thread reads the next two while this one is trained on."""
        if self.device.type != "cuda":
            yield from map(self, plan)
            return
        for _, batch in map_ahead(ThreadPoolExecutor(1), self._read, plan, 3):
            yield batch.to(self.device)

    def _read(self, indices: np.ndarray) -> Batch:
        batch = collate(self.store, indices, self.encode)
        if self.device.type != "cuda":
            return batch
        return Batch.of([tensor.pin_memory() for tensor in batch.tensors], batch.indices)


class Resident:
    """Keeps all frames (float16) and tokens on the device: a batch is one gather, only indices are sent."""

    def __init__(self, store: Utterances, encode: Encode, device: torch.device) -> None:
        self.device = device
        self.frames = torch.from_numpy(store.frames.copy()).to(device)
        texts = [encode(store.text(index)) for index in range(len(store))]
        self.tokens = torch.tensor([token for text in texts for token in text] or [0]).to(device)
        # The last entry, at index −1, is the placeholder, with a masked frame and no token.
        self.first_frame = np.append(store.first_frame[:-1], 0)
        self.num_frames = np.append(store.num_frames, 0).astype(np.int64)
        self.num_tokens = np.array([*(len(text) for text in texts), 0], dtype=np.int64)
        self.first_token = np.cumsum(self.num_tokens) - self.num_tokens

    def __call__(self, indices: np.ndarray) -> Batch:
        features = self._rows(self.frames, self.first_frame[indices], self.num_frames[indices], 1)
        tokens = self._rows(self.tokens, self.first_token[indices], self.num_tokens[indices], 0)
        lengths = self._to_device(np.maximum(self.num_frames[indices], 1))
        token_lengths = self._to_device(self.num_tokens[indices])
        return Batch(features.float(), lengths, tokens, token_lengths, tuple(indices.tolist()))

    def one_by_one(self, plan: Iterable[np.ndarray]) -> Iterator[Batch]:
        return map(self, plan)

    def _rows(self, values: Tensor, first: np.ndarray, count: np.ndarray, min_length: int) -> Tensor:
        """Return rows of unequal length of `values`, padded with zeros: [B, longest, ...]."""
        position = torch.arange(max(int(count.max()), min_length), device=self.device)
        source = self._to_device(first)[:, None] + position
        is_real = position < self._to_device(count)[:, None]
        rows = values[source.masked_fill(~is_real, 0)]
        return rows.masked_fill(~is_real.view(*is_real.shape, *[1] * (rows.dim() - 2)), 0)

    def _to_device(self, numbers: np.ndarray) -> Tensor:
        return to_device(torch.from_numpy(np.ascontiguousarray(numbers)), self.device)


Feeder = Streamed | Resident  # brings the utterances of the store at `indices` to the device as one batch


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Send the tensor to the device without waiting."""
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)
