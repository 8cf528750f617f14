"""Padded batches of utterances of similar length, within a budget of frames."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

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

    With a feed (`antiphon.data.feeding`), the batch is already on the device.
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
