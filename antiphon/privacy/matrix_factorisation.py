"""Coefficients of banded matrix factorisation: noise that is correlated from round to round.

Round t adds up the clipped updates of its cohort, x_t, and releases x_t + (C⁻¹ z)_t. C is lower triangular
and Toeplitz with the coefficients c_0 … c_(bands−1), and z is independent noise. Later rounds take back part
of the noise of earlier ones, so the sum of all releases, which is the model, has less noise. All releases
together are one Gaussian mechanism on C x.

| symbol | here                                                                                          |
| ------ | --------------------------------------------------------------------------------------------- |
| n      | rounds of the run                                                                             |
| b      | `separation`: rounds from one turn of a client to its next, at least                          |
| k      | `participations` of a client, at most                                                         |
| s      | `sensitivity` of C x to one client, all its updates being at most 1 long                      |
| A      | the lower triangular matrix of ones: A x are the running sums                                 |

With bands ≤ b, the columns of C that one client touches do not overlap, so s² is the sum of their squared
norms, for updates of any direction. Columns only get shorter towards the end of the run, so the worst client
begins in the first round and returns as early as it may: s² = Σ_i c_i² min(k, ⌈(n − i) / b⌉).

- C. A. Choquette-Choo et al., "(Amplified) Banded Matrix Factorization: A unified approach to private
  training", NeurIPS 2023, arXiv:2306.08153: bands, separation, sensitivity.
- R. McKenna, "Scaling up the Banded Matrix Factorization Mechanism for Differentially Private ML", 2024,
  arXiv:2405.15913: Toeplitz coefficients and the objective.
- S. Denisov et al., "Improved Differential Privacy for SGD via Optimal Private Linear Operators on Adaptive
  Streams", NeurIPS 2022, arXiv:2202.08312: it holds for updates that depend on earlier releases.

Deviations. The coefficients are optimised by L-BFGS with exact gradients: O(n · bands) for a step.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch


def touched(rounds: int, bands: int, separation: int, participations: int) -> np.ndarray:
    """Return how often a client that returns as early as it may meets each coefficient. [bands]"""
    if not 1 <= bands <= min(separation, rounds):
        raise ValueError(
            f"{bands} bands of noise need a separation and a run of at least {bands} rounds, not "
            f"{separation} and {rounds}"
        )
    return np.minimum(participations, -(-(rounds - np.arange(bands)) // separation))


def sensitivity(coefficients: tuple[float, ...], rounds: int, separation: int, participations: int) -> float:
    """Return s for the first `rounds` rounds of a run; the last coefficients may not be met yet."""
    squares = np.square(coefficients[:rounds])
    return math.sqrt(touched(rounds, len(squares), separation, participations) @ squares)


def prefix_error(coefficients: tuple[float, ...], rounds: int) -> float:
    """Return the root mean square error of the running sums of C⁻¹ z, for z of variance 1."""
    late = np.arange(rounds, 0, -1) / rounds
    return math.sqrt(late @ solve(np.asarray(coefficients), np.ones(rounds)) ** 2)


def solve(coefficients: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return C⁻¹ times a vector."""
    lags = len(coefficients) - 1
    solution = np.zeros(lags + len(right))
    later = coefficients[:0:-1]  # c_lags … c_1
    for t, value in enumerate(right):
        solution[lags + t] = (value - later @ solution[t : t + lags]) / coefficients[0]
    return solution[lags:]


@lru_cache
def optimise(rounds: int, bands: int, separation: int, participations: int) -> tuple[float, ...]:
    """Return the coefficients, of norm 1, with the least sensitivity times prefix error."""
    times = touched(rounds, bands, separation, participations)
    late = np.arange(rounds, 0, -1) / rounds
    i = np.arange(1, bands)
    tail = torch.from_numpy(np.cumprod((2 * i - 1) / (2 * i)))  # the best ones without bands
    tail.requires_grad_()

    def objective() -> torch.Tensor:
        """Return log(error² s²) of the coefficients (1, *tail), and set its gradient."""
        c = np.concatenate(([1.0], tail.detach().numpy()))
        first = solve(c, np.ones(rounds))  # first column of A C⁻¹
        back = solve(c, (late * first)[::-1])[::-1]  # C⁻ᵀ (late · first)
        error, squared = late @ first**2, times @ c**2
        slopes = np.array([back[lag:] @ first[: rounds - lag] for lag in range(1, bands)])
        tail.grad = torch.from_numpy(-2 * slopes / error + 2 * times[1:] * c[1:] / squared)
        return torch.tensor(math.log(error * squared), dtype=torch.float64)

    if bands > 1:
        search = torch.optim.LBFGS(
            [tail],
            max_iter=500,
            tolerance_grad=1e-10,
            tolerance_change=1e-15,
            history_size=30,
            line_search_fn="strong_wolfe",
        )
        search.step(objective)
    c = np.concatenate(([1.0], tail.detach().numpy()))
    return tuple((c / np.linalg.norm(c)).tolist())
