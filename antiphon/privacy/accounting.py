"""What releases cost, and how costs compose.

basic      Dwork, McSherry, Nissim, Smith 2006: epsilons add up.
advanced   Kairouz, Oh, Viswanath, "The composition theorem for differential privacy", ICML 2015, th. 3.5.
Rényi      Mironov 2017; conversion to (ε, δ) by `dp-accounting` (extra `privacy`).
Gaussian   Canonne, Kamath, Steinke 2020, theorem 4 and proposition 12.

Neighbours differ by one unit (an utterance, or a client with all its speech), added or removed.

Discrete Laplace noise loses a little more than continuous noise of the same scale (where one unit is one step
it *is* randomised response), so its divergence is computed for what is drawn.
With q = exp(−1/t), r = q^(2α−1) and a distance of k steps

    exp((α−1) D_α) = C q^(−(α−1)k) + (1−C) q^(αk),   C = (1 + (1−q) r/(1−r)) / (1+q),

summed over the integers piece by piece. D_α is a log-sum-exp of lines in k and 0 at k = 0: convex, so a total
l1 distance of k does most harm on a single word, which is the case computed.

Sampling of clients. A cohort of fixed size gets no credit. `rate` below 1 may be given only where each client
is in each round independently with that probability and nobody learns who was (Poisson sampling): the
engine's cohorts are not such. The Rényi divergence is then that of continuous Gaussian noise; at whole orders
the discrete one's is the same: there every term of the binomial sum is a Gaussian shifted by whole steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from antiphon.core import Scalar

MISSING = "Rényi accounting needs dp-accounting: pip install 'antiphon[privacy]', or use basic or advanced"


@dataclass(frozen=True)
class _Loss:
    """One release of integers under noise; sensitivity and scale in steps."""

    sensitivity: float
    scale: int
    rate: float = 1.0

    def __post_init__(self) -> None:
        if not self.sensitivity > 0 or not self.scale > 0 or not 0 < self.rate <= 1:
            raise ValueError(
                "a loss needs sensitivity and scale above 0 and a rate in (0, 1], "
                f"not {self.sensitivity}, {self.scale} and {self.rate}"
            )


class LaplaceLoss(_Loss):
    """One release of integers under discrete Laplace noise; l1 sensitivity and scale in steps."""

    @property
    def pure(self) -> float:
        return self.sensitivity / self.scale

    def epsilon(self, delta: float) -> float:
        return _amplified(self.pure, self.rate)

    def renyi(self, orders: np.ndarray) -> np.ndarray:
        """Rényi divergence of neighbours at each order above 1."""
        if self.rate < 1:
            raise ValueError("Rényi accounting knows no Poisson-sampled Laplace noise: use basic or advanced")
        step = 1 / self.scale
        r = np.exp(-(2 * orders - 1) * step)
        near = (1 - np.exp(-step)) * r / (1 - r)
        first = np.log1p(near) - np.log1p(np.exp(-step)) + (orders - 1) * self.pure
        rest = np.log1p(-(1 - np.exp(-step)) / (1 - r)) - np.log1p(np.exp(-step)) - orders * self.pure
        return np.logaddexp(first, rest) / (orders - 1)


class GaussianLoss(_Loss):
    """One release of integers under discrete Gaussian noise; l2 sensitivity and scale in steps."""

    @property
    def rho(self) -> float:
        """Of concentrated DP: the Rényi divergence is `rho` times the order."""
        return (self.sensitivity / self.scale) ** 2 / 2

    def epsilon(self, delta: float) -> float:
        if delta <= 0:
            return math.inf
        return _amplified(epsilon_of_rho(self.rho, delta / self.rate), self.rate)

    def renyi(self, orders: np.ndarray) -> np.ndarray:
        """Rényi divergence of neighbours at each order above 1."""
        if self.rate == 1:
            return self.rho * orders
        accounting = dp_accounting()
        event = accounting.PoissonSampledDpEvent(
            self.rate, accounting.GaussianDpEvent(self.scale / self.sensitivity)
        )
        accountant = accounting.rdp.RdpAccountant(orders)
        accountant.compose(event)
        return np.asarray(accountant._rdp)  # no public name for it in dp-accounting 0.6


Loss = LaplaceLoss | GaussianLoss
LOSSES: dict[str, type[LaplaceLoss] | type[GaussianLoss]] = {"laplace": LaplaceLoss, "gaussian": GaussianLoss}


def loss_to_dict(loss: Loss) -> dict[str, Scalar]:
    name = next(name for name, kind in LOSSES.items() if isinstance(loss, kind))
    return {"noise": name, "sensitivity": loss.sensitivity, "scale": loss.scale, "rate": loss.rate}


def loss_from_dict(found: Mapping[str, Any]) -> Loss:
    return LOSSES[found["noise"]](found["sensitivity"], found["scale"], found["rate"])


def epsilon_of_rho(rho: float, delta: float) -> float:
    """(ε, δ) of concentrated DP: the best order of proposition 12. Any order gives a bound that holds."""
    if delta >= 1:
        return 0.0
    orders = 1 + np.logspace(-3, 5, 2_001)
    bounds = rho * orders + np.log1p(-1 / orders) - np.log(delta * orders) / (orders - 1)
    return max(0.0, float(bounds.min()))


def _amplified(epsilon: float, rate: float) -> float:
    """Li, Qardaji, Su 2012: of a unit that is present with probability `rate`."""
    return math.log1p(rate * math.expm1(epsilon))


# --- Composition ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Budget:
    """The most that all releases together may cost a unit."""

    epsilon: float
    delta: float = 0.0

    def __post_init__(self) -> None:
        if not self.epsilon > 0 or not 0 <= self.delta < 1:
            raise ValueError(
                f"a budget needs epsilon above 0 and delta in [0, 1), not {self.epsilon}, {self.delta}"
            )


class Composition(Protocol):
    """The total ε of releases (each with how often it was made) at a given δ."""

    def epsilon(self, losses: Sequence[tuple[Loss, int]], delta: float) -> float: ...


@dataclass(frozen=True)
class Basic:
    """Epsilons add up. δ is dealt out among the releases that need one."""

    def epsilon(self, losses: Sequence[tuple[Loss, int]], delta: float) -> float:
        share = delta / max(1, _num_gaussian(losses))
        return sum(times * loss.epsilon(share) for loss, times in losses)


@dataclass(frozen=True)
class Advanced:
    """Grows with the square root of the number of releases, for a δ: half of it if noise needs the rest."""

    def epsilon(self, losses: Sequence[tuple[Loss, int]], delta: float) -> float:
        if not losses:
            return 0.0
        if delta <= 0:
            return math.inf
        gaussian = _num_gaussian(losses)
        slack, share = (delta / 2, delta / 2 / gaussian) if gaussian else (delta, 0.0)
        each = [(loss.epsilon(share), times) for loss, times in losses]
        drift = sum(times * epsilon * math.tanh(epsilon / 2) for epsilon, times in each)
        spread = sum(times * epsilon**2 for epsilon, times in each)
        return drift + math.sqrt(2 * math.log(1 / slack) * spread)


@dataclass(frozen=True)
class Renyi:
    """Rényi divergences add up at every order; the best order is converted at the end."""

    def epsilon(self, losses: Sequence[tuple[Loss, int]], delta: float) -> float:
        rdp = dp_accounting().rdp.rdp_privacy_accountant
        if not losses:
            return 0.0
        if delta <= 0:
            return math.inf
        orders = np.asarray(rdp.DEFAULT_RDP_ORDERS, dtype=float)
        total = np.sum([times * loss.renyi(orders) for loss, times in losses], axis=0)
        epsilon, _ = rdp.compute_epsilon(orders, total, delta)
        return float(epsilon)


def dp_accounting() -> Any:
    """The optional accountant, or a word on how to get it."""
    try:
        import dp_accounting as found
    except ImportError as error:
        raise ValueError(MISSING) from error
    return found


def _num_gaussian(losses: Sequence[tuple[Loss, int]]) -> int:
    return sum(times for loss, times in losses if isinstance(loss, GaussianLoss))
