"""Personalisation with noise on what the server publishes: error rates, and the privacy that the noise gives.

Liu and Peng 2020, §4 and table 4. For each ε: the paper's claim (one word of one utterance, one round), and
what the same noise means for a whole utterance and for a whole client after all rounds.

A client's own words never leave it. So the noise affects only the shared words (α), not its own (β).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch

from antiphon.algorithms.fmp import Fmp
from antiphon.personalisation.marginal_adaptation import Mixture
from antiphon.personalisation.trial import Trial
from antiphon.personalisation.word_cache import rank_weights
from antiphon.privacy.accounting import Budget, Renyi
from antiphon.privacy.ledger import Claim, Ledger, PrivacyStatement
from antiphon.privacy.mechanisms import (
    Cap,
    CapL1,
    CapL2,
    Gaussian,
    Laplace,
    Mechanism,
    Rounded,
    gaussian_for,
    utterance_sensitivity,
)
from antiphon.privacy.release import PrivateRelease
from antiphon.privacy.samplers import Randomness, Seeded


class Protection(Protocol):
    """A kind of protection: the cap on clients, the noise for an ε, and the ledger of the rounds."""

    def cap(self) -> Cap: ...
    def mechanism(self, epsilon: float, rounds: int) -> Mechanism: ...
    def ledger(self, epsilon: float, rounds: int) -> Ledger: ...


@dataclass(frozen=True)
class PaperNoise:
    """Eq. 9: Laplace(1/ε) in every round protects one word of one utterance. The ledger adds up rounds."""

    def cap(self) -> Rounded:
        return Rounded()

    def mechanism(self, epsilon: float, rounds: int) -> Laplace:
        return Laplace(1.0, epsilon)

    def ledger(self, epsilon: float, rounds: int) -> Ledger:
        return Ledger(Budget(epsilon * rounds))


@dataclass(frozen=True)
class ClientLaplace:
    """(ε, 0)-DP of a whole client for all rounds: a cap on the l1 norm, an equal part of ε for each round."""

    limit: float = 100.0

    def cap(self) -> CapL1:
        return CapL1(self.limit)

    def mechanism(self, epsilon: float, rounds: int) -> Laplace:
        return Laplace(self.limit, epsilon / rounds)

    def ledger(self, epsilon: float, rounds: int) -> Ledger:
        return Ledger(Budget(epsilon))


@dataclass(frozen=True)
class ClientGaussian:
    """(ε, δ)-DP of a whole client for all rounds: a cap on the l2 norm, Rényi composition of rounds."""

    limit: float = 20.0
    delta: float = 1e-5

    def cap(self) -> CapL2:
        return CapL2(self.limit)

    def mechanism(self, epsilon: float, rounds: int) -> Gaussian:
        return gaussian_for(self.limit, Budget(epsilon, self.delta), rounds)

    def ledger(self, epsilon: float, rounds: int) -> Ledger:
        return Ledger(Budget(epsilon, self.delta), Renyi())


PROTECTIONS: dict[str, type[PaperNoise] | type[ClientLaplace] | type[ClientGaussian]] = {
    "paper": PaperNoise,
    "laplace": ClientLaplace,
    "gaussian": ClientGaussian,
}


@dataclass(frozen=True)
class PrivateRow:
    """Word error rates under noise, one for each seed, and the privacy claims."""

    name: str
    epsilon: float
    population: int
    rates: tuple[float, ...]
    claims: tuple[Claim, ...]

    @property
    def rate(self) -> float:
        return float(np.mean(self.rates))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON: an infinite ε is None."""
        values = asdict(self)
        for claim in values["claims"]:
            claim["epsilon"] = claim["epsilon"] if math.isfinite(claim["epsilon"]) else None
        return values

    def best(self, unit: str) -> Claim:
        """Return the claim with the smallest ε for this unit; among equals, the one with the smaller δ."""
        claims = [claim for claim in self.claims if claim.unit.startswith(unit)]
        return min(claims, key=lambda claim: (float(f"{claim.epsilon:.2g}"), claim.delta))


@dataclass(frozen=True)
class PrivateTrial:
    """A trial with noise.

    population: counts as if each client were this many clients with the same words. Pooled counts grow with
    the number of clients and the noise does not. This extrapolates to more clients; it does not measure them.
    """

    trial: Trial
    mixture: Mixture
    seeds: Sequence[Randomness] = (Seeded(0), Seeded(1), Seeded(2))
    population: int = 1
    delta: float = 1e-5

    def __post_init__(self) -> None:
        if self.population < 1:
            raise ValueError(f"a population must be at least 1, got {self.population}")

    def row(self, name: str, protection: Protection, epsilon: float) -> PrivateRow:
        rounds = self.trial.federation.num_releases(self.trial.schedule)
        mechanism, cap = protection.mechanism(epsilon, rounds), protection.cap()
        ledger = protection.ledger(epsilon, rounds)
        label = f"{name}-epsilon{epsilon:g}-cap{cap.limit or 0:g}-population{self.population}"
        rates = tuple(
            self._rate(mechanism, cap, ledger, randomness, f"{label}-noise{number}")
            for number, randomness in enumerate(self.seeds)
        )
        statement = PrivacyStatement(mechanism, rounds, self.utterance, cap.limit, self.delta)
        return PrivateRow(name, epsilon, self.population, rates, tuple(statement.claims()))

    def own_words(self) -> float:
        """Return the error rate if clients publish nothing (α = 0)."""
        return self.error_rate(self.trial.adapted(replace(self.mixture, alpha=0.0)))

    @property
    def utterance(self) -> float:
        """The sensitivity to one list: the longest hypothesis on every rank that counts."""
        lists = self.trial.second_pass.lists.entries
        longest = max(len(h.text.split()) for entry in lists for h in entry.hypotheses)
        deepest = max(len(entry.hypotheses) for entry in lists)
        return utterance_sensitivity(longest, rank_weights(deepest, self.mixture.sigma).tolist())

    def _rate(
        self, mechanism: Mechanism, cap: Cap, ledger: Ledger, randomness: Randomness, label: str
    ) -> float:
        background = torch.from_numpy(self.trial.federation.background.probabilities)
        release = PrivateRelease(mechanism, ledger, background, randomness)
        federation = replace(
            self.trial.federation,
            algorithm=Fmp(release=release),
            cap=lambda counts: self.population * cap(counts),
            name=f"{self.trial.federation.name}-{label}",
        )
        return self.error_rate(replace(self.trial, federation=federation).adapted(self.mixture))

    def error_rate(self, rows: np.ndarray) -> float:
        return self.trial.second_pass.lists.count(rows).rate


def read_protection(text: str, cap: float | None) -> tuple[str, Protection, list[float]]:
    """Read a protection and the values of ε to try, such as paper=2,1,0.5 or gaussian=2.

    >>> read_protection("laplace=2,1", cap=50.0)
    ('laplace', ClientLaplace(limit=50.0), [2.0, 1.0])
    """
    name, _, values = text.partition("=")
    if name not in PROTECTIONS:
        raise ValueError(f"--private takes {', '.join(PROTECTIONS)} with =ε,…, not {text!r}")
    try:
        epsilons = [float(value) for value in values.split(",")]
    except ValueError:
        raise ValueError(f"--private {name} takes values of ε such as {name}=2,1,0.5, not {text!r}") from None
    kind = PROTECTIONS[name]
    limits: dict[str, Any] = {"limit": cap} if cap and kind is not PaperNoise else {}
    return name, kind(**limits), epsilons
