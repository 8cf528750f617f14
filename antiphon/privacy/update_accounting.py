"""The privacy cost of model updates: how much noise a run needs, and what its first rounds have cost.

exact    B. Balle, Y.-X. Wang, "Improving the Gaussian Mechanism for Differential Privacy", ICML 2018: all
         rounds with correlated noise are one Gaussian mechanism (`matrix_factorisation`,
         `buffered_toeplitz`).
PLD      privacy loss distributions, for Poisson-sampled cohorts with independent noise.
zCDP     concentrated differential privacy, for noise in shares of clients (`distributed_noise`).

The first two are computed by `dp-accounting` (extra `privacy`). Neighbouring data differ by one client with
all its rounds, added or removed. Updates are at most 1 long here: the bound of the clipping is the unit of
length.

Costs of several runs add up: Gaussian costs exactly, others as privacy loss distributions; with concentrated
ones among them, all as Rényi divergences.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

from antiphon.privacy.accounting import Budget, epsilon_of_rho
from antiphon.privacy.buffered_toeplitz import (
    BufferedToeplitz,
    optimise_buffers,
    overlapping_sensitivity,
)
from antiphon.privacy.correlated_noise import Matrix
from antiphon.privacy.distributed_noise import ConcentratedCost, Distributed, DistributedPlan
from antiphon.privacy.matrix_factorisation import optimise, sensitivity
from antiphon.privacy.participation import Participation, RoundRobin

MISSING = "private updates are accounted by dp-accounting: pip install 'antiphon[privacy]'"
PLD_STEP = 1e-3  # of privacy losses; distributions are rounded up, so a coarser step makes ε larger


@dataclass(frozen=True)
class GaussianCost:
    """A release whose mean one client moves by at most `shift` standard deviations of its noise."""

    shift: float


@dataclass(frozen=True)
class SampledCost:
    """`times` releases with independent noise, each of a Poisson sample of the clients."""

    rate: float
    multiplier: float  # standard deviation of the noise over the bound of the clipping
    times: int


Cost = GaussianCost | SampledCost | ConcentratedCost
COSTS: Mapping[str, type[Cost]] = {
    "gaussian": GaussianCost,
    "sampled": SampledCost,
    "concentrated": ConcentratedCost,
}


def cost_to_dict(cost: Cost) -> dict[str, Any]:
    name = next(name for name, kind in COSTS.items() if isinstance(cost, kind))
    return {"cost": name, **asdict(cost)}


def cost_from_dict(values: Mapping[str, Any]) -> Cost:
    fields = dict(values)
    return COSTS[fields.pop("cost")](**fields)


@lru_cache(maxsize=1024)
def epsilon_of(costs: tuple[Cost, ...], delta: float) -> float:
    """Return the ε of costs together, at a δ."""
    shift = math.hypot(*(cost.shift for cost in costs if isinstance(cost, GaussianCost)))
    sampled = [cost for cost in costs if isinstance(cost, SampledCost)]
    if rho := sum(cost.rho for cost in costs if isinstance(cost, ConcentratedCost)):
        return _concentrated_epsilon(rho + shift**2 / 2, sampled, delta)
    accounting = _dp_accounting()
    if not sampled:
        return float(accounting.get_epsilon_gaussian(1 / shift, delta)) if shift else 0.0
    accountant = accounting.pld.PLDAccountant(value_discretization_interval=PLD_STEP)
    for cost in sampled:
        accountant.compose(_event(cost.rate, cost.multiplier, cost.times))
    if shift:
        accountant.compose(accounting.GaussianDpEvent(1 / shift))
    return float(accountant.get_epsilon(delta))


def _concentrated_epsilon(rho: float, sampled: Sequence[SampledCost], delta: float) -> float:
    if not sampled:
        return epsilon_of_rho(rho, delta)
    accounting = _dp_accounting()
    accountant = accounting.rdp.RdpAccountant(range(2, 513))  # sums of other orders may not converge
    accountant.compose(accounting.ZCDpEvent(rho))
    for cost in sampled:
        accountant.compose(_event(cost.rate, cost.multiplier, cost.times))
    return float(accountant.get_epsilon(delta))


def _event(rate: float, multiplier: float, times: int) -> Any:
    accounting = _dp_accounting()
    sample = accounting.PoissonSampledDpEvent(rate, accounting.GaussianDpEvent(multiplier))
    return accounting.SelfComposedDpEvent(sample, times)


def _dp_accounting() -> Any:
    try:
        import dp_accounting
        import dp_accounting.pld
        import dp_accounting.rdp
    except ImportError as error:
        raise ValueError(MISSING) from error
    return dp_accounting


# --- The noise of a run ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Banded:
    """Noise with bands (BandMF): `private.bands` says how many."""


@dataclass(frozen=True)
class Blt:
    """Noise with buffers (BLT): correlated over all rounds, at the cost of a few buffers."""

    buffers: int = 4

    def __post_init__(self) -> None:
        if not 1 <= self.buffers <= 8:
            raise ValueError(f"blt needs 1 to 8 buffers, not {self.buffers}")


Correlation = Banded | Blt | Distributed


class _CorrelatedPlan:
    """Noise for clients whose turns are at least `separation` rounds apart: one Gaussian mechanism.

    `multiplier` is the standard deviation of z divided by the sensitivity of the whole run.
    """

    rounds: int
    multiplier: float

    def sensitivity(self, rounds: int) -> float:
        """Return the sensitivity of the first rounds of the run."""
        raise NotImplementedError

    @property
    def deviation(self) -> float:
        """The standard deviation of z."""
        return self.multiplier * self.sensitivity(self.rounds)

    def cost(self, rounds: int) -> GaussianCost:
        """Return the cost of the first rounds of the run."""
        return GaussianCost(self.sensitivity(rounds) / self.deviation)


@dataclass(frozen=True)
class BandedPlan(_CorrelatedPlan):
    """Noise with bands. One band: independent noise."""

    turns: RoundRobin
    rounds: int
    bands: int
    multiplier: float = 1.0

    @property
    def coefficients(self) -> tuple[float, ...]:
        turns = self.turns
        return optimise(self.rounds, self.bands, turns.separation, turns.participations(self.rounds))

    @property
    def matrix(self) -> Matrix:
        return self.coefficients

    def sensitivity(self, rounds: int) -> float:
        most = self.turns.participations(rounds)
        return sensitivity(self.coefficients, rounds, self.turns.separation, most)

    def within(self, budget: Budget) -> BandedPlan:
        """Return the plan with the least noise that keeps the whole run within a budget."""
        return replace(self, multiplier=_gaussian_multiplier(budget))


@dataclass(frozen=True)
class BufferedPlan(_CorrelatedPlan):
    """Noise with buffers."""

    turns: RoundRobin
    rounds: int
    buffers: int
    multiplier: float = 1.0

    @property
    def matrix(self) -> BufferedToeplitz:
        turns = self.turns
        return optimise_buffers(
            self.rounds, self.buffers, turns.separation, turns.participations(self.rounds)
        )

    @property
    def coefficients(self) -> tuple[float, ...]:
        return self.matrix.coefficients(self.rounds)

    def sensitivity(self, rounds: int) -> float:
        most = self.turns.participations(rounds)
        return overlapping_sensitivity(self.coefficients, rounds, self.turns.separation, most)

    def within(self, budget: Budget) -> BufferedPlan:
        """Return the plan with the least noise that keeps the whole run within a budget."""
        return replace(self, multiplier=_gaussian_multiplier(budget))


def _gaussian_multiplier(budget: Budget) -> float:
    exact = float(_dp_accounting().get_sigma_gaussian(budget.epsilon, budget.delta))
    return exact * (1 + 1e-12)  # rounding must not exceed the budget


@dataclass(frozen=True)
class SampledPlan:
    """Independent noise for Poisson-sampled cohorts."""

    rate: float
    rounds: int
    multiplier: float = 1.0
    coefficients: tuple[float, ...] = (1.0,)

    @property
    def matrix(self) -> Matrix:
        return self.coefficients

    @property
    def deviation(self) -> float:
        return self.multiplier

    def cost(self, rounds: int) -> SampledCost:
        return SampledCost(self.rate, self.multiplier, rounds)

    def within(self, budget: Budget) -> SampledPlan:
        accounting = _dp_accounting()
        multiplier = accounting.calibrate_dp_mechanism(
            lambda: accounting.pld.PLDAccountant(value_discretization_interval=PLD_STEP),
            lambda value: _event(self.rate, value, self.rounds),
            budget.epsilon,
            budget.delta,
            bracket_interval=accounting.LowerEndpointAndGuess(0.3, 1.0),
            tol=1e-4,
        )
        return replace(self, multiplier=float(multiplier))


Plan = BandedPlan | BufferedPlan | SampledPlan | DistributedPlan


@lru_cache(maxsize=64)
def plan_noise(
    participation: Participation,
    bands: int,
    rounds: int,
    budget: Budget,
    multiplier: float = 0.0,
    correlation: Correlation = Banded(),
) -> Plan:
    """Return the noise of a run.

    bands: 0 for as many as the separation allows. multiplier: 0 for the least noise within the budget.
    """
    plan: Plan
    if isinstance(correlation, Distributed):
        if bands > 1 or not isinstance(participation, RoundRobin):
            raise ValueError(
                "distributed noise is independent from round to round, and is accounted for clients whose "
                "turns are apart: use round_robin, and leave out bands"
            )
        plan = DistributedPlan(participation, rounds, correlation.colluding)
    elif isinstance(correlation, Blt):
        if bands or not isinstance(participation, RoundRobin):
            raise ValueError(
                "blt needs clients whose turns are apart, and has no bands: use round_robin, and leave out "
                "bands"
            )
        plan = BufferedPlan(participation, rounds, correlation.buffers)
    elif isinstance(participation, RoundRobin):
        plan = BandedPlan(participation, rounds, bands or min(participation.separation, rounds))
    elif bands <= 1:
        plan = SampledPlan(participation.rate, rounds)
    else:
        raise ValueError(
            f"{bands} bands of noise need clients whose turns are apart: use round_robin, or set bands=1"
        )
    return replace(plan, multiplier=multiplier) if multiplier else plan.within(budget)
