"""What may leave the server: pooled counts, noised, paid for from the ledger, made a distribution again.

Liu and Peng 2020, eq. 8: q̄ = (counts + r) / (their sum). Here the same noised counts also end up on the
simplex (`simplex`), as a negative probability is of no use to a client.

Only noised counts are remembered, so whatever is in a checkpoint may be published. In `Secure` mode a round
must be saved before its outcome is sent to anyone (the engine does, with `save_every` 1): a round that is
done again draws other noise, and both outcomes together say more than the ledger knows. Noise is drawn by
whoever calls: several processes that each compute a round would each draw their own, so `Secure` is for one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from antiphon.core import Metrics
from antiphon.privacy.ledger import Ledger
from antiphon.privacy.mechanisms import Mechanism
from antiphon.privacy.samplers import Randomness, Secure
from antiphon.privacy.simplex import distribution_of


@dataclass(frozen=True)
class Released:
    """Counts that anyone may see; what the release has to remember for the next round; figures of it."""

    counts: Tensor
    memory: Mapping[str, Any]
    metrics: Metrics


class Release(Protocol):
    """Turns pooled counts [words] of a round into counts fit to be published."""

    def __call__(self, counts: Tensor, round: int, memory: Mapping[str, Any] | None) -> Released: ...


@dataclass(frozen=True)
class PrivateRelease:
    """Noise on the counts of every round. Raises `Stopped` instead of going past the ledger's budget."""

    mechanism: Mechanism
    ledger: Ledger
    background: Tensor
    randomness: Randomness = Secure()

    def __post_init__(self) -> None:
        self.ledger.check_affordable(self.mechanism.loss)

    def __call__(self, counts: Tensor, round: int, memory: Mapping[str, Any] | None) -> Released:
        ledger = self.ledger.resumed(memory["spent"] if memory else ()).spend(self.mechanism.loss)
        noised = self.mechanism.add(counts, self.randomness.words(round))
        distribution = distribution_of(noised, self.background)
        metrics = {"epsilon": ledger.epsilon, "epsilon_left": ledger.left}
        mass = max(1.0, float(noised.sum()))
        return Released(mass * distribution, {"spent": ledger.state(), "noised": noised}, metrics)
