"""The pool of a private round: clients clip, canaries join them, the algorithm sees the sum with noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from antiphon.core import Collected, Pool, RunningMean, Task, Tensors, Update, Weigh, lives_with_server
from antiphon.privacy.distributed_noise import DistributedPlan, choose_steps
from antiphon.server.weighting import ByExamples, Uniform
from antiphon.tasks.canary_clients import CanaryClients
from antiphon.tasks.local_training import parameters_in
from antiphon.tasks.noised_update import NoisedByClient
from antiphon.tasks.round_release import RoundRelease
from antiphon.tasks.update_clipping import (
    WITHIN,
    AdaptiveUpdate,
    Clipped,
    ClippedByClient,
    EachLayerByNorm,
    UpdateClipping,
    fits_grid,
)
from antiphon.tasks.views import View, through

NO_SERVER_SPEECH = (
    "private: each_layer_by_norm learns its bounds from the server's own speech, and there is none: set "
    "speakers.seed_fraction above 0, or use clipping=each_layer"
)


def largest_weight(weigh: Any) -> float:
    """Return the largest weight that a client can get, whatever it reports; 0 if there is none."""
    if isinstance(weigh, ByExamples):
        return float(weigh.max_utterances)
    return 1.0 if isinstance(weigh, Uniform) else 0.0


@dataclass
class PrivatePool:
    """The pool of one round."""

    pool: Pool
    release: RoundRelease
    clipping: UpdateClipping
    draw: Callable[[Sequence[str]], list[str]]  # returns those of the clients whose turn it is
    trusts_clients: bool
    began_with: str  # `noise` of the rounds before; "" in the first round
    server_client: str  # the server's own speech
    canaries: CanaryClients | None = None
    noise: str = ""  # what the noise depends on; set when clients were asked
    next_bound: float = 0.0  # of adaptive clipping; set when clients were asked

    def collect(self, task: Task, cohort: Sequence[str]) -> Collected:
        if cohort and all(map(lives_with_server, cohort)):
            return self.pool.collect(task, cohort)
        raise ValueError("private: single updates of clients have no noise, so they cannot be collected")

    def reduce(self, task: Task, cohort: Sequence[str], weigh: Weigh) -> Update:
        if cohort and all(map(lives_with_server, cohort)):
            return self.pool.reduce(task, cohort, weigh)
        like, largest = parameters_in(task.tensors), largest_weight(weigh)
        self._check_task(like, cohort, largest)
        self._learn_norms(task, like)
        update = Update.nothing()
        if cohort:
            view = self._view(sum(tensor.numel() for tensor in like.values()), len(cohort))
            update = self.pool.reduce(through(task, view), cohort, weigh)
        self._check_answers(update, like, cohort, weigh)
        count = sum(report.stats.get(WITHIN, 0.5) - 0.5 for report in update.reports)
        turns = self._canary_turns(update)
        mean = self.release.mean(self._with_canaries(update, turns, like, largest), like, largest, count)
        if isinstance(self.clipping, AdaptiveUpdate):
            self.next_bound = self.clipping.moved(self.release.share_within(like, count)).bound
        if self.canaries is not None:
            self.canaries.look_for(mean, self.release, turns, self.clipping)
        return Update(mean, 0.0, (), update.failures)

    def _learn_norms(self, task: Task, like: Tensors) -> None:
        """Give a clipping by norm its norms, if it has none: the server's own speech is one more client."""
        if not isinstance(self.clipping, EachLayerByNorm):
            return
        if not self.clipping.norms:
            if self.began_with:
                raise ValueError(
                    "private: this run began with another clipping. Resume it with what it began with"
                )
            update = self.pool.reduce(task, [self.server_client], Uniform())
            if update.is_empty:
                raise ValueError(NO_SERVER_SPEECH)
            self.clipping = self.clipping.learnt_from({name: update.mean[name] for name in like})
        self.clipping.shares({name: tensor.numel() for name, tensor in like.items()})  # refuses others

    def _view(self, size: int, num_clients: int) -> View:
        """Return what clients do to their updates of so many entries before they leave."""
        plan = self.release.plan
        if isinstance(plan, DistributedPlan):
            steps = choose_steps(size, num_clients, plan.deviation, plan.colluding)
            return NoisedByClient(self.clipping, steps, plan.deviation, plan.colluding)
        return (ClippedByClient if self.trusts_clients else Clipped)(self.clipping)

    def _canary_turns(self, update: Update) -> list[str]:
        """Return the canaries that have their turn. A round that releases nothing is no turn."""
        is_closed = self.release.has_shares and update.is_empty
        return self.draw(self.canaries.names) if self.canaries is not None and not is_closed else []

    def _with_canaries(self, update: Update, turns: Sequence[str], like: Tensors, largest: float) -> Update:
        """Return the sum with the canaries that are in the run and have their turn, clipped as others are."""
        total = RunningMean().add(update)
        if self.canaries is not None:
            for tensors in self.canaries.updates(turns, like, self.clipping):
                total.add(Update(self.clipping(tensors), math.log(largest)))
        return total.total()

    def _check_task(self, like: Tensors, cohort: Sequence[str], largest: float) -> None:
        """Refuse, before any work, a task whose answers the noise was not planned for."""
        if self.noise:
            raise ValueError(
                "private: clients were asked twice in a round, and each answer would need noise of its own"
            )
        if not largest:
            raise ValueError(
                "private: the weights of this algorithm depend on what clients report, and one client can "
                "have any influence: use uniform weights"
            )
        if list(cohort) != list(dict.fromkeys(self.draw(cohort))):
            raise ValueError(
                f"private: the cohort of round {self.release.round + 1} has a client that is not planned for "
                "it, or one twice: draw cohorts with private.draw"
            )
        size = sum(tensor.numel() for tensor in like.values())
        is_rounded = self.trusts_clients and not self.release.has_shares
        if is_rounded and not fits_grid(size, len(cohort)):
            raise ValueError(
                f"private: secure aggregation of {len(cohort)} updates with {size} entries rounds too much: "
                "use smaller cohorts, or train fewer parameters"
            )
        self.noise = self.release.noise_id(like)
        if self.began_with and self.noise != self.began_with:
            raise ValueError(
                "private: this run began with another key, other rounds, or other settings of its noise; "
                "later noise would not fit that of earlier rounds. Resume it with what it began with"
            )

    def _check_answers(self, update: Update, like: Tensors, cohort: Sequence[str], weigh: Weigh) -> None:
        """Refuse a sum with a part that did not come from one planned client, and may not be clipped."""
        answered = [report.client for report in update.reports]
        weight = sum(math.exp(weigh(report)) for report in update.reports)
        summed = 0.0 if update.is_empty else math.exp(update.log_weight)
        is_known = set(answered) <= set(cohort) and len(set(answered)) == len(answered)
        if not is_known or abs(summed - weight) > 1e-6 * max(1.0, weight):
            raise ValueError("private: an update came without the report of one client of the cohort")
        shapes = {name: tensor.shape for name, tensor in update.mean.items()}
        if update.mean and shapes != {name: tensor.shape for name, tensor in like.items()}:
            raise ValueError(
                "private: clients answered with other tensors than the parameters they were sent"
            )
