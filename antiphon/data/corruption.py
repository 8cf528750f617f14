"""Clients whose data are bad, on purpose: who they are, and what is wrong with what they have.

Corrupted are utterances of the federated speakers alone, never those of the server's own (seed), validation
and test speakers. Which ones is settled once for an experiment: its runs may deal the same speech out to
clients differently, and all of them still train on the same good and bad utterances. A run whose clients
are those chosen from here (`clients`) has clients that are wholly corrupted and others that are wholly clean;
in any other, a client is corrupted by the share of its utterances that are.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from antiphon.data.distortion import Distortion
from antiphon.data.partition import BySession, BySpeaker, Clients, Dirichlet, Iid
from antiphon.data.store import FeatureStore
from antiphon.data.wrong_texts import OfOthers, Shuffled
from antiphon.seeding import derive


@dataclass(frozen=True)
class Chosen:
    """The corrupted clients with the utterances they keep.

    is_corrupted, is_dropped: [all utterances of the store] bool; the latter were taken from them.
    """

    kept: Mapping[str, np.ndarray]
    is_corrupted: np.ndarray
    is_dropped: np.ndarray

    @property
    def utterances(self) -> np.ndarray:
        """All that are corrupted, increasing."""
        return np.flatnonzero(self.is_corrupted)

    def left(self, clients: Clients) -> Clients:
        """What the clients of a run still have; one that has nothing is no client."""
        remaining = {name: own[~self.is_dropped[own]] for name, own in clients.items()}
        return {name: own for name, own in remaining.items() if len(own)}

    def shares(self, clients: Clients) -> dict[str, float]:
        """The corrupted share of the utterances of each client of a run, where there is any."""
        shares = {name: float(self.is_corrupted[own].mean()) for name, own in clients.items()}
        return {name: share for name, share in shares.items() if share > 0}


@dataclass(frozen=True)
class Corruption:
    """A `fraction` of the clients, or those in `names`, have bad data.

    The seed is its own, so that runs with other seeds have the same bad clients; it and a client's name alone
    decide who is chosen, and a larger fraction keeps the clients of a smaller one. `clients`: what is chosen
    from. `keep`, `most`: the share and the largest number of utterances that are left to them (0: all).
    """

    fraction: float = 0.0
    names: tuple[str, ...] = ()
    clients: BySpeaker | BySession | Iid | Dirichlet = BySpeaker()
    seed: int = 0
    audio: Distortion = Distortion()
    transcripts: Shuffled | OfOthers | None = None
    keep: float = 1.0
    most: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.fraction <= 1:
            raise ValueError(f"fraction is a share of the clients between 0 and 1, not {self.fraction:g}")
        if self.fraction and self.names:
            raise ValueError("clients are chosen by fraction or by names, not by both: leave one of them out")
        if len(set(self.names)) < len(self.names):
            raise ValueError(f"a client is named twice in {', '.join(self.names)}")
        if not 0 < self.keep <= 1:
            raise ValueError(f"keep is a share of utterances above 0 and up to 1, not {self.keep:g}")
        if self.most < 0:
            raise ValueError(f"most is a number of utterances, 0 for all of them, not {self.most}")
        changes_data = self.audio != Distortion() or self.transcripts is not None
        takes_data = self.keep < 1 or self.most > 0
        if (self.fraction or self.names) and not (changes_data or takes_data):
            raise ValueError(
                "clients are chosen but nothing is done to them: set audio.speed, audio.room.t60, "
                "audio.noise, audio.clipped, transcripts, keep or most"
            )

    def choose(self, store: FeatureStore, federated: np.ndarray, seed: int) -> Chosen:
        """The corrupted among the clients of the federated utterances, dealt out by the experiment's seed."""
        kept: dict[str, np.ndarray] = {}
        is_corrupted, is_dropped = np.zeros((2, len(store)), dtype=bool)
        if self.fraction or self.names:
            try:
                clients = self.clients(store, federated, seed)
            except ValueError as error:
                raise ValueError(f"corruption.clients: {error}") from error
            for name in self._chosen(clients):
                kept[name] = self._kept(name, clients[name])
                is_corrupted[kept[name]] = True
                is_dropped[np.setdiff1d(clients[name], kept[name])] = True
        return Chosen(kept, is_corrupted, is_dropped)

    def _chosen(self, clients: Clients) -> list[str]:
        """Names of the corrupted clients, sorted; one at least where a fraction is asked for."""
        for name in self.names:
            if name not in clients:
                near = difflib.get_close_matches(name, clients, n=1) or list(clients)
                raise ValueError(
                    f"corruption.names: no client {name!r} among the {len(clients)} federated ones; "
                    f"did you mean {near[0]!r}?"
                )
        order = sorted(clients, key=lambda name: (derive(self.seed, "corrupted", name), name))
        return sorted(self.names or order[: max(1, round(self.fraction * len(order)))])

    def _kept(self, name: str, indices: np.ndarray) -> np.ndarray:
        """Increasing; one at least, and the same ones plus some for a larger share."""
        count = min(math.ceil(self.keep * len(indices)), self.most or len(indices))
        order = np.random.default_rng(derive(self.seed, "keep", name)).permutation(len(indices))
        return np.sort(indices[order[:count]])
