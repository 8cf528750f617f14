"""Private updates with the noise of a large population, on the few clients of a small corpus.

    export PYTHONPATH=benchmarks
    antiphon run benchmarks/private-librispeech.yaml --data CORPUS --out out/0 --set frontend.path=FILE.onnx
    …                                      (the same with --set seed=1 and 2)
    python benchmarks/rows.py out/0 out/1 out/2 --baseline plain --metric extrapolated_epsilon \\
        --metric epsilon --out benchmarks/results/private.json

M. Pelikan et al., "Enabling Differentially Private Federated Learning for Speech Recognition",
arXiv:2310.00098: the mean of a round gets the noise that it would have with `planned` clients of a
`population`. It is assumed that training with so many clients is at least as good as with the few that are
here. The ε of the population is therefore extrapolated: it is no guarantee for the clients of the run. Their
own guarantee, with the noise that was really added, is in the journal too: `epsilon`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from antiphon.algorithms.private import Private, PrivateState
from antiphon.core import Metrics, Pool
from antiphon.privacy.participation import RoundRobin
from antiphon.privacy.update_accounting import (
    BandedPlan,
    BufferedPlan,
    GaussianCost,
    epsilon_of,
    plan_noise,
)


@dataclass(frozen=True)
class AtScale(Private):
    """`private` whose noise in the mean is that of a large population. For experiments only."""

    population: int = 100_000
    planned: int = 1_000  # clients of a round, in that population

    @property
    def plan_at_scale(self) -> BandedPlan | BufferedPlan:
        turns = RoundRobin(self.population // self.planned)
        plan = plan_noise(turns, self.bands, self.rounds, self.budget, self.noise_multiplier, self.noise)
        assert isinstance(plan, BandedPlan | BufferedPlan)
        return plan

    @property
    def plan(self) -> BandedPlan | BufferedPlan:
        """The same noise in the mean: a smaller cohort needs less in the sum."""
        plan = self.plan_at_scale
        return replace(plan, multiplier=plan.multiplier * self.cohort / self.planned)

    def _spend(self, state: PrivateState) -> float:
        if self.noise_multiplier:  # no budget: a row to compare with
            return math.inf
        return epsilon_of((self.plan_at_scale.cost(state.released + 1),), self.delta)

    def round(self, state: PrivateState, cohort: Sequence[str], pool: Pool) -> tuple[PrivateState, Metrics]:
        after, metrics = super().round(state, cohort, pool)
        extrapolated = metrics.pop("epsilon")
        if math.isfinite(extrapolated):
            metrics |= {"extrapolated_epsilon": extrapolated, "epsilon": self.epsilon_here(after.released)}
        return after, metrics

    def epsilon_here(self, rounds: int) -> float:
        """Return the ε of the clients of this run, from all of their turns and the noise that was added.

        For coefficients that are not negative and do not grow, no pattern of turns moves the noise more than
        the one with the most turns, as early and as near to each other as they can be (N. Kalinin, C.
        Lampert, "Banded Square Root Matrix Factorization", NeurIPS 2024, Theorem 2).
        """
        assert isinstance(self.cohorts, RoundRobin)
        coefficients = np.asarray(self.plan.coefficients)[:rounds]
        moved = np.zeros(rounds)
        for turn in range(self.cohorts.participations(rounds)):
            start = turn * self.cohorts.separation
            part = coefficients[: rounds - start]
            moved[start : start + len(part)] += part
        return epsilon_of((GaussianCost(float(np.linalg.norm(moved)) / self.plan.deviation),), self.delta)
