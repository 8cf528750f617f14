"""Noise that clients add themselves, in shares, before their updates are summed under masks.

P. Kairouz, Z. Liu, T. Steinke, "The Distributed Discrete Gaussian Mechanism for Federated Learning with
Secure Aggregation", ICML 2021, arXiv:2102.06387.

| symbol   | here                                                                                     |
| -------- | ---------------------------------------------------------------------------------------- |
| c/γ, Δ₂  | `steps`: the bound of the clipping, in steps of the grid; no update is longer, in integers |
| σ/γ      | `scale`: a client's share is discrete Gaussian of this scale in every entry, in steps    |
| n        | `carriers`: the shares that are in every sum: threshold − colluding                      |
| d        | `size`: the entries of an update                                                         |
| τ        | `excess`: how far a sum of discrete Gaussians is from one discrete Gaussian              |
| m        | 2^32: the ring of secure aggregation                                                     |

Theorem 1 and proposition 14, with σ in steps: the sum with n shares is ½ ε²-concentrated differentially
private, for

    τ = 10 Σ_{k=1}^{n−1} exp(−2π² σ² k/(k+1))        ε = Δ₂ / (√n σ) + τ √d

More shares are more noise, which is post-processing: if everybody answers, ε is smaller. A sum modulo m is
post-processing, too. Rounds are independent releases, so ½ ε² of the rounds of a client add up.

Neighbouring data: the update of one client counts as zero, in all its rounds. The client is still there, and
so is its share. Who takes part is no secret from the server.

Deviations. Theorem 1 takes the smaller of this ε and √(Δ₂²/(nσ²) + τd/2). Both are the same here, because
grids with τ d above `NEGLIGIBLE` are refused. The paper rotates updates, so that entries are of one size and
few bits are enough, and rounds by chance; the ring has 32 bits anyway. Rounding is to the nearest step, and
the norm is checked afterwards, in integers (`tasks.noised_update`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from antiphon.privacy.accounting import Budget, epsilon_of_rho
from antiphon.privacy.participation import RoundRobin
from antiphon.privacy.samplers import LARGEST_SCALE

RING = 2**31 - 1  # the largest sum of secure aggregation
FINEST = 2**24  # steps of a bound, at most
ROUNDED_OFF = 2.0**-7  # of the bound: what rounding to the nearest step may add to a norm, at most
WRAPS = 1e-12  # the probability that the ring is too small for any entry of a round, at most
NEGLIGIBLE = 1e-20  # τ d, at most: ε has fewer digits


@dataclass(frozen=True)
class Distributed:
    """Noise that clients add in shares, under secure_aggregation; independent from round to round."""

    colluding: int = 0  # clients of a round that may tell the server their shares; the others carry all noise

    def __post_init__(self) -> None:
        if self.colluding < 0:
            raise ValueError(f"distributed noise needs colluding of at least 0, not {self.colluding}")


@dataclass(frozen=True)
class ConcentratedCost:
    """Releases that are `rho`-concentrated differentially private together."""

    rho: float


@dataclass(frozen=True)
class DistributedPlan:
    """Independent noise in shares of clients whose turns are apart.

    `multiplier` is the deviation of the noise divided by the sensitivity of the run, as in the other plans.
    """

    turns: RoundRobin
    rounds: int
    colluding: int
    multiplier: float = 1.0
    coefficients: tuple[float, ...] = (1.0,)

    @property
    def matrix(self) -> tuple[float, ...]:
        return self.coefficients

    @property
    def deviation(self) -> float:
        """The standard deviation of the shares that are in every sum, together."""
        return self.multiplier * math.sqrt(self.turns.participations(self.rounds))

    def cost(self, rounds: int) -> ConcentratedCost:
        return ConcentratedCost(self.turns.participations(rounds) / (2 * self.deviation**2))

    def within(self, budget: Budget) -> DistributedPlan:
        """Return the plan with the least noise that keeps the whole run within a budget."""
        return replace(self, multiplier=_concentrated_multiplier(budget))


def _concentrated_multiplier(budget: Budget) -> float:
    """Return the least noise of a release within the budget, by bisection of its logarithm."""
    low, high = -20.0, 20.0
    while high - low > 1e-12:
        middle = (low + high) / 2
        rho = math.exp(-2 * middle) / 2
        low, high = (low, middle) if epsilon_of_rho(rho, budget.delta) <= budget.epsilon else (middle, high)
    return math.exp(high)


# --- Shares and the grid ----------------------------------------------------------------------------


def excess(scale: float, carriers: int) -> float:
    """Return τ.

    >>> f"{excess(1.0, carriers=2):.3g}"
    '0.000517'
    """
    return 10 * sum(math.exp(-2 * (math.pi * scale) ** 2 * k / (k + 1)) for k in range(1, carriers))


def concentrated_epsilon(sensitivity: float, scale: float, carriers: int, size: int) -> float:
    """Return the ε of ½ ε²-concentrated differential privacy of one sum (theorem 1)."""
    return sensitivity / (math.sqrt(carriers) * scale) + excess(scale, carriers) * math.sqrt(size)


def scale_of_share(multiplier: float, steps: int, carriers: int) -> int:
    """Return the scale of a share: `carriers` of them have a deviation of at least multiplier · steps."""
    return math.ceil(multiplier * steps / math.sqrt(carriers))


def check_share(scale: int, carriers: int, size: int) -> None:
    """Refuse shares whose sum is not as good as one discrete Gaussian."""
    if excess(scale, carriers) * size > NEGLIGIBLE:
        raise ValueError(
            f"distributed noise of {scale} steps in each of {carriers} shares is too little for theorem 1 of "
            "Kairouz et al. 2021: use a smaller epsilon, or smaller cohorts"
        )


def largest_sum(steps: int, scale: int, num_clients: int, size: int) -> float:
    """Return a bound: some entry of a noised sum exceeds it with a probability of at most `WRAPS`.

    A share of scale σ is sub-Gaussian of that scale (Canonne, Kamath, Steinke 2020).
    """
    tail = math.sqrt(2 * math.log(2 * size / WRAPS))
    return num_clients * steps + tail * scale * math.sqrt(num_clients)


def choose_steps(size: int, num_clients: int, multiplier: float, colluding: int) -> int:
    """Return the steps of the bound for a round: the finest grid whose noised sum fits the ring.

    A sum is opened for more than half of the clients; what the ring must hold is the noise of all of them.
    """
    carriers = max(1, num_clients // 2 + 1 - colluding)
    steps = FINEST
    while steps > 1:
        scale = scale_of_share(multiplier, steps, carriers)
        if scale <= LARGEST_SCALE and largest_sum(steps, scale, num_clients, size) <= RING:
            break
        steps //= 2
    if math.sqrt(size) / 2 > ROUNDED_OFF * steps:
        raise ValueError(
            f"private: the sum of {num_clients} updates with {size} entries and distributed noise does not "
            f"fit 32 bits: {steps} steps for the bound of the clipping round too much. Use a larger epsilon, "
            "smaller cohorts, fewer colluding clients, or train fewer parameters"
        )
    check_share(scale_of_share(multiplier, steps, carriers), carriers, size)
    return steps
