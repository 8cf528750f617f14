"""Private updates: differential privacy for whole clients, around any algorithm that asks them once a round.

H. B. McMahan et al., "Learning Differentially Private Recurrent Language Models", ICLR 2018, arXiv:1710.06963
(clip updates, sum them, add noise, divide by the planned number of clients); with noise that is correlated
from round to round (`privacy.matrix_factorisation`, `privacy.buffered_toeplitz`).

| symbol          | here                                                                                 |
| --------------- | ------------------------------------------------------------------------------------ |
| S               | `clipping.bound`: the l2 norm of a client's update, at most                          |
| qW              | `cohort`: the number of clients that a round is planned for                          |
| σ               | `deviation` of the plan, in units of S                                               |
| f̃_f             | the released mean: (Σ_k Δ_k + noise) / cohort, whoever answered                      |

Neighbouring data differ by one client with all its rounds. What is released are the models of all rounds. Not
covered: the journal (losses, numbers of utterances, who took part), the server itself, and floating-point
rounding. Assumed: whether one client answers does not depend on whether another one is there.

With `noise: distributed`, clients add the noise in shares (`privacy.distributed_noise`), under secure
aggregation: the guarantee then holds against the server, too, but for reports. Neighbouring data differ by
the update of one client, which counts as zero; that it takes part is no secret. If too few clients answer,
nothing is released.

Deviations. Weights are uniform, or capped numbers of utterances: a client then counts by its weight over the
cap, so its part in the sum is never longer than the bound. The inner algorithm gets no reports, because they
have no noise.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from antiphon.algorithms.fedavg import FedAvg
from antiphon.algorithms.private_limits import (
    check_private_run,
    check_source_of_shares,
    why_unbounded,
)
from antiphon.algorithms.rehearsal import SERVER_CLIENT
from antiphon.core import (
    ALGORITHMS,
    Algorithm,
    Metrics,
    Pool,
    Stopped,
    Tensors,
    WrapperState,
)
from antiphon.privacy.accounting import Budget
from antiphon.privacy.announced_noise import AnnouncedNoise
from antiphon.privacy.distributed_noise import Distributed
from antiphon.privacy.noise_key import KEY_FILE, derived_key, make_key, read_key, simulated_key
from antiphon.privacy.participation import Participation, PoissonSampling, RoundRobin, cohort_of
from antiphon.privacy.update_accounting import Banded, Correlation, Plan, epsilon_of, plan_noise
from antiphon.privacy.update_ledger import ROUNDING, SharedBudget
from antiphon.registry import choice_name
from antiphon.server.run_context import RunContext, parts_of
from antiphon.server.weighting import Uniform
from antiphon.tasks.canary_clients import CanaryClients
from antiphon.tasks.private_pool import NO_SERVER_SPEECH, PrivatePool
from antiphon.tasks.round_release import RoundRelease
from antiphon.tasks.update_clipping import AdaptiveUpdate, EachLayerByNorm, UpdateClipping, WholeUpdate


@dataclass(frozen=True)
class PrivateState(WrapperState):
    """The inner state, the number of releases, and what the noise of the run depends on."""

    released: int = 0
    noise: str = ""  # a digest of key, plan and tensors; "" before the first release
    bound: float = 0.0  # of the next round, if clipping is adaptive; 0: that of the settings
    norms: tuple[float, ...] = ()  # of the layers, if clipping is by norm; learnt in the first round


@ALGORITHMS.register
@dataclass(frozen=True)
class Private:
    """An algorithm whose models are differentially private: clients clip, the server adds noise."""

    inner: Algorithm = FedAvg(weighting=Uniform())
    epsilon: float = 8.0  # the budget of a client for the whole run; the run stops before it is exceeded
    delta: float = 1e-6  # of the same budget; well below 1 / (number of clients)
    clipping: UpdateClipping = WholeUpdate()
    cohorts: Participation = RoundRobin()
    bands: int = 0  # rounds over which noise is correlated; 1: independent noise; 0: as many as possible
    # How noise is correlated: banded, or blt, which needs no bands; distributed: independent, by clients.
    noise: Correlation = Banded()
    noise_multiplier: float = 0.0  # 0: the least noise with which all rounds are within the budget
    cohort: float = 0.0  # the clients that a round is planned for: sums are divided by it; 0: rounds.cohort
    rounds: int = 0  # the rounds that the noise is planned for; 0: rounds.total
    simulated: bool = False  # noise from the run's seed, for experiments: who knows the seed can subtract it
    key_file: str = ""  # 32 secret bytes, mode 0600; "": noise.key in the run's folder, made when it begins
    shared_budget: SharedBudget | None = None  # a budget for all runs on the same clients; null: none
    trusts_clients: bool = False  # only clients clip: for secure_aggregation, where the server cannot
    canaries: int = 0  # clients without speech that `antiphon audit` looks for; half of them are in the run
    folder: str = ""  # of the run; set when the run begins
    effect: ClassVar[str] = "private"
    refuses: ClassVar = {
        "reshapes": "the noise of later rounds would not fit the smaller model; prune after the private run, "
        "on the server's speech",
        "private": "updates get noise once; leave out one of the two",
    }

    def __post_init__(self) -> None:
        if not self.epsilon > 0 or not 0 < self.delta < 1:
            got = f"{self.epsilon} and {self.delta}"
            raise ValueError(f"private needs an epsilon above 0 and a delta between 0 and 1, not {got}")
        if min(self.bands, self.noise_multiplier, self.cohort, self.rounds, self.canaries) < 0:
            raise ValueError(
                "private: bands, noise_multiplier, cohort, rounds and canaries must not be negative"
            )
        if self.simulated and self.key_file:
            raise ValueError("private: a simulation takes its noise from the seed; leave out key_file")
        for part in parts_of(self.inner):
            if reason := why_unbounded(part, isinstance(self.noise, Distributed)):
                raise ValueError(f"private around {choice_name(type(part))}: {reason}")

    def check_run(self, run: Any) -> None:
        """Refuse a run that would release more than the sums of its rounds."""
        check_private_run(self, run)

    def check_place(self, is_away: bool) -> None:
        """Refuse shares of noise from a source that does not fit the place of the clients."""
        check_source_of_shares(self, is_away)

    def prepare(self, context: RunContext) -> Private:
        """Take what the run decides, and make its key."""
        ready = replace(
            self,
            rounds=self.rounds or context.num_rounds,
            cohort=self.cohort or float(context.cohort),
            folder=self.folder or str(context.folder or ""),
        )
        if isinstance(self.clipping, EachLayerByNorm) and not context.has_server_speech:
            raise ValueError(NO_SERVER_SPEECH)
        number = len(context.clients)
        if number and not ready.delta < 1 / number:
            raise ValueError(f"private: delta {ready.delta:g} must be well below 1 / {number} clients")
        mean = number * ready.cohorts.rate
        if number and ready.cohort and not 0.5 <= mean / ready.cohort <= 2:
            raise ValueError(
                f"private: {number} clients make cohorts of {mean:.3g} on average, and rounds are planned "
                f"for {ready.cohort:g}: change cohorts (a longer separation, a smaller rate) or rounds.cohort"
            )
        if ready.rounds:
            ready.plan.cost(1)  # refuses bands that do not fit, or a package that is missing
            if ready.cohort:
                ready._deviation_of_count()  # refuses a count that takes the whole budget
        if context.folder and not ready.simulated and not ready.key_file:
            path = Path(ready.folder) / KEY_FILE
            context.on_first_process(partial(make_key, path))
            ready = replace(ready, key_file=str(path))
        return ready

    @property
    def budget(self) -> Budget:
        return Budget(self.epsilon, self.delta)

    @property
    def plan(self) -> Plan:
        """The noise of the run."""
        if not self.rounds or not self.cohort:
            raise ValueError("private does not know its rounds and cohort: call run_context.prepare first")
        return plan_noise(
            self.cohorts, self.bands, self.rounds, self.budget, self.noise_multiplier, self.noise
        )

    def announced(self, rounds: int) -> AnnouncedNoise:
        """Return what clients are told about the noise of a run of so many rounds."""
        ready = replace(self, rounds=self.rounds or rounds, cohort=self.cohort or 1.0)
        return AnnouncedNoise(self.cohorts, ready.rounds, ready.plan.deviation, self.bands, self.noise)

    def key(self, seed: int) -> bytes:
        if self.simulated:
            return simulated_key(seed)
        if not self.key_file or not self.folder:
            raise ValueError("private has no key yet: call run_context.prepare with the folder of the run")
        return read_key(Path(self.key_file))

    def draw(self, clients: Sequence[str], size: int, seed: int, round: int) -> list[str]:
        """Draw the clients of a round; their number varies around `size`."""
        return cohort_of(self.cohorts, clients, round, seed, derived_key(self.key(seed), "cohorts"))

    def init(self, params: Tensors) -> PrivateState:
        return PrivateState(self.inner.init(params))

    def round(self, state: PrivateState, cohort: Sequence[str], pool: Pool) -> tuple[PrivateState, Metrics]:
        epsilon = self._spend(state)
        clipping = self._clipping(state)
        noise = (self.plan, clipping.bound, self.cohort, state.round, self.key(state.seed))
        release = RoundRelease(
            *noise, self.folder, self.simulated, self.clipping.bound, self._deviation_of_count()
        )
        private = PrivatePool(
            pool,
            release,
            clipping,
            lambda clients: self.draw(clients, len(clients), state.seed, state.round),
            self.trusts_clients,
            state.noise,
            SERVER_CLIENT,
            self._canary_clients(state, epsilon),
        )
        inner, metrics = self.inner.round(state.inner, cohort, private)
        if not private.noise or inner.round != state.round + 1:
            name = choice_name(type(self.inner))
            raise ValueError(f"private around {name}: it must ask clients once and count every round")
        norms = getattr(private.clipping, "norms", ())
        after = PrivateState(inner, state.released + 1, private.noise, private.next_bound, norms)
        bound = {"clipping_bound": clipping.bound} if private.next_bound else {}
        return after, {**metrics, "epsilon": epsilon, "noise_deviation": release.deviation, **bound}

    def _clipping(self, state: PrivateState) -> UpdateClipping:
        """Return the clipping with what earlier rounds have found."""
        if isinstance(self.clipping, EachLayerByNorm):
            return replace(self.clipping, norms=state.norms or self.clipping.norms)
        return replace(self.clipping, bound=state.bound) if state.bound else self.clipping

    def _deviation_of_count(self) -> float:
        """Return the deviation of the noise on the count of an adaptive bound; 0 if there is none."""
        if not isinstance(self.clipping, AdaptiveUpdate):
            return 0.0
        return self.clipping.deviation_of_count(self.plan.deviation, self.cohort)

    def _spend(self, state: PrivateState) -> float:
        """Return ε after this round; raise `Stopped` before it exceeds the budget."""
        rounds = state.released + 1
        if state.released != state.round:
            raise ValueError(f"private: round {state.round} does not follow {state.released} releases")
        if rounds > self.rounds:
            raise Stopped(f"the noise of this run is planned for {self.rounds} rounds, and they are done")
        cost = self.plan.cost(rounds)
        epsilon = epsilon_of((cost,), self.delta)
        if epsilon > self.epsilon * (1 + ROUNDING):
            raise Stopped(
                f"the privacy budget allows no further round: epsilon would be {epsilon:.4g} after round "
                f"{rounds}, and the budget is {self.epsilon:.4g} at delta {self.delta:g}"
            )
        if self.shared_budget is not None:
            self.shared_budget.spend(self._run_id(state.seed), rounds, cost, self.delta)
        return epsilon

    def _canary_clients(self, state: PrivateState, epsilon: float) -> CanaryClients | None:
        if not self.canaries:
            return None
        rate = self.cohorts.rate if isinstance(self.cohorts, PoissonSampling) else 0.0
        return CanaryClients(self.canaries, state.seed, epsilon, self.delta, rate)

    def _run_id(self, seed: int) -> str:
        """Return the name of the run in a shared budget; it tells nothing about the key."""
        if self.simulated:
            return hashlib.blake2b(self.folder.encode(), digest_size=8).hexdigest()
        return derived_key(self.key(seed), "run")[:8].hex()
