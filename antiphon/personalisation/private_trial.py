"""Personalisation with noise on what the server publishes: error rates, and the privacy that the noise gives.

Liu and Peng 2020, §4 and table 4. For each ε: the paper's claim (one word of one utterance, one round), and
what the same noise means for a whole utterance and for a whole client after all rounds.

A client's own words never leave it. So the noise affects only the shared words (α), not its own (β).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from antiphon.algorithms.fmp import Fmp
from antiphon.personalisation.marginal_adaptation import Mixture
from antiphon.personalisation.trial import Trial
from antiphon.personalisation.word_cache import rank_weights
from antiphon.privacy.accounting import Budget, Renyi
from antiphon.privacy.ledger import Claim, Ledger, privacy_claims
from antiphon.privacy.mechanisms import (
    Cap,
    CapL1,
    CapL2,
    Laplace,
    Mechanism,
    Rounded,
    gaussian_for,
    utterance_sensitivity,
)
from antiphon.privacy.release import PrivateRelease
from antiphon.privacy.samplers import Randomness, Seeded

# ε, number of rounds -> the cap on clients, the noise, and the ledger of the rounds
Protection = Callable[[float, int], tuple[Cap, Mechanism, Ledger]]


def paper_noise(epsilon: float, rounds: int) -> tuple[Cap, Mechanism, Ledger]:
    """Eq. 9: Laplace(1/ε) in every round protects one word of one utterance. The ledger adds up rounds."""
    return Rounded(), Laplace(1.0, epsilon), Ledger(Budget(epsilon * rounds))


def client_laplace(epsilon: float, rounds: int, limit: float = 100.0) -> tuple[Cap, Mechanism, Ledger]:
    """(ε, 0)-DP of a whole client for all rounds: a cap on the l1 norm, an equal part of ε for each round."""
    return CapL1(limit), Laplace(limit, epsilon / rounds), Ledger(Budget(epsilon))


def client_gaussian(
    epsilon: float, rounds: int, limit: float = 20.0, delta: float = 1e-5
) -> tuple[Cap, Mechanism, Ledger]:
    """(ε, δ)-DP of a whole client for all rounds: a cap on the l2 norm, Rényi composition of rounds."""
    budget = Budget(epsilon, delta)
    return CapL2(limit), gaussian_for(limit, budget, rounds), Ledger(budget, Renyi())


PROTECTIONS: dict[str, Protection] = {
    "paper": paper_noise,
    "laplace": client_laplace,
    "gaussian": client_gaussian,
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
        cap, mechanism, ledger = protection(epsilon, rounds)
        label = f"{name}-epsilon{epsilon:g}-cap{cap.limit or 0:g}-population{self.population}"
        rates = tuple(
            self._rate(mechanism, cap, ledger, randomness, f"{label}-noise{number}")
            for number, randomness in enumerate(self.seeds)
        )
        claims = privacy_claims(mechanism, rounds, self.utterance, cap.limit, self.delta)
        return PrivateRow(name, epsilon, self.population, rates, tuple(claims))

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

    >>> name, protection, epsilons = read_protection("laplace=2,1", cap=50.0)
    >>> name, epsilons, protection(2.0, 10)[0]
    ('laplace', [2.0, 1.0], CapL1(limit=50.0, step=0.015625))
    """
    name, _, values = text.partition("=")
    if name not in PROTECTIONS:
        raise ValueError(f"--private takes {', '.join(PROTECTIONS)} with =ε,…, not {text!r}")
    try:
        epsilons = [float(value) for value in values.split(",")]
    except ValueError:
        raise ValueError(f"--private {name} takes values of ε such as {name}=2,1,0.5, not {text!r}") from None
    protection: Any = PROTECTIONS[name]
    has_limit = cap and protection is not paper_noise
    return name, partial(protection, limit=cap) if has_limit else protection, epsilons
