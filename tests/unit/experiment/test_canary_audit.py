"""The audit stays below what private updates claim, and finds mechanisms that were broken on purpose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from antiphon.algorithms.private import Private
from antiphon.experiment.canary_audit import audit_updates
from antiphon.privacy import update_accounting
from antiphon.privacy.participation import PoissonSampling, RoundRobin
from antiphon.privacy.run_audit import RunAudit
from antiphon.tasks import update_clipping

NUM_CANARIES = 20_000
# Two turns for every client. A claim of 3 can be refuted by this many canaries, one of 8 cannot.
BANDED = Private(epsilon=3.0, delta=1e-6, cohorts=RoundRobin(2), rounds=4, cohort=5000.0)
INDEPENDENT = Private(epsilon=3.0, delta=1e-6, cohorts=RoundRobin(2), bands=1, rounds=4, cohort=5000.0)
ONCE = Private(epsilon=3.0, delta=1e-6, cohorts=RoundRobin(4), rounds=4, cohort=2500.0)  # one turn
SAMPLED = Private(epsilon=3.0, delta=1e-6, cohorts=PoissonSampling(0.5), rounds=3, cohort=5000.0)
Plant = Callable[[pytest.MonkeyPatch], None]


def audit(private: Private) -> RunAudit:
    return audit_updates(private, NUM_CANARIES, seed=3)


def halve_noise(patch: pytest.MonkeyPatch) -> None:
    deviation = update_accounting.BandedPlan.deviation.fget  # type: ignore[attr-defined]
    cost = update_accounting.BandedPlan.cost
    half = property(lambda plan: deviation(plan) / 2)
    patch.setattr(update_accounting.BandedPlan, "deviation", half)

    def claimed(plan: Any, rounds: int) -> Any:
        """The accountant does not know: it counts with the noise that was planned."""
        return update_accounting.GaussianCost(cost(plan, rounds).shift / 2)

    patch.setattr(update_accounting.BandedPlan, "cost", claimed)


def clip_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(update_clipping._Clipping, "__call__", lambda clipping, update, room=0.0: update)


def take_part_always(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RoundRobin, "takes_part", lambda turns, client, round, seed, key: True)


@pytest.mark.parametrize("private", [BANDED, INDEPENDENT, SAMPLED], ids=["banded", "independent", "sampled"])
def test_what_is_measured_stays_below_the_claim_and_is_not_nothing(private: Private) -> None:
    found = audit(private)
    assert found.claimed == pytest.approx(3.0, rel=1e-3)
    assert 0.5 < found.at_least < found.claimed
    assert 0.8 * found.claimed < found.cosine.low < found.cosine.estimate < found.cosine.high
    assert not found.is_refuted


@pytest.mark.parametrize(
    ("plant", "private"),
    [(halve_noise, BANDED), (halve_noise, INDEPENDENT), (clip_nothing, BANDED), (take_part_always, ONCE)],
)
def test_a_fault_that_is_planted_is_found(
    plant: Plant, private: Private, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    found = audit(private)
    assert found.claimed == pytest.approx(3.0, rel=1e-3)
    assert found.is_refuted


def test_the_same_seed_gives_the_same_audit() -> None:
    assert audit_updates(SAMPLED, 500, seed=1) == audit_updates(SAMPLED, 500, seed=1)
