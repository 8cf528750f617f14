"""The privacy cost of releases, and of several releases together.

basic      Dwork, McSherry, Nissim, Smith 2006: epsilons add up.
advanced   Kairouz, Oh, Viswanath, "The composition theorem for differential privacy", ICML 2015, th. 3.5.
Rényi      Mironov 2017; conversion to (ε, δ) by `dp-accounting` (extra `privacy`).
Gaussian   Canonne, Kamath, Steinke 2020, theorem 4 and proposition 12.

Neighbouring data differ by one unit (an utterance, or a client with all its speech), added or removed.

Discrete Laplace noise protects a little less than continuous noise of the same scale: if one unit is one
step, it is randomised response. So the divergence is computed for the discrete noise. With q = exp(−1/t),
r = q^(2α−1) and a distance of k steps

    exp((α−1) D_α) = C q^(−(α−1)k) + (1−C) q^(αk),   C = (1 + (1−q) r/(1−r)) / (1+q),

summed over the integers piece by piece. D_α is a log-sum-exp of lines in k and 0 at k = 0, so it is convex.
Therefore a total l1 distance of k is worst if all of it is on one word. That case is computed.

Sampling of clients gives no smaller ε here: it is not accounted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from antiphon.core import Scalar

MISSING = "Rényi accounting needs dp-accounting: pip install 'antiphon[privacy]', or use basic or advanced"


@dataclass(frozen=True)
class _Loss:
    """One release of integers with noise; sensitivity and scale are in steps."""

    sensitivity: float
    scale: int

    def __post_init__(self) -> None:
        if not self.sensitivity > 0 or not self.scale > 0:
            got = f"{self.sensitivity} and {self.scale}"
            raise ValueError(f"a loss needs sensitivity and scale above 0, not {got}")


class LaplaceLoss(_Loss):
    """One release of integers with discrete Laplace noise; l1 sensitivity and scale are in steps."""

    @property
    def pure(self) -> float:
        return self.sensitivity / self.scale

    def epsilon(self, delta: float) -> float:
        return self.pure

    def renyi(self, orders: np.ndarray) -> np.ndarray:
        """Return the Rényi divergence of neighbours at each order above 1."""
        step = 1 / self.scale
        r = np.exp(-(2 * orders - 1) * step)
        near = (1 - np.exp(-step)) * r / (1 - r)
        first = np.log1p(near) - np.log1p(np.exp(-step)) + (orders - 1) * self.pure
        rest = np.log1p(-(1 - np.exp(-step)) / (1 - r)) - np.log1p(np.exp(-step)) - orders * self.pure
        return np.logaddexp(first, rest) / (orders - 1)


class GaussianLoss(_Loss):
    """One release of integers with discrete Gaussian noise; l2 sensitivity and scale are in steps."""

    @property
    def rho(self) -> float:
        """The ρ of concentrated DP: the Rényi divergence is ρ times the order."""
        return (self.sensitivity / self.scale) ** 2 / 2

    def epsilon(self, delta: float) -> float:
        return epsilon_of_rho(self.rho, delta) if delta > 0 else math.inf

    def renyi(self, orders: np.ndarray) -> np.ndarray:
        return self.rho * orders


Loss = LaplaceLoss | GaussianLoss
LOSSES: dict[str, type[LaplaceLoss] | type[GaussianLoss]] = {"laplace": LaplaceLoss, "gaussian": GaussianLoss}


def loss_to_dict(loss: Loss) -> dict[str, Scalar]:
    name = next(name for name, kind in LOSSES.items() if isinstance(loss, kind))
    return {"noise": name, "sensitivity": loss.sensitivity, "scale": loss.scale}


def loss_from_dict(values: Mapping[str, Any]) -> Loss:
    return LOSSES[values["noise"]](values["sensitivity"], values["scale"])


def epsilon_of_rho(rho: float, delta: float) -> float:
    """Return the ε of concentrated DP at δ: the best order of proposition 12. Every order is valid."""
    if delta >= 1:
        return 0.0
    orders = 1 + np.logspace(-3, 5, 2_001)
    bounds = rho * orders + np.log1p(-1 / orders) - np.log(delta * orders) / (orders - 1)
    return max(0.0, float(bounds.min()))


# --- Composition ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Budget:
    """The largest ε and δ that all releases together may cost a unit."""

    epsilon: float
    delta: float = 0.0

    def __post_init__(self) -> None:
        if not self.epsilon > 0 or not 0 <= self.delta < 1:
            got = f"{self.epsilon}, {self.delta}"
            raise ValueError(f"a budget needs epsilon above 0 and delta in [0, 1), not {got}")


@dataclass(frozen=True)
class Basic:
    """Basic composition: epsilons add up. Each release with Gaussian noise gets an equal share of δ."""

    def epsilon(self, losses: Sequence[tuple[Loss, int]], delta: float) -> float:
        share = delta / max(1, _num_gaussian(losses))
        return sum(times * loss.epsilon(share) for loss, times in losses)


@dataclass(frozen=True)
class Advanced:
    """ε grows with the square root of the number of releases. It uses δ, or half of δ with Gaussian noise."""

    def epsilon(self, losses: Sequence[tuple[Loss, int]], delta: float) -> float:
        if not losses:
            return 0.0
        if delta <= 0:
            return math.inf
        gaussian = _num_gaussian(losses)
        slack, share = (delta / 2, delta / 2 / gaussian) if gaussian else (delta, 0.0)
        each = [(loss.epsilon(share), times) for loss, times in losses]
        mean = sum(times * epsilon * math.tanh(epsilon / 2) for epsilon, times in each)
        squares = sum(times * epsilon**2 for epsilon, times in each)
        return mean + math.sqrt(2 * math.log(1 / slack) * squares)


@dataclass(frozen=True)
class Renyi:
    """Rényi composition: divergences add up at every order; the best order is converted at the end."""

    def epsilon(self, losses: Sequence[tuple[Loss, int]], delta: float) -> float:
        try:
            import dp_accounting
        except ImportError as error:
            raise ValueError(MISSING) from error
        rdp = dp_accounting.rdp.rdp_privacy_accountant
        if not losses:
            return 0.0
        if delta <= 0:
            return math.inf
        orders = np.asarray(rdp.DEFAULT_RDP_ORDERS, dtype=float)
        total = np.sum([times * loss.renyi(orders) for loss, times in losses], axis=0)
        epsilon, _ = rdp.compute_epsilon(orders, total, delta)
        return float(epsilon)


Composition = Basic | Advanced | Renyi  # the total ε of releases, each with its number of times, at a δ


def _num_gaussian(losses: Sequence[tuple[Loss, int]]) -> int:
    return sum(times for loss, times in losses if isinstance(loss, GaussianLoss))
