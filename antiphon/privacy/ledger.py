"""The ledger of a privacy budget: it records releases and refuses one that would exceed the budget.

A ledger does not change: `spend` returns the next ledger, or raises `Stopped` before anything is released.
Its `state` (numbers and strings in dicts and a tuple) is stored in the checkpoint of a run; a ledger that is
resumed from it continues with exactly the same numbers.
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
    """The releases so far, in order; equal releases in a row are counted together.

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
            raise ValueError(
                "only Basic composition works with delta 0: give the budget a delta, or use Basic"
            )

    @property
    def num_releases(self) -> int:
        return sum(times for _, times in self.spent)

    @property
    def epsilon(self) -> float:
        """The ε of all releases so far, at the budget's δ."""
        return self.composition.epsilon(self.spent, self.budget.delta)

    @property
    def left(self) -> float:
        return self.budget.epsilon - self.epsilon

    def spend(self, loss: Loss) -> Ledger:
        """Return the ledger after one more release; raise `Stopped` if it exceeds the budget."""
        after = replace(self, spent=_with(self.spent, loss))
        if after.epsilon > self.budget.epsilon * (1 + 1e-9):  # sums may differ in the last bits
            raise Stopped(
                f"the privacy budget allows no further release: {self}; {self.left:.4g} is left and one more "
                f"release would make it {after.epsilon:.4g}"
            )
        return after

    def check_affordable(self, loss: Loss) -> None:
        """Refuse, before work starts, a budget that is too small for one release."""
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
        """Return this ledger with the releases of a saved state."""
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


# --- The paper's claim beside the total of all rounds ---------------------------------------------


@dataclass(frozen=True)
class Claim:
    """One row of a statement: the protected unit, and its ε and δ after some rounds."""

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


def privacy_claims(
    mechanism: Mechanism, rounds: int, utterance: float, client: float = math.inf, delta: float = 1e-5
) -> list[Claim]:
    """Return the ε of the same noise as the paper counts it, for an utterance, and for a client.

    utterance: the sensitivity to one utterance without a cap (`utterance_sensitivity`). client: the cap;
    infinite without one. With a cap, one more utterance rescales and rounds all words of its client, so it
    counts as a client that is replaced: twice the cap. The caches are cumulative, so the release of every
    round contains the unit.
    """
    least_delta = delta if isinstance(mechanism.loss, GaussianLoss) else 0.0  # 0 for noise that needs no δ
    word = mechanism.loss_at(1.0).epsilon(least_delta)
    claims = [Claim("one word, one utterance (the paper's claim)", 1, "none", word, least_delta)]
    ways: list[tuple[Composition, float]] = [(Basic(), least_delta), (Advanced(), delta)]
    if importlib.util.find_spec("dp_accounting") is not None:  # the optional package for Rényi accounting
        ways.append((Renyi(), delta))
    utterance = utterance if math.isinf(client) else 2 * client
    for unit, sensitivity in (("one utterance", utterance), ("one client", client)):
        if math.isinf(sensitivity):
            claims.append(Claim(f"{unit} (no cap)", rounds, "any", math.inf, 0.0))
            continue
        releases = [(mechanism.loss_at(sensitivity), rounds)]
        for way, way_delta in ways:
            claims.append(
                Claim(unit, rounds, type(way).__name__.lower(), way.epsilon(releases, way_delta), way_delta)
            )
    return claims
