"""Coefficients of buffered linear Toeplitz noise (BLT): correlated noise that needs only a few buffers.

As in `matrix_factorisation`, rounds release x + C⁻¹ z. Here C has as many bands as the run has rounds, and
its coefficients are sums of a few geometric series:

    c_0 = 1,  c_i = Σ_j ω_j θ_j^(i−1),  Σ_i c_i x^i = Π_j (1 − θ̂_j x) / Π_j (1 − θ_j x)

| symbol | here                                                                                          |
| ------ | --------------------------------------------------------------------------------------------- |
| d      | `buffers`                                                                                     |
| ω, θ   | `scales`, `decays` of C                                                                       |
| θ̂      | `inverse_decays`: C⁻¹ is of the same kind, with θ and θ̂ exchanged                             |
| n, b, k, s | as in `matrix_factorisation`                                                              |

- K. D. Dvijotham, H. B. McMahan, K. Pillutla, T. Steinke, A. Thakurta, "Efficient and Near-Optimal Noise
  Generation for Streaming Differential Privacy", FOCS 2024, arXiv:2404.16706: the matrices, and the streams.
- H. B. McMahan, Z. Xu, Y. Zhang, "A Hassle-free Algorithm for Strong Differential Privacy in Federated
  Learning Systems", 2024, arXiv:2408.08868: several participations of a client, and the optimisation.

The turns of a client may meet the same rows of C, so its columns are added up. c is positive and falls, so no
columns of turns at least b apart have a longer sum than those of the rounds 0, b, 2b …:
s = ‖Σ_{i<k} C e_{ib}‖.

Deviations. The search is over θ_1 > θ̂_1 > θ_2 > θ̂_2 > … > 0, all below 1. Then every ω_j is positive and
c_1 = Σ_j (θ_j − θ̂_j) is below 1, so c always falls, without a penalty. Matrices with θ̂ below 0 are not
searched; with short separations they would be better by about 0.01 %.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class BufferedToeplitz:
    """C, by its scales ω and decays θ."""

    scales: tuple[float, ...]
    decays: tuple[float, ...]

    def coefficients(self, rounds: int) -> tuple[float, ...]:
        """Return c_0 … c_(rounds−1)."""
        powers = np.power.outer(np.array(self.decays), np.arange(rounds - 1))
        return (1.0, *(np.array(self.scales) @ powers).tolist())


def overlapping_sensitivity(
    coefficients: tuple[float, ...], rounds: int, separation: int, participations: int
) -> float:
    """Return s for the first `rounds` rounds of a run, for coefficients that are positive and fall."""
    first = torch.tensor(coefficients[:rounds], dtype=torch.float64)
    return math.sqrt(float(_squared_sensitivity(first, separation, participations)))


def _squared_sensitivity(first: Tensor, separation: int, participations: int) -> Tensor:
    """Return s² from the first column of C."""
    rounds = len(first)
    periods = -(-rounds // separation)
    by_period = torch.cat([first, first.new_zeros(periods * separation - rounds)]).view(periods, separation)
    sums = by_period.cumsum(0)  # row p: the turns of the periods 0 … p, seen in period p
    if participations < periods:
        gone = torch.cat([sums.new_zeros(participations, separation), sums[: periods - participations]])
        sums = sums - gone
    return sums.flatten()[:rounds].square().sum()


@lru_cache
def optimise_buffers(rounds: int, buffers: int, separation: int, participations: int) -> BufferedToeplitz:
    """Return the matrix with the least sensitivity times prefix error."""
    late = torch.arange(rounds, 0, -1, dtype=torch.float64) / rounds
    # θ and θ̂ in turns, each the one before it times a sigmoid. 1 − θ begins evenly spread between 1/n and 1.
    gaps = torch.logspace(-math.log10(rounds + 1), 0, 2 * buffers + 1, dtype=torch.float64)[:-1]
    begin = torch.cat([1 - gaps[:1], (1 - gaps[1:]) / (1 - gaps[:-1])])
    logits = torch.logit(begin).requires_grad_()

    def objective() -> Tensor:
        decays, inverse = _interlaced(logits)
        first = _series(decays, inverse, rounds)
        sums = _series(inverse, decays, rounds).cumsum(0)  # first column of A C⁻¹
        value = (late @ sums.square()).log() + _squared_sensitivity(first, separation, participations).log()
        (logits.grad,) = torch.autograd.grad(value, logits)
        return value.detach()

    search = torch.optim.LBFGS(
        [logits], max_iter=500, tolerance_grad=1e-9, tolerance_change=1e-12, line_search_fn="strong_wolfe"
    )
    search.step(objective)
    decays, inverse = _interlaced(logits.detach())
    return BufferedToeplitz(tuple(_scales(decays, inverse).tolist()), tuple(decays.tolist()))


def _interlaced(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return θ and θ̂."""
    both = torch.sigmoid(logits).cumprod(0)
    return both[0::2], both[1::2]


def _scales(decays: Tensor, inverse: Tensor) -> Tensor:
    """Return ω_j = Π_i (θ_j − θ̂_i) / Π_{i≠j} (θ_j − θ_i)."""
    others = decays[:, None] - decays + torch.eye(len(decays), dtype=decays.dtype)
    return (decays[:, None] - inverse).prod(1) / others.prod(1)


def _series(decays: Tensor, inverse: Tensor, rounds: int) -> Tensor:
    """Return the first coefficients of Π (1 − θ̂ x) / Π (1 − θ x). [rounds]"""
    powers = decays[:, None] ** torch.arange(rounds - 1, dtype=decays.dtype)
    return torch.cat([decays.new_ones(1), _scales(decays, inverse) @ powers])
