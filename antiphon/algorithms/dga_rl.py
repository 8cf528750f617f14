"""Dynamic Gradient Aggregation with weights that are learnt by reinforcement (DGA-RL).

Dimitriadis et al., "Dynamic Gradient Aggregation for Federated Domain Adaptation", 2021,
arXiv:2106.07578, §3 and Algorithm 2; §4.1 for the network and the rewards.

Each round the clients train once. Two models are made from the same updates and the same state of the
server's optimiser: one with the weights of `inner` (softmax of the losses), one with those of the policy.
Both are measured on the validation clients. The character error rates give the reward of the policy, which
learns from a memory of rounds (`policy`). The run continues with the better model.

| paper                             | here                                                        |
| --------------------------------- | ----------------------------------------------------------- |
| environment: gradients Δ_k        | updates, where they were trained (`pool.collect`)           |
| state: losses, gradient statistics| `describe`: loss, mean and variance of |Δ_k|'s entries      |
| action: weights α_k               | softmax of inner's log-weights + scores + noise             |
| reward 1 / −1 / 0.1, threshold    | `Rewards`                                                   |
| 5-layer DNN with a bottleneck     | `policy`: `PerClient`, `PerCohort`                          |
| memory, mini-batches              | `policy.memory`, `policy.batch`                             |

Deviations.
- The paper's network has inputs and outputs for N clients (`PerCohort`). It learns about positions in a
  cohort that is drawn again each round. By default, one network scores every client from its own features
  and from their comparison with the cohort's (`PerClient`).
- Features use logarithms of magnitudes, which span decades, and are standardised by those in memory.
- The policy is the softmax times a learnt factor. It starts as the softmax, not at random, so no round is
  lost.
- The paper gives no objective; ours is in `policy`. Exploration is noise on the log-weights that falls by a
  factor each round. It is the same random linear function of the features for all clients of a round
  (state-dependent exploration, Rückstieß et al. 2008): clients that are alike get similar noise, so a
  comparison says something about all of them. Independent noise would say little about clients of other
  rounds.
- The models that are measured are further apart than the candidates, on the line through both
  (`exaggeration`). An optimiser with momentum uses a part of an aggregate in its next step and the rest in
  later ones. So candidates of one round hardly differ, and most comparisons would be draws. By default, the
  models are as far apart as the final effects of the two aggregates, to first order: the optimiser's
  `lasting_effect`. For Adam with β1 = 0.9 it is 3.0 in the first round and approaches 10, because of the bias
  correction.
- The policy is measured on a fixed part of the validation clients, which also choose the run's best round. So
  their score of the final model is too good; test speakers are others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from antiphon.algorithms.dga_rl_policy import Comparison, Learnt, PerClient, PerCohort, Policy, standardise
from antiphon.algorithms.fedavg import FedAvg, dga
from antiphon.core import ALGORITHMS, Metrics, Pool, Report, ServerState, Tensors
from antiphon.seeding import derive
from antiphon.server.run_context import RunContext
from antiphon.tasks.evaluation import measure, measuring_clients

MAGNITUDES = ("magnitude_mean", "magnitude_variance")
NUM_FEATURES = 2 * (1 + len(MAGNITUDES))  # the values, and the values relative to the cohort
SMALLEST = 1e-30  # magnitudes below this count as this: 0 has no logarithm


@dataclass(frozen=True)
class Rewards:
    """The rewards for a model that is better than its rival, worse, or similar; all within ±1."""

    better: float = 1.0
    worse: float = -1.0
    similar: float = 0.1
    threshold: float = 5e-4  # differences of character error rate up to this are none

    def __post_init__(self) -> None:
        if not -1 <= self.worse < self.similar < self.better <= 1:
            raise ValueError(
                "rewards: -1 <= worse < similar < better <= 1 must hold, "
                f"not {self.worse}, {self.similar}, {self.better}"
            )
        if self.threshold < 0:
            raise ValueError(f"rewards: threshold must not be negative, not {self.threshold}")

    def __call__(self, policy: float, rival: float) -> float:
        """Return the reward for two error rates."""
        if abs(policy - rival) <= self.threshold:
            return self.similar
        return self.better if policy < rival else self.worse


@dataclass(frozen=True)
class DgaRlState(ServerState):
    """A server's state with that of the policy: network, optimiser, memory."""

    learnt: Learnt = field(default_factory=dict)


