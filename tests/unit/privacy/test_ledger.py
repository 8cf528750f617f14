from __future__ import annotations

import json
import math
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from antiphon.core import ServerState, Stopped
from antiphon.privacy.accounting import Advanced, Basic, Budget, Composition, GaussianLoss, LaplaceLoss, Renyi
from antiphon.privacy.ledger import Ledger, State, privacy_claims
from antiphon.privacy.mechanisms import Gaussian, Laplace, utterance_sensitivity
from antiphon.records import checkpoint

TENTH = LaplaceLoss(1, 10)


def test_the_budget_is_spent_to_the_end_and_not_past_it() -> None:
    ledger = Ledger(Budget(1.0))
    for _ in range(10):  # ten tenths are a whole, whatever floating point says
        ledger = ledger.spend(TENTH)
    assert ledger.epsilon == pytest.approx(1.0)
    with pytest.raises(Stopped, match=r"10 releases, epsilon 1 of 1 spent .* would make it 1.1"):
        ledger.spend(TENTH)
    assert ledger.num_releases == 10


@pytest.mark.parametrize("composition", [Basic(), Advanced(), Renyi()], ids=["basic", "advanced", "renyi"])
def test_what_is_affordable_can_be_spent_and_nothing_more(composition: Composition) -> None:
    ledger = Ledger(Budget(2.0, 1e-5), composition)
    with suppress(Stopped):
        for _ in range(1000):
            ledger = ledger.spend(TENTH)
    number = ledger.num_releases
    assert 0 < number < 1000
    assert (
        composition.epsilon([(TENTH, number)], 1e-5) <= 2.0 < composition.epsilon([(TENTH, number + 1)], 1e-5)
    )


def test_a_ledger_is_a_value() -> None:
    ledger = Ledger(Budget(1.0))
    ledger.spend(TENTH)
    assert ledger.epsilon == 0
    assert ledger.left == 1.0


def test_releases_of_different_kinds_compose() -> None:
    ledger = Ledger(Budget(9.0, 1e-6), Renyi()).spend(TENTH).spend(GaussianLoss(1, 4)).spend(TENTH)
    assert ledger.num_releases == 3
    expected = Renyi().epsilon([(TENTH, 2), (GaussianLoss(1, 4), 1)], 1e-6)
    assert ledger.epsilon == pytest.approx(expected, rel=1e-12)


def test_a_budget_without_delta_has_basic_composition_only() -> None:
    with pytest.raises(ValueError, match="only Basic composition works with delta 0"):
        Ledger(Budget(1.0), Advanced())
    with pytest.raises(ValueError, match="epsilon above 0"):
        Budget(0.0)


@dataclass(frozen=True)
class PrivateState(ServerState):
    ledger: State = ()


def test_a_resumed_ledger_is_the_same_to_the_last_bit(tmp_path: Path) -> None:
    fresh = Ledger(Budget(5.0, 1e-6), Renyi())
    ledger = fresh.spend(TENTH).spend(GaussianLoss(1.7, 9)).spend(TENTH)
    checkpoint.save(tmp_path / "c", PrivateState(3, {"q": torch.zeros(2)}, ledger=ledger.state()), {})
    state, _ = checkpoint.load(tmp_path / "c", PrivateState(0, {}))
    resumed = fresh.resumed(state.ledger)
    assert resumed == ledger
    assert resumed.spend(TENTH).epsilon == ledger.spend(TENTH).epsilon
    assert fresh.resumed(json.loads(json.dumps(ledger.state()))) == ledger


# --- Statement ------------------------------------------------------------------------------------


def test_the_papers_claim_stands_beside_the_honest_total() -> None:
    longest = utterance_sensitivity(24, [1.0])
    claims = privacy_claims(Laplace(1.0, 0.5), rounds=10, utterance=longest)
    found = {(c.unit.split(" (")[0], c.composition): c.epsilon for c in claims}
    assert found[("one word, one utterance", "none")] == 0.5
    assert found[("one utterance", "basic")] == pytest.approx(24 * 0.5 * 10)


def test_under_a_cap_an_utterance_counts_as_a_client_that_is_replaced() -> None:
    claims = privacy_claims(Laplace(100.0, 0.2), rounds=10, utterance=24.0, client=100.0)
    found = {(c.unit, c.composition): c.epsilon for c in claims}
    assert found[("one client", "basic")] == pytest.approx(2.0)
    assert found[("one utterance", "basic")] == pytest.approx(4.0)


def test_without_a_cap_a_client_is_not_protected_at_all() -> None:
    claims = privacy_claims(Gaussian(1.0, 2.0), rounds=3, utterance=20.0)
    assert claims[-1].epsilon == math.inf
    assert "no cap" in claims[-1].unit


def test_a_budget_too_small_for_a_single_release_is_refused_before_work_starts() -> None:
    Ledger(Budget(0.1)).check_affordable(TENTH)
    with pytest.raises(ValueError, match=r"one release costs epsilon 0\.1, more than the budget of 0\.05"):
        Ledger(Budget(0.05)).check_affordable(TENTH)
