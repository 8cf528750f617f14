"""Who takes part in which round, for runs whose privacy depends on it.

A client's rounds are hashes of its own name, so adding or removing a client changes the rounds of no other.
The price: the size of a cohort varies around its plan, and a cohort may be empty. It must be neither topped
up nor cut: that would make the rounds of one client depend on another.

A cohort of a fixed size that is drawn anew in each round has neither property: see `engine.sample_cohort`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from antiphon.seeding import derive


@dataclass(frozen=True)
class RoundRobin:
    """Every client takes part once in `separation` + `slack` rounds, in rounds at least `separation` apart.

    Client c has its turn i in round first(c) + i (separation + slack) + shift(c, i), 0 ≤ shift ≤ slack. With
    slack 0 the same clients always meet. The draw may be public: it gives no privacy by itself.
    """

    separation: int = 10  # rounds from one turn of a client to the next, at least
    slack: int = 0  # rounds by which a turn may be late; 0: the same clients always meet

    def __post_init__(self) -> None:
        if self.separation < 1 or self.slack < 0:
            got = f"{self.separation} and {self.slack}"
            raise ValueError(
                f"round_robin needs a separation of at least 1 and a slack of at least 0, not {got}"
            )

    @property
    def period(self) -> int:
        return self.separation + self.slack

    @property
    def rate(self) -> float:
        """The share of the clients that take part in a round, on average."""
        return 1 / self.period

    def takes_part(self, client: str, round: int, seed: int, key: bytes) -> bool:
        first = derive(seed, "first turn", client) % self.period
        turn, shift = divmod(round - first, self.period)
        return shift == derive(seed, "late turn", client, turn) % (self.slack + 1)

    def participations(self, rounds: int) -> int:
        """Return how often a client can take part in this many rounds, at most.

        >>> RoundRobin(separation=3).participations(7)
        3
        """
        # The first of k turns is late by all of the slack, the last one is not late, and no two are nearer
        # than the separation.
        return min((rounds - 1 + self.slack) // self.period, (rounds - 1) // self.separation) + 1


@dataclass(frozen=True)
class PoissonSampling:
    """Every client takes part in every round with probability `rate`, by a secret key.

    This makes a release more private for those who do not know the cohorts. The journal names them: keep it
    as safe as the key.
    """

    rate: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise ValueError(f"poisson_sampling needs a rate above 0 and at most 1, not {self.rate}")

    def takes_part(self, client: str, round: int, seed: int, key: bytes) -> bool:
        text = json.dumps(["poisson", round, client]).encode()
        number = int.from_bytes(hashlib.blake2b(text, key=key, digest_size=8).digest(), "big")
        return number < self.rate * 2**64


Participation = RoundRobin | PoissonSampling


def cohort_of(
    participation: Participation, clients: Sequence[str], round: int, seed: int, key: bytes
) -> list[str]:
    """Return the clients of a round, in their order."""
    return [client for client in clients if participation.takes_part(client, round, seed, key)]
