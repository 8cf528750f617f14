"""An audit of private updates: rounds in which all clients are canaries, and an attacker who looks for each.

A canary sends an update that is too long, in a direction of its own. Half of the canaries, chosen by coins,
are in the run. The attacker sees every release, knows all settings and the turns of `round_robin`, and
guesses who is in (`privacy.run_audit`). The rounds use the code of real runs: it draws cohorts, clips on the
client and on the server, adds up, and adds noise. A bound above the claim is a fault; one below it is no
proof.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from antiphon.algorithms.fedavg import FedAvg
from antiphon.algorithms.private import Private
from antiphon.core import Report, Stopped, Task, Update
from antiphon.pools.local import LocalPool
from antiphon.privacy.distributed_noise import Distributed
from antiphon.privacy.participation import PoissonSampling
from antiphon.privacy.run_audit import RunAudit, SeenCanaries, audit_canaries
from antiphon.privacy.update_accounting import epsilon_of
from antiphon.seeding import derive
from antiphon.server.weighting import Uniform
from antiphon.tasks.canary_clients import TOO_LONG
from antiphon.tasks.update_clipping import AdaptiveUpdate, EachLayerByNorm

CANARIES = "canaries"  # the one tensor of the audited model: an entry for each canary


@dataclass(frozen=True)
class CanaryWorker:
    """Clients whose updates are too long, each in its own direction."""

    names: Sequence[str]
    bound: float

    def run(self, task: Task, clients: Sequence[str]) -> Iterator[Update]:
        places = {name: place for place, name in enumerate(self.names)}
        for client in clients:
            update = torch.zeros(len(self.names), dtype=torch.float64)
            update[places[client]] = TOO_LONG * self.bound
            stats = {"loss": 0.0, "num_utterances": 1.0}
            yield Update({CANARIES: update}, reports=(Report(client, stats),))


def audit_updates(
    private: Private, num_canaries: int = 20_000, seed: int = 0, confidence: float = 0.95
) -> RunAudit:
    """Run the rounds of a private algorithm with canaries only, and attack them."""
    if isinstance(private.clipping, AdaptiveUpdate):
        raise ValueError("adaptive_update follows the clients of a run: audit a run, with private.canaries")
    if isinstance(private.noise, Distributed):
        raise ValueError(
            "distributed noise is added by the clients of a run: audit it, with private.canaries"
        )
    if isinstance(private.clipping, EachLayerByNorm):
        private = replace(private, clipping=replace(private.clipping, norms=(1.0,)))  # of the one tensor
    names = [f"canary/{number:06d}" for number in range(num_canaries)]
    coins = np.random.default_rng(derive(seed, "canaries"))
    included = coins.random(num_canaries) < 0.5
    taking_part = [name for name, is_in in zip(names, included.tolist(), strict=True) if is_in]
    audited = replace(
        private,
        inner=FedAvg(weighting=Uniform()),
        cohort=private.cohort or 1.0,
        simulated=True,
        key_file="",
        shared_budget=None,
        trusts_clients=False,
        canaries=0,
        folder="",
    )
    releases = _releases(audited, names, taking_part, seed)
    if not len(releases):
        raise ValueError("the privacy budget allows no round, so there is nothing to audit")
    plan, cohorts = audited.plan, audited.cohorts
    turns = [set(audited.draw(names, len(names), seed, round)) for round in range(len(releases))]
    canaries = SeenCanaries(
        releases,
        np.array([[name in drawn for name in names] for drawn in turns]),
        included,
        tuple(plan.coefficients),
        plan.deviation,
        cohorts.rate if isinstance(cohorts, PoissonSampling) else 0.0,
    )
    claimed = epsilon_of((plan.cost(len(releases)),), private.delta)
    return audit_canaries(canaries, claimed, private.delta, confidence)


def _releases(private: Private, names: Sequence[str], taking_part: Sequence[str], seed: int) -> np.ndarray:
    """Return the released sums of all rounds, in bounds. [rounds, canaries]"""
    pool = LocalPool(CanaryWorker(names, private.clipping.bound))
    state = private.init({CANARIES: torch.zeros(len(names), dtype=torch.float64)}).with_seed(seed)
    releases = []
    for round in range(private.rounds):
        cohort = private.draw(taking_part, len(taking_part), seed, round)
        try:
            after, _ = private.round(state, cohort, pool)
        except Stopped:
            break
        moved = (state.params[CANARIES] - after.params[CANARIES]).numpy()
        releases.append(moved * private.cohort / private.clipping.bound)
        state = after
    return np.array(releases)
