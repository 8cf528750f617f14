"""A client's half of Federated Marginal Personalization: it tells how often it said which words.

Liu and Peng, 2020, §2.2: see `decoding.cache` for what is counted, `algorithms.fmp` for what becomes of it.
The report is one row over the vocabulary, made for the moment of sending; what a client keeps is sparse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from antiphon.core import Failure, Report, Task, Unusable, Update
from antiphon.personalisation.word_cache import Cache

KIND = TENSOR = "marginal"
Cap = Callable[[Tensor], Tensor]  # counts a client has -> counts it is willing to send


def report_marginal(client: str, cache: Cache, size: int, task: Task, cap: Cap | None = None) -> Update:
    """q_i of a client, or its difference to the task's q̄, weighted by c_i."""
    counts = torch.from_numpy(cache.dense(size))
    if cap is not None:
        counts = cap(counts)
    total = float(counts.sum())
    if total <= 0:
        raise Unusable("it has heard no word yet")
    own = counts / total
    if task.config.get("differences"):
        own = own - task.tensors[TENSOR].to(own)
    stats = {"pseudo_count": total, "num_words": float((counts > 0).sum())}
    return Update({TENSOR: own}, reports=(Report(client, stats),))


@dataclass(frozen=True)
class MarginalWorker:
    """Reports for clients whose caches are at hand. `cap` is the clients' own: no server can lift it."""

    caches: Mapping[str, Cache]
    size: int  # of the vocabulary
    cap: Cap | None = None

    def run(self, task: Task, clients: Sequence[str]) -> Iterator[Update]:
        if task.kind != KIND:
            raise ValueError(f"no client work of kind {task.kind!r}; there is {KIND}")
        for name in clients:
            if name not in self.caches:
                raise ValueError(f"no client {name!r} among the {len(self.caches)} clients here")
            try:
                yield report_marginal(name, self.caches[name], self.size, task, self.cap)
            except Unusable as error:
                yield Update.nothing(Failure(name, str(error)))
