"""The ledger: what has been spent of a privacy budget, and no release that would go past it.

A ledger is a value: `spend` returns the next one, or raises `Stopped` and nothing was released. Its `state`
(numbers and strings in dicts and a tuple) travels in the checkpoint of a run; a ledger resumed from it
goes on to the same last bit.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from antiphon.core import Scalar, Stopped
from antiphon.privacy.accounting import (
    Advanced,
    Basic,
    Budget,
    Composition,
    GaussianLoss,
    Loss,
    Renyi,
    loss_from_dict,
    loss_to_dict,
)
from antiphon.privacy.mechanisms import Mechanism

State = tuple[Mapping[str, Scalar], ...]


@dataclass(frozen=True)
class Ledger:
    """Releases made so far, in order, equal neighbours counted together.

    >>> from antiphon.privacy.accounting import Budget, LaplaceLoss
    >>> ledger = Ledger(Budget(epsilon=1.0)).spend(LaplaceLoss(sensitivity=1, scale=2))
    >>> print(ledger)
    1 release, epsilon 0.5 of 1 spent (Basic)
    """

    budget: Budget
    composition: Composition = Basic()
    spent: tuple[tuple[Loss, int], ...] = ()

    def __post_init__(self) -> None:
        if self.budget.delta == 0 and not isinstance(self.composition, Basic):
            raise ValueError("delta 0 leaves basic composition alone: give the budget a delta, or use Basic")

    @property
    def num_releases(self) -> int:
        return sum(times for _, times in self.spent)

    @property
    def epsilon(self) -> float:
        """ε of all releases so far, at the budget's δ."""
        return self.composition.epsilon(self.spent, self.budget.delta)

    @property
    def left(self) -> float:
        return self.budget.epsilon - self.epsilon

    def spend(self, loss: Loss) -> Ledger:
        """The ledger after one more release; `Stopped` if that is more than the budget has."""
        after = replace(self, spent=_with(self.spent, loss))
        if after.epsilon > self.budget.epsilon * (1 + 1e-9):  # sums of shares may be off in the last bits
            raise Stopped(
                f"the privacy budget allows no further release: {self}; {self.left:.4g} is left and one more "
                f"release would make it {after.epsilon:.4g}"
            )
        return after

    def check_affordable(self, loss: Loss) -> None:
        """Refuses, before work starts, a budget that not even one release fits in."""
        try:
            self.spend(loss)
        except Stopped as stopped:
            cost = self.composition.epsilon([(loss, 1)], self.budget.delta)
            raise ValueError(
                f"one release costs epsilon {cost:.4g}, more than the budget of {self.budget.epsilon:.4g} "
                "has left: add noise or raise the budget"
            ) from stopped

    def state(self) -> State:
        return tuple({**loss_to_dict(loss), "times": times} for loss, times in self.spent)

    def resumed(self, state: Sequence[Mapping[str, Any]]) -> Ledger:
        """This budget with the releases of a saved state."""
        spent = tuple((loss_from_dict(entry), int(entry["times"])) for entry in state)
        return replace(self, spent=spent)

    def __str__(self) -> str:
        releases = "1 release" if self.num_releases == 1 else f"{self.num_releases} releases"
        delta = f" at delta {self.budget.delta:g}" if self.budget.delta else ""
        name = type(self.composition).__name__
        return f"{releases}, epsilon {self.epsilon:.4g} of {self.budget.epsilon:.4g} spent{delta} ({name})"


def _with(spent: tuple[tuple[Loss, int], ...], loss: Loss) -> tuple[tuple[Loss, int], ...]:
    if spent and spent[-1][0] == loss:
        return (*spent[:-1], (loss, spent[-1][1] + 1))
    return (*spent, (loss, 1))


# --- The paper's claim beside the honest total ----------------------------------------------------


@dataclass(frozen=True)
class Claim:
    """One row of a statement: what is protected, and how well."""

    unit: str
    rounds: int
    composition: str
    epsilon: float
    delta: float

    def short(self) -> str:
        """Return ε, rounded up to two digits, with its δ.

        >>> Claim("one client", 10, "renyi", 2.01, 1e-5).short()
        '2.1 (1e-5)'
        """
        if math.isinf(self.epsilon):
            return "∞"
        step = 10.0 ** (math.floor(math.log10(self.epsilon)) - 1) if self.epsilon else 1.0
        epsilon = math.ceil(self.epsilon / step - 1e-9) * step
        return f"{epsilon:.2g}" + (f" ({self.delta:.0e})".replace("e-0", "e-") if self.delta else "")


@dataclass(frozen=True)
class PrivacyStatement:
    """What the same noise says to the paper, to an utterance, and to a client.

    `utterance`: sensitivity to one utterance of uncapped counts (`utterance_sensitivity`); `client`: the cap,
    infinite without one. Under a cap one utterance more rescales all the client's words and rounds them anew,
    so it counts as a client that is replaced: twice the cap. `rounds` releases are composed: the caches are
    cumulative, so all of them carry the unit.
    """

    mechanism: Mechanism
    rounds: int
    utterance: float
    client: float = math.inf
    delta: float = 1e-5

    def claims(self) -> list[Claim]:
        word = self.mechanism.loss_at(1.0)
        needs = self.delta if isinstance(word, GaussianLoss) else 0.0
        paper = Claim("one word, one utterance (the paper's claim)", 1, "none", word.epsilon(needs), needs)
        utterance = self.utterance if math.isinf(self.client) else 2 * self.client
        units = (("one utterance", utterance), ("one client", self.client))
        return [paper, *(claim for unit, size in units for claim in self._totals(unit, size))]

    def _totals(self, unit: str, sensitivity: float) -> list[Claim]:
        if sensitivity == math.inf:
            return [Claim(f"{unit} (no cap)", self.rounds, "any", math.inf, 0.0)]
        loss = self.mechanism.loss_at(sensitivity)
        pure = 0.0 if not isinstance(loss, GaussianLoss) else self.delta
        ways: list[tuple[Composition, float]] = [(Basic(), pure), (Advanced(), self.delta)]
        ways += [(Renyi(), self.delta)] if has_renyi() else []
        return [
            Claim(
                unit,
                self.rounds,
                type(way).__name__.lower(),
                way.epsilon([(loss, self.rounds)], delta),
                delta,
            )
            for way, delta in ways
        ]


def has_renyi() -> bool:
    """Whether the optional accountant is installed."""
    return importlib.util.find_spec("dp_accounting") is not None
