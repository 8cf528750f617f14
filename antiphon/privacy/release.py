"""Release pooled counts: add noise, charge the ledger, and make a distribution of them.

Liu and Peng 2020, eq. 8: q̄ = (counts + r) / (their sum). A negative probability is of no use to a client, so
the result is projected to the simplex. The projection is post-processing, which costs no privacy. It is that
of Duchi, Shalev-Shwartz, Singer, Chandra, "Efficient projections onto the l1-ball for learning in high
dimensions", ICML 2008, fig. 1: the nearest distribution in l2. Setting negative counts to zero instead would
keep half of the noise on words that were never said; with a large vocabulary that is most of the mass.

Only noised counts are stored, so everything in a checkpoint may be published. With `Secure`, a round must be
saved before its result is sent to anyone. A round that is repeated draws other noise, and both results
together reveal more than the ledger counts. The calling process draws the noise, so of several processes each
would draw its own. So runs with `Secure` that have several processes, or save only some rounds, are refused.

The sensitivity is that of one client, if its presence changes the counts of no other. Cohorts of a fixed size
that are drawn anew in each round break this: one more client changes who else is drawn. They are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from antiphon.core import Metrics
from antiphon.privacy.ledger import Ledger
from antiphon.privacy.mechanisms import Mechanism
from antiphon.privacy.samplers import Randomness, Secure


@dataclass(frozen=True)
class Released:
    """Public counts, the values to store for the next round, and figures for the journal."""

    counts: Tensor
    memory: Mapping[str, Any]
    metrics: Metrics


class Release(Protocol):
    """A function that turns the pooled counts [words] of a round into public counts."""

    def __call__(self, counts: Tensor, round: int, memory: Mapping[str, Any] | None) -> Released: ...


@dataclass(frozen=True)
class PrivateRelease:
    """Add noise to the counts of every round. Raises `Stopped` before the ledger's budget is exceeded."""

    mechanism: Mechanism
    ledger: Ledger
    background: Tensor
    randomness: Randomness = Secure()

    def __post_init__(self) -> None:
        self.ledger.check_affordable(self.mechanism.loss)

    def prepare(self, context: Any) -> PrivateRelease:
        """Refuse a run for which the ledger would state less than is revealed."""
        number = len(context.clients)
        if 0 < context.cohort < number:
            raise ValueError(
                f"a cohort of {context.cohort} of {number} clients is another one if there is one client "
                "more, so that client changes the counts of many, which the noise does not hide: let all "
                "clients report, or draw each by itself (privacy.participation)"
            )
        if isinstance(self.randomness, Secure) and context.save_every != 1:
            raise ValueError(
                f"rounds.save_every is {context.save_every}: a round that is repeated after a stop would "
                "publish the same counts with other noise, which reveals more than the ledger states: set it "
                "to 1"
            )
        if isinstance(self.randomness, Secure) and context.num_processes > 1:
            raise ValueError("secure noise is drawn by one process: several would each draw their own")
        return self

    def __call__(self, counts: Tensor, round: int, memory: Mapping[str, Any] | None) -> Released:
        ledger = self.ledger.resumed(memory["spent"] if memory else ()).spend(self.mechanism.loss)
        noised = self.mechanism.add(counts, self.randomness.words(round))
        distribution = distribution_of(noised, self.background)
        metrics = {"epsilon": ledger.epsilon, "epsilon_left": ledger.left}
        mass = max(1.0, float(noised.sum()))
        return Released(mass * distribution, {"spent": ledger.state(), "noised": noised}, metrics)


def distribution_of(counts: Tensor, background: Tensor) -> Tensor:
    """Return the distribution nearest to counts / total (eq. 8); the background if total is not positive."""
    total = counts.sum()
    return project(counts / total) if total > 0 else background


def project(values: Tensor) -> Tensor:
    """Return the point of the simplex nearest to `values`. [words] -> [words]

    >>> project(torch.tensor([0.6, 0.6, -0.2]))
    tensor([0.5000, 0.5000, 0.0000])
    """
    descending = values.sort(descending=True).values
    excess = (descending.cumsum(0) - 1) / torch.arange(1, len(values) + 1, dtype=values.dtype)
    support = int((descending > excess).sum())  # true for a prefix: ρ of the paper
    return (values - excess[support - 1]).clamp(min=0)