@ALGORITHMS.register
@dataclass(frozen=True)
class DgaRl:
    """Federated averaging that learns weights which beat those of its inner algorithm."""

    inner: FedAvg = dga()
    policy: Policy = PerClient()
    rewards: Rewards = Rewards()
    exploration: float = 0.5  # standard deviation of the noise on log-weights in the first round
    exploration_decay: float = 0.98  # factor from each round to the next
    exaggeration: float | None = None  # null: what the server's optimiser says; 1: the candidates themselves
    num_validation: int = 0  # number of clients that measure both models; 0: all validation clients
    validation: tuple[str, ...] = ()  # their names; empty: drawn when the run begins
    collects: ClassVar[bool] = True  # it needs single updates, which secure aggregation hides
    is_for_whole_models: ClassVar[bool] = True  # `antiphon prune` goes on with the inner algorithm

    def __post_init__(self) -> None:
        if self.exploration < 0 or not 0 <= self.exploration_decay <= 1:
            raise ValueError("exploration must not be negative, exploration_decay must be between 0 and 1")
        if self.exaggeration is None:
            if not hasattr(self.inner.server, "lasting_effect"):
                raise ValueError(
                    f"exaggeration: {self.inner.server} does not say how long a delta acts: set a number"
                )
        elif self.exaggeration < 1:
            raise ValueError(f"exaggeration must be at least 1, not {self.exaggeration}")
        if self.num_validation < 0:
            raise ValueError(f"num_validation must not be negative, not {self.num_validation}")

    def check_run(self, run: Any) -> None:
        """Refuse cohorts that are too large for the policy's network."""
        if isinstance(self.policy, PerCohort) and run.rounds.cohort > self.policy.num_clients:
            raise ValueError(
                f"rounds.cohort is {run.rounds.cohort}, but the policy's network is for "
                f"{self.policy.num_clients} clients: set policy.per_cohort.num_clients"
            )

    def prepare(self, context: RunContext) -> DgaRl:
        """Choose the validation clients that measure, always the same ones."""
        chosen = measuring_clients(context.valid, self.validation, self.num_validation)
        return replace(self, validation=chosen)

    def init(self, params: Tensors) -> DgaRlState:
        start = self.inner.init(params)
        return DgaRlState(start.round, start.params, start.opt, start.seed)

    def round(self, state: DgaRlState, cohort: Sequence[str], pool: Pool) -> tuple[DgaRlState, Metrics]:
        if not self.validation:
            raise ValueError("DGA-RL has no validation clients: call run_context.prepare first")
        collected = pool.collect(self.inner.task(state), cohort)

        def candidate(log_weights: Tensor) -> Tensors:
            return self.inner.step(state, collected.combine(log_weights.tolist()).mean)[0].params

        reports = collected.reports
        rival = torch.tensor([self.inner.weighting(report) for report in reports], dtype=torch.float64)
        rival_model = candidate(rival)
        features, learnt = describe(reports), copy_on_cpu(state.learnt)
        if not learnt:  # the run's seed was not known before
            learnt = self.policy.begin(NUM_FEATURES, derive(state.seed, "policy network"))
        noise = self._noise(state, self.policy.inputs(learnt, features))
        played = rival + self.policy.score(learnt, features) + noise
        distance = self._distance(state)
        policy_cer, rival_cer = self._error_rates(pool, candidate(played), rival_model, distance)
        is_won = policy_cer < rival_cer  # Algorithm 2; on a tie, the weights without noise go on
        reward = self.rewards(policy_cer, rival_cer)
        comparison = Comparison.between(features, played, rival, reward)
        learnt = self.policy.learn(learnt, comparison, derive(state.seed, "policy", state.round))
        # Computed again: keeping it would need two optimiser states, and the journal has the weights of the
        # last combination.
        chosen = collected.combine((played if is_won else rival).tolist())
        after, metrics = self.inner.step(state, chosen.mean)
        return replace(after, learnt=learnt), {
            **metrics,
            "reward": reward,
            "policy_won": float(is_won),
            "policy_cer": policy_cer,
            "rival_cer": rival_cer,
            "exploration": self._deviation(state),
            "exaggeration": distance,
        }

    def _distance(self, state: DgaRlState) -> float:
        """Return how many times as far apart as the candidates the measured models are."""
        if self.exaggeration is not None:
            return self.exaggeration
        step = 1 if state.opt is None else int(state.opt["step"]) + 1
        return float(self.inner.server.lasting_effect(step))  # type: ignore[attr-defined]

    def _error_rates(
        self, pool: Pool, policy: Tensors, rival: Tensors, distance: float
    ) -> tuple[float, float]:
        """Return the error rates of two candidates, each moved away from the other by the same distance."""
        beyond = (distance - 1) / 2

        def error_rate(model: Tensors, other: Tensors) -> float:
            moved = {name: tensor + beyond * (tensor - other[name]) for name, tensor in model.items()}
            return measure(pool, moved, self.validation)["cer"]

        return error_rate(policy, rival), error_rate(rival, policy)

    def _deviation(self, state: DgaRlState) -> float:
        return self.exploration * self.exploration_decay**state.round

    def _noise(self, state: DgaRlState, inputs: Tensor) -> Tensor:
        """Return noise [clients]: one random linear function of all inputs [clients, features]."""
        generator = torch.Generator().manual_seed(derive(state.seed, "explore", state.round))
        direction = torch.randn(inputs.shape[1], generator=generator, dtype=torch.float64)
        return self._deviation(state) * (inputs @ direction) / math.sqrt(inputs.shape[1])


def describe(reports: Sequence[Report]) -> Tensor:
    """Return features [clients, 6]: loss and log magnitudes, and the same standardised in the cohort.

    In a cohort of one client, or of equal clients, the standardised ones are 0.
    """
    rows = []
    for report in reports:
        if missing := {"loss", *MAGNITUDES} - report.stats.keys():
            raise ValueError(f"client {report.client!r} did not report {', '.join(sorted(missing))}")
        magnitudes = [math.log(max(SMALLEST, report.stats[key])) for key in MAGNITUDES]
        rows.append([report.stats["loss"], *magnitudes])
    values = torch.tensor(rows, dtype=torch.float64)
    return torch.cat([values, standardise(values, values)], dim=1)


def copy_on_cpu(tree: Any) -> Any:
    """Return a tree of dicts and tensors with its tensors in new CPU memory, as without a checkpoint.

    A checkpoint may load them to a GPU, or to addresses that are not multiples of 64, for which small matrix
    products have other last bits.
    """
    if isinstance(tree, dict):
        return {key: copy_on_cpu(item) for key, item in tree.items()}
    return tree.cpu().clone() if isinstance(tree, Tensor) else tree
