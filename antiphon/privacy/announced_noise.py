"""The noise of a private run, as the server announces it to those who take part, and what follows from it.

A participant computes the privacy loss from the announcement, with the accountant of `update_accounting`, and
sees how often it is asked. It cannot see noise that the server adds later. Of distributed noise, it adds a
share itself: then every task must ask for a share that is as large as announced.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from antiphon.privacy.accounting import Budget
from antiphon.privacy.distributed_noise import Distributed
from antiphon.privacy.participation import Participation, RoundRobin
from antiphon.privacy.update_accounting import Banded, Correlation, Cost, plan_noise

NOISED = "noised_by_client"  # the view with which a client adds its share
CLIPPING = {"clipped", "clipped_by_client", NOISED}  # views that clip an update before it leaves


class Announced(Protocol):
    """What participants know about the noise of a run."""

    @property
    def cost(self) -> Cost:
        """The privacy cost of all rounds."""

    def why_unprotected(self, views: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
        """Return why the noise does not protect a client that does a task with these views; "" if it does.

        views: names and settings; the last one is nearest to the network.
        """

    def why_not(self, turns: Collection[int], round: int) -> str:
        """Return why a client that took part in the rounds `turns` must not join this one; "" if it may."""


@dataclass(frozen=True)
class AnnouncedNoise:
    """Mechanism, noise and participation of a run."""

    cohorts: Participation
    rounds: int  # that the noise is planned for
    deviation: float  # of the noise in a sum, before it is correlated, over the bound of the clipping
    bands: int = 0  # as in the settings of `private`
    noise: Correlation = Banded()

    def __post_init__(self) -> None:
        if self.rounds < 1 or self.bands < 0 or not 0 < self.deviation < math.inf:
            raise ValueError(f"noise is announced for 1 or more rounds, and is above 0: {self}")

    @property
    def cost(self) -> Cost:
        """The privacy cost of all rounds."""
        any_budget = Budget(1.0, 1e-6)  # a multiplier is given: the budget plays no part
        unit = plan_noise(self.cohorts, self.bands, self.rounds, any_budget, 1.0, self.noise)
        return replace(unit, multiplier=self.deviation / unit.deviation).cost(self.rounds)

    def why_unprotected(self, views: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
        """Return why a task does not clip the update, or asks for less noise than announced."""
        if not CLIPPING & {name for name, _ in views}:
            return "the task does not clip the update, and noise hides clipped updates only"
        if not isinstance(self.noise, Distributed):
            return ""
        name, asked = views[-1] if views else ("", {})
        if name != NOISED:
            return "the run announced noise that clients add, and the task does not ask for it"
        multiplier, colluding = float(asked["multiplier"]), int(asked.get("colluding", 0))
        if multiplier < self.deviation or colluding < self.noise.colluding:
            return "the task asks for a smaller share of the noise than the run announced"
        return ""

    def why_not(self, turns: Collection[int], round: int) -> str:
        """Return why a client that took part in the rounds `turns` must not join this one; "" if it may.

        >>> AnnouncedNoise(RoundRobin(separation=3), rounds=9, deviation=1.0).why_not([0], 2)
        'the run announced turns of a client at least 3 rounds apart, and these are 2 apart'
        """
        if not 0 <= round < self.rounds:
            return f"the run announced noise for {self.rounds} rounds, and this is round {round + 1}"
        others = set(turns) - {round}
        if not isinstance(self.cohorts, RoundRobin) or not others:
            return ""
        nearest, separation = min(abs(turn - round) for turn in others), self.cohorts.separation
        if nearest < separation:
            apart = f"at least {separation} rounds apart, and these are {nearest} apart"
            return f"the run announced turns of a client {apart}"
        most = self.cohorts.participations(self.rounds)
        if len(others) >= most:
            return f"the run announced {most} turns of a client, and they are taken"
        return ""
