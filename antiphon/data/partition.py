"""Partitions: ways to divide utterances among clients. Each utterance goes to exactly one client.

A partition is called with a store, the indices of the utterances and a seed. It returns client name ->
utterance indices. Indices increase, so that a client's frames are read forward through the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from antiphon.data.store import FeatureStore
from antiphon.registry import Registry
from antiphon.seeding import derive

Clients = dict[str, np.ndarray]


class Partition(Protocol):
    """A frozen dataclass: (store, indices of utterances, seed) -> the utterances of each client."""

    def __call__(self, store: FeatureStore, indices: np.ndarray, seed: int) -> Clients: ...


PARTITIONS = Registry("antiphon.partitions", kind=Partition, default="by_speaker")


@PARTITIONS.register
@dataclass(frozen=True)
class BySpeaker:
    """A client is a speaker: `speaker/1272`."""

    def __call__(self, store: FeatureStore, indices: np.ndarray, seed: int) -> Clients:
        return _by_name("speaker", store.speaker_names, store.speaker_codes, indices)


@PARTITIONS.register
@dataclass(frozen=True)
class BySession:
    """A client is a session with all its speakers: `session/1272-128104`."""

    def __call__(self, store: FeatureStore, indices: np.ndarray, seed: int) -> Clients:
        return _by_name("session", store.session_names, store.session_codes, indices)


@PARTITIONS.register
@dataclass(frozen=True)
class Iid:
    """A client is a random part: `part/0` … `part/<parts - 1>`. Sizes differ by at most one utterance."""

    parts: int  # number of clients

    def __call__(self, store: FeatureStore, indices: np.ndarray, seed: int) -> Clients:
        indices = _distinct(indices, self.parts)
        if self.parts > len(indices):
            raise ValueError(
                f"cannot divide {len(indices)} utterances into {self.parts} parts: choose fewer parts"
            )
        generator = np.random.default_rng(derive(seed, "partition", "iid"))
        divided = np.array_split(generator.permutation(indices), self.parts)
        return {f"part/{part}": np.sort(members) for part, members in enumerate(divided)}


@PARTITIONS.register
@dataclass(frozen=True)
class IidSpeakers:
    """A client is a random part of whole speakers. Parts differ by at most one speaker, and share none.

    These are the parts of FTL (Dimitriadis et al. 2020, §4): "random, with no overlapping speakers".
    """

    parts: int  # number of clients

    def __call__(self, store: FeatureStore, indices: np.ndarray, seed: int) -> Clients:
        indices = _distinct(indices, self.parts)
        codes = store.speaker_codes[indices]
        speakers = sorted(np.unique(codes).tolist(), key=lambda code: store.speaker_names[code])
        if self.parts > len(speakers):
            raise ValueError(
                f"cannot divide {len(speakers)} speakers into {self.parts} parts: choose fewer parts, or iid"
            )
        generator = np.random.default_rng(derive(seed, "partition", "iid speakers"))
        divided = np.array_split(generator.permutation(speakers), self.parts)
        return {f"part/{part}": indices[np.isin(codes, own)] for part, own in enumerate(divided)}


@PARTITIONS.register
@dataclass(frozen=True)
class Dirichlet:
    """A client is a part: each speaker's utterances are split in proportions ~ Dirichlet(concentration).

    Near 0, all utterances of a speaker go to one part; large concentrations approach i.i.d. parts. Empty
    parts are left out; the others keep their names. How a speaker's utterances are split depends only on
    them and the seed.
    """

    parts: int
    concentration: float

    def __call__(self, store: FeatureStore, indices: np.ndarray, seed: int) -> Clients:
        indices = _distinct(indices, self.parts)
        if not (self.concentration > 0 and np.isfinite(self.concentration)):
            raise ValueError(f"the Dirichlet concentration must be above 0, not {self.concentration}")
        part_of = np.empty(len(indices), dtype=np.int64)
        for code, positions in _groups(store.speaker_codes[indices]):
            part_of[positions] = self._draw_parts(len(positions), store.speaker_names[code], seed)
        return {f"part/{part}": indices[positions] for part, positions in _groups(part_of)}

    def _draw_parts(self, num_utterances: int, speaker: str, seed: int) -> np.ndarray:
        """Return the part of each of a speaker's utterances: [num_utterances]."""
        generator = np.random.default_rng(derive(seed, "partition", "dirichlet", speaker))
        shares = generator.dirichlet(np.full(self.parts, self.concentration))
        ends = np.rint(np.cumsum(shares) * num_utterances)
        # Position p goes to the first part that ends after p; rounding can put one beyond the last part.
        parts = np.minimum(np.searchsorted(ends, np.arange(num_utterances), side="right"), self.parts - 1)
        return generator.permutation(parts)


def _by_name(kind: str, names: list[str], codes: np.ndarray, indices: np.ndarray) -> Clients:
    indices = _distinct(indices)
    clients = {f"{kind}/{names[code]}": indices[positions] for code, positions in _groups(codes[indices])}
    return dict(sorted(clients.items()))


def _groups(codes: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Yield each code that occurs, increasing, with its positions, increasing."""
    order = np.argsort(codes, kind="stable")
    distinct, starts = np.unique(codes[order], return_index=True)
    for code, positions in zip(distinct, np.split(order, starts[1:]), strict=True):
        yield int(code), positions


def _distinct(indices: np.ndarray, num_parts: int = 1) -> np.ndarray:
    distinct = np.unique(indices)
    if len(distinct) == 0:
        raise ValueError("no utterances to divide among clients: check the split and the speakers chosen")
    if num_parts < 1:
        raise ValueError(f"the number of parts must be at least 1, not {num_parts}")
    assert len(distinct) == len(indices), "an utterance was given twice"
    return distinct
