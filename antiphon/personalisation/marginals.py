"""The client's half of Federated Marginal Personalization: it reports how often it said each word.

Liu and Peng, 2020, §2.2. `word_cache` defines what is counted, `algorithms.fmp` what the server does with it.
A report is a dense row over the vocabulary, made when it is sent. What a client keeps is sparse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from antiphon.core import Failure, Report, Task, Unusable, Update
from antiphon.personalisation.word_cache import Cache

KIND = TENSOR = "marginal"
Cap = Callable[[Tensor], Tensor]  # a client's counts -> the counts that it sends


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
        marginal = marginal - task.tensors[TENSOR].to(marginal)
    stats = {"pseudo_count": total, "num_words": float((counts > 0).sum())}
    return Update({TENSOR: marginal}, reports=(Report(client, stats),))


@dataclass(frozen=True)
class MarginalWorker:
    """A worker for clients whose caches are in memory. Clients apply `cap`; the server cannot change it.

    caches: by client; or a function of the round, for clients that know more in every round.
    """

    caches: Mapping[str, Cache] | Callable[[int], Mapping[str, Cache]]
    size: int  # of the vocabulary
    cap: Cap | None = None

    def run(self, task: Task, clients: Sequence[str]) -> Iterator[Update]:
        if task.kind != KIND:
            raise ValueError(f"no client work of kind {task.kind!r}; there is {KIND}")
        caches = self.caches(task.moment[0]) if callable(self.caches) else self.caches
        for name in clients:
            if name not in caches:
                raise ValueError(f"no client {name!r} among the {len(caches)} clients here")
            try:
                yield report_marginal(name, caches[name], self.size, task, self.cap)
            except Unusable as error:
                yield Update.nothing(Failure(name, str(error)))
