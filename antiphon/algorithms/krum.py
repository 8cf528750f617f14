"""Krum: not the mean, but the update that is nearest to its neighbours; multi-Krum: the mean of a few.

P. Blanchard, E. M. El Mhamdi, R. Guerraoui, J. Stainer, "Machine Learning with Adversaries: Byzantine
Tolerant Gradient Descent", NeurIPS 2017: §4 (Krum), §6 (Multi-Krum).

| paper                     | here                                                              |
| ------------------------- | ----------------------------------------------------------------- |
| n, f                      | clients that answered; bad ones among them, ⌊`bad` · n⌋           |
| s(i) = Σ_{i→j} ‖V_i − V_j‖² | over the n − f − 2 nearest updates j of i: `scores`             |
| i*                        | the update with the lowest score                                  |
| m                         | `num_averaged`: the mean of the m updates with the lowest scores  |

The rule needs 2f + 2 < n. A cohort that is planned smaller is refused before the run. If clients drop out of
a round, f is lowered to the largest number that the answers bear; the journal has it as `num_bad`.

Deviations. V_i is Δ_i, not a gradient, and the server's optimiser takes the result like any aggregate. With
fewer than 3 answers, an update has one neighbour or none. Distances are measured where the updates are; each
update is sent around once as a point, so memory does not grow with the cohort where updates do not travel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from antiphon.algorithms.fedavg import FedAvg, hierarchical
from antiphon.algorithms.trimmed_mean import check_uniform, share_of, single_update
from antiphon.core import ALGORITHMS, Metrics, Pool, ServerState, Tensors
from antiphon.server.run_context import RunContext
from antiphon.server.weighting import NEGLIGIBLE


@ALGORITHMS.register
@dataclass(frozen=True)
class Krum:
    """Federated averaging whose aggregate is the update nearest to its neighbours, or the mean of a few."""

    inner: FedAvg = hierarchical()
    bad: float = 0.2  # share of the clients of a round that may be bad
    num_averaged: int = 1  # 1: Krum; more: multi-Krum; 0: all but the bad ones, n − f
    collects: ClassVar[bool] = True  # it needs single updates, which secure aggregation hides
    is_for_whole_models: ClassVar[bool] = True  # `antiphon prune` goes on with the inner algorithm

    def __post_init__(self) -> None:
        if not 0 <= self.bad < 0.5:
            raise ValueError(f"bad is a share of at least 0 and below 0.5, not {self.bad:g}")
        if self.num_averaged < 0:
            raise ValueError(f"num_averaged must not be negative, not {self.num_averaged}")
        check_uniform(self.inner, "Krum")

    def prepare(self, context: RunContext) -> Krum:
        """Refuse cohorts that are too small for the share of bad clients."""
        planned = min(context.cohort, len(context.clients))
        num_bad = share_of(self.bad, planned)
        if planned and num_bad > most_bad(planned):
            raise ValueError(
                f"Krum needs more than 2f + 2 = {2 * num_bad + 2} clients in a round for f = {num_bad} bad "
                f"ones, and there are {planned}: lower bad, or draw more clients (rounds.cohort)"
            )
        if planned and self.num_averaged > planned - num_bad:
            raise ValueError(
                f"Krum: {self.num_averaged} of {planned} updates would hold some of the {num_bad} bad ones: "
                f"num_averaged is at most {planned - num_bad}"
            )
        return self

    def init(self, params: Tensors) -> ServerState:
        return self.inner.init(params)

    def round(self, state: ServerState, cohort: Sequence[str], pool: Pool) -> tuple[ServerState, Metrics]:
        collected = pool.collect(self.inner.task(state), cohort)
        count = len(collected.reports)
        num_bad = min(share_of(self.bad, count), most_bad(count))
        distances = [collected.distances(single_update(collected, place)) for place in range(count)]
        chosen = lowest(scores(distances, num_bad), min(self.num_averaged or count, count - num_bad))
        weights = [0.0 if place in chosen else NEGLIGIBLE for place in range(count)]
        state, metrics = self.inner.step(state, collected.combine(weights).mean)
        return state, {**metrics, "num_bad": num_bad}


def most_bad(count: int) -> int:
    """Return the largest f with 2f + 2 < n."""
    return max(0, (count - 3) // 2)


def scores(distances: Sequence[Sequence[float]], num_bad: int) -> list[float]:
    """Return for each update the sum of the squared distances to its n − f − 2 nearest others.

    >>> scores([[0, 1, 5, 9], [1, 0, 4, 8], [5, 4, 0, 4], [9, 8, 4, 0]], num_bad=0)
    [26.0, 17.0, 32.0, 80.0]
    """
    num_near = max(1, len(distances) - num_bad - 2)
    found = []
    for place, row in enumerate(distances):
        others = sorted(distance for other, distance in enumerate(row) if other != place)
        found.append(sum(float(distance) ** 2 for distance in others[:num_near]))
    return found


def lowest(values: Sequence[float], count: int) -> set[int]:
    """Return the places of the lowest values; of equal ones, the first."""
    return set(sorted(range(len(values)), key=lambda place: (values[place], place))[:count])
