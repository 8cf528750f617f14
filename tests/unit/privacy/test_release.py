from __future__ import annotations

from pathlib import Path

import pytest
import torch

from antiphon.core import Stopped
from antiphon.privacy.accounting import Budget
from antiphon.privacy.ledger import Ledger
from antiphon.privacy.mechanisms import Laplace
from antiphon.privacy.release import PrivateRelease
from antiphon.privacy.samplers import Secure, Seeded
from antiphon.records import checkpoint

COUNTS = torch.tensor([50.0, 30.0, 0.0, 0.0], dtype=torch.float64)
UNIFORM = torch.full((4,), 0.25, dtype=torch.float64)


def release(epsilon: float = 1.0, total: float = 3.0) -> PrivateRelease:
    ledger = Ledger(Budget(total))
    return PrivateRelease(Laplace(1.0, epsilon), ledger, UNIFORM, Seeded(0))


def test_counts_are_noised_paid_for_and_none_is_negative() -> None:
    found = release()(COUNTS, 0, None)
    assert found.metrics == {"epsilon": 1.0, "epsilon_left": 2.0}
    assert not torch.equal(found.memory["noised"], COUNTS)
    assert float((found.memory["noised"] - COUNTS).abs().max()) < 20
    assert bool((found.counts >= 0).all())


def test_every_round_has_noise_of_its_own_and_the_budget_ends_it() -> None:
    private, memory, seen = release(), None, []
    for round in range(3):
        found = private(COUNTS, round, memory)
        memory = found.memory
        seen.append(tuple(found.memory["noised"].tolist()))
    assert len(set(seen)) == 3
    with pytest.raises(Stopped, match="3 releases, epsilon 3 of 3 spent"):
        private(COUNTS, 3, memory)


def test_a_release_goes_on_exactly_after_a_checkpoint(tmp_path: Path) -> None:
    private = release()
    first = private(COUNTS, 0, None)
    checkpoint.save(tmp_path / "c", {"memory": first.memory}, {})
    restored, _ = checkpoint.load(tmp_path / "c", {"memory": first.memory})
    straight, resumed = private(COUNTS, 1, first.memory), private(COUNTS, 1, restored["memory"])
    assert torch.equal(straight.counts, resumed.counts)
    assert straight.memory["spent"] == resumed.memory["spent"]
    assert straight.metrics == resumed.metrics


def test_secure_noise_is_the_default_and_differs_between_calls() -> None:
    private = PrivateRelease(Laplace(1.0, 0.01), Ledger(Budget(1.0)), UNIFORM)
    assert private.randomness == Secure()
    first, second = (private(COUNTS, 0, None).memory["noised"] for _ in range(2))
    assert not torch.equal(first, second)


def test_a_release_that_could_never_be_paid_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="add noise or raise the budget"):
        release(epsilon=4.0, total=3.0)
