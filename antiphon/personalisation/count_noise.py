"""The noise on pooled counts, as a server announces it to sites, and what follows from it for a client.

A site derives the cap of its clients and the privacy loss from the announcement, with its own copy of the
code. It cannot see the noise itself, which the server adds later.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from antiphon.personalisation.private_trial import PROTECTIONS, read_protection
from antiphon.privacy.accounting import GaussianLoss
from antiphon.privacy.distributed_noise import ConcentratedCost
from antiphon.privacy.ledger import Claim, Ledger, privacy_claims
from antiphon.privacy.mechanisms import Cap, Mechanism


@dataclass(frozen=True)
class CountNoise:
    """One kind of noise, and its ε for all rounds; limit: of the counts of a client (null: the default)."""

    kind: str
    epsilon: float
    rounds: int  # releases
    limit: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in PROTECTIONS or self.rounds < 1:
            raise ValueError(f"noise is {', '.join(PROTECTIONS)}, for 1 or more rounds: {self}")
        self.protection()

    def protection(self) -> tuple[Cap, Mechanism, Ledger]:
        """Return the cap of a client, the noise of a release, and the ledger of the server."""
        _, protect, _ = read_protection(f"{self.kind}={self.epsilon}", self.limit)
        return protect(self.epsilon, self.rounds)

    def claims(self) -> list[Claim]:
        """Return the ε of a word, of an utterance and of a client; an utterance has none without a cap."""
        cap, mechanism, _ = self.protection()
        return privacy_claims(mechanism, self.rounds, float("inf"), cap.limit)

    @property
    def cost(self) -> ConcentratedCost:
        """The cost of all rounds for a client. (ε, 0)-DP implies ε²/2-concentrated DP (Bun, Steinke 2016)."""
        cap, mechanism, _ = self.protection()
        loss = mechanism.loss_at(cap.limit)
        rho = loss.rho if isinstance(loss, GaussianLoss) else loss.pure**2 / 2
        return ConcentratedCost(self.rounds * rho)

    def why_unprotected(self, views: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
        """Return why the noise does not protect clients; their counts are capped whatever the views."""
        cap, _, _ = self.protection()
        if cap.limit == float("inf"):
            return f"noise of the kind {self.kind!r} protects words, and not clients"
        return ""

    def why_not(self, turns: Collection[int], round: int) -> str:
        """Return why a client must not take part in a round; after the last one, it counts errors once."""
        if 0 <= round <= self.rounds:
            return ""
        return f"the run announced noise for {self.rounds} rounds, and this is round {round + 1}"
