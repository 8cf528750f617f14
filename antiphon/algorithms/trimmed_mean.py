"""The trimmed mean of the clients' updates: for every entry, the largest and smallest values are left out.

D. Yin, Y. Chen, K. Ramchandran, P. Bartlett, "Byzantine-Robust Distributed Learning: Towards Optimal
Statistical Rates", ICML 2018, arXiv:1803.01498: Definition 2, Algorithm 1, option II.

| paper         | here                                                                         |
| ------------- | ---------------------------------------------------------------------------- |
| m             | clients that answered                                                        |
| β             | `trim`, at least the share of bad clients, below one half                    |
| trmean_β{x_k} | mean of the values of an entry without the βm smallest and the βm largest    |

Deviations. It is the mean of Δ_k, not of gradients, and the server's optimiser takes it like any aggregate.
⌊βm⌋ values are cut off at each end.

The rule needs all values of an entry in one place. A pool gives sums only, so each update is asked for as the
sum with weight 1 for one client. This takes memory for the updates of the whole cohort in every process of
the run, and one transfer of the model for each client between processes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from antiphon.algorithms.fedavg import FedAvg, hierarchical
from antiphon.core import ALGORITHMS, Collected, Metrics, Pool, ServerState, Tensors
from antiphon.server.weighting import NEGLIGIBLE, Uniform


@ALGORITHMS.register
@dataclass(frozen=True)
class TrimmedMean:
    """Federated averaging whose aggregate is the trimmed mean of the clients' updates, entry by entry."""

    inner: FedAvg = hierarchical()
    trim: float = 0.2  # share of the clients whose values are cut off at each end
    collects: ClassVar[bool] = True  # it needs single updates, which secure aggregation hides
    is_for_whole_models: ClassVar[bool] = True  # `antiphon prune` goes on with the inner algorithm

    def __post_init__(self) -> None:
        if not 0 <= self.trim < 0.5:
            raise ValueError(
                f"trim is a share of at least 0 and below 0.5, not {self.trim:g}: where half of the clients "
                "are bad, no rule can tell which half"
            )
        check_uniform(self.inner, "the trimmed mean")

    def init(self, params: Tensors) -> ServerState:
        return self.inner.init(params)

    def round(self, state: ServerState, cohort: Sequence[str], pool: Pool) -> tuple[ServerState, Metrics]:
        collected = pool.collect(self.inner.task(state), cohort)
        num_cut = share_of(self.trim, len(collected.reports))
        mean, shares = trimmed_mean(single_updates(collected), num_cut)
        # The journal shows the last weights: a client's share of the values that count.
        collected.combine([math.log(share) if share else NEGLIGIBLE for share in shares])
        state, metrics = self.inner.step(state, mean)
        return state, {**metrics, "num_cut": num_cut}


def trimmed_mean(updates: Sequence[Tensors], num_cut: int) -> tuple[Tensors, list[float]]:
    """Return the mean without the `num_cut` smallest and largest values of each entry.

    The second result is each update's share of the values that are left.
    """
    mean: Tensors = {}
    counts = torch.zeros(len(updates), dtype=torch.int64)
    for name in updates[0]:
        ordered, sources = torch.stack([update[name] for update in updates]).sort(dim=0)
        kept = slice(num_cut, len(updates) - num_cut)
        mean[name] = ordered[kept].mean(dim=0)
        counts += torch.bincount(sources[kept].flatten(), minlength=len(updates)).cpu()
    return mean, (counts / counts.sum()).tolist()


def single_updates(collected: Collected) -> list[Tensors]:
    """Return the tensors of every update, in the order of the reports."""
    return [single_update(collected, place) for place in range(len(collected.reports))]


def single_update(collected: Collected, place: int) -> Tensors:
    """Return the tensors of one update: the sum in which only this one counts."""
    weights = [0.0 if other == place else NEGLIGIBLE for other in range(len(collected.reports))]
    return collected.combine(weights).mean


def share_of(share: float, count: int) -> int:
    """Return ⌊share · count⌋, without the error of a product such as 0.29 · 100."""
    return math.floor(share * count + 1e-9)


def check_uniform(inner: FedAvg, rule: str) -> None:
    if inner.weighting != Uniform():
        raise ValueError(f"{rule} counts clients, and has no weights: set inner.weighting=uniform")
