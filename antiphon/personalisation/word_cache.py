"""The client's half of Federated Marginal Personalization: how often it said each word, and what it reports.

Z. Liu and F. Peng, "Federated Marginal Personalization for ASR Rescoring", 2020, §2.2. Words are counted in
N-best lists. `algorithms.fmp` defines what the server does with the reports.

| symbol | here |
| --- | --- |
| K(s) | `rank_weights`, eq. 3 |
| Σ_s K(s) c_s(w) | `Cache.counts` of word w |
| c_i | `Cache.total`, eq. 5 |

Conventions: if hypotheses have the same text, only the first counts, and the next ones move up a rank. σ = 0
is the limit of small σ: only the best hypothesis counts. σ = ∞ gives all of them the same weight.

Beyond the paper: `agreement`. Wrong words are counted too. A word is more likely to be wrong if few
hypotheses of its list contain it. So a word counts by the share of hypotheses that contain it, to the power
of `agreement`. With 0, as in the paper, all words of a hypothesis count alike.

A cache needs 12 bytes for each *different* word that a client said, for any size of the vocabulary: 10,000
clients with 2,000 different words each take 240 MB. Dense rows of 100,000 words would take 8 GB. A report is
a dense row, made when it is sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from antiphon.algorithms.fmp import MARGINAL, PSEUDO_COUNT
from antiphon.core import Failure, Report, Task, Unusable, Update
from antiphon.decoding.nbest import NBest

NEGLIGIBLE = 1e-6  # weights below it are not counted
Cap = Callable[[Tensor], Tensor]  # a client's counts -> the counts that it sends


@dataclass(frozen=True)
class Cache:
    """Word ids, sorted [n] int32, and their counts [n] float64, all above zero.

    >>> cache = Cache().plus(np.array([7, 3, 7]), np.array([1.0, 0.5, 1.0]))
    >>> cache.ids.tolist(), cache.counts.tolist(), cache.total
    ([3, 7], [0.5, 2.0], 2.5)
    >>> cache.at(np.array([7, 4])).tolist()
    [2.0, 0.0]
    """

    ids: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int32))
    counts: np.ndarray = field(default_factory=lambda: np.zeros(0))

    @property
    def total(self) -> float:
        return float(self.counts.sum())

    def plus(self, ids: np.ndarray, counts: np.ndarray) -> Cache:
        """Return the cache with these counts added; an id may occur more than once."""
        all_ids, places = np.unique(np.concatenate([self.ids, ids]), return_inverse=True)
        summed = np.bincount(places, np.concatenate([self.counts, counts]), minlength=len(all_ids))
        return Cache(all_ids.astype(np.int32), summed)

    def at(self, ids: np.ndarray) -> np.ndarray:
        """Return the counts of these words; 0 for a word that was never said."""
        if not len(self.ids):
            return np.zeros(len(ids))
        places = np.minimum(np.searchsorted(self.ids, ids), len(self.ids) - 1)
        return np.where(self.ids[places] == ids, self.counts[places], 0.0)

    def dense(self, size: int) -> np.ndarray:
        """Return the counts as a row over the whole vocabulary."""
        row = np.zeros(size)
        row[self.ids] = self.counts
        return row

    def observed(
        self, entry: NBest, encode: Callable[[str], np.ndarray], sigma: float, agreement: float = 0.0
    ) -> Cache:
        """Return the cache with the words of a list added."""
        if not agreement >= 0:
            raise ValueError(f"agreement must not be negative, got {agreement}")
        texts = list(dict.fromkeys(hypothesis.text for hypothesis in entry.hypotheses))
        weights = rank_weights(len(texts), sigma)
        rows = [encode(text) for text in texts[: len(weights)]]
        if not any(map(len, rows)):
            return self
        ids, counts = np.concatenate(rows), np.repeat(weights, list(map(len, rows)))
        if agreement > 0:
            rows += [encode(text) for text in texts[len(weights) :]]
            having = Counter(word for row in rows for word in set(row.tolist()))
            shares = np.array([having[word] for word in ids.tolist()]) / len(texts)
            counts = counts * shares**agreement
        return self.plus(ids, counts)


def rank_weights(num_hypotheses: int, sigma: float) -> np.ndarray:
    """Return K of ranks 1, 2, … (eq. 3), without negligible weights.

    >>> rank_weights(3, 1.0).round(4).tolist(), rank_weights(3, 0.0).tolist()
    ([1.0, 0.6065, 0.1353], [1.0])
    >>> rank_weights(3, np.inf).tolist()
    [1.0, 1.0, 1.0]
    """
    if not sigma >= 0:
        raise ValueError(f"sigma must not be negative, got {sigma}")
    places = np.arange(num_hypotheses, dtype=np.float64)
    if sigma == 0:
        return np.ones(min(num_hypotheses, 1))
    with np.errstate(over="ignore"):  # the square of a tiny σ would be zero, that of 1/σ may be infinite
        weights: np.ndarray = np.exp(-0.5 * (places / sigma) ** 2)
    return weights[weights > NEGLIGIBLE]


def report_marginal(client: str, cache: Cache, size: int, task: Task, cap: Cap | None = None) -> Update:
    """Return q_i of a client, or its difference from the task's q̄, weighted by c_i."""
    counts = torch.from_numpy(cache.dense(size))
    if cap is not None:
        counts = cap(counts)
    total = float(counts.sum())
    if total <= 0:
        raise Unusable("it has heard no word yet")
    marginal = counts / total
    if task.config.get("differences"):
        marginal = marginal - task.tensors[MARGINAL].to(marginal)
    stats = {PSEUDO_COUNT: total, "num_words": float((counts > 0).sum())}
    return Update({MARGINAL: marginal}, reports=(Report(client, stats),))


@dataclass(frozen=True)
class MarginalWorker:
    """A worker for clients whose caches are in memory. Clients apply `cap`; the server cannot change it.

    caches: by client; or a function of the round, for clients that know more in every round.
    """

    caches: Mapping[str, Cache] | Callable[[int], Mapping[str, Cache]]
    size: int  # of the vocabulary
    cap: Cap | None = None

    def run(self, task: Task, clients: Sequence[str]) -> Iterator[Update]:
        if task.kind != MARGINAL:
            raise ValueError(f"no client work of kind {task.kind!r}; there is {MARGINAL}")
        caches = self.caches(task.moment[0]) if callable(self.caches) else self.caches
        for name in clients:
            if name not in caches:
                raise ValueError(f"no client {name!r} among the {len(caches)} clients here")
            try:
                yield report_marginal(name, caches[name], self.size, task, self.cap)
            except Unusable as error:
                yield Update.nothing(Failure(name, str(error)))
