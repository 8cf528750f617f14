"""A budget that runs share, rounds that were released before, and the key."""

from __future__ import annotations

import json
import stat
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from antiphon.core import Stopped
from antiphon.privacy.noise_key import derived_key, make_key, read_key, simulated_key
from antiphon.privacy.update_accounting import GaussianCost, SampledCost, epsilon_of
from antiphon.privacy.update_ledger import RELEASES_FILE, SharedBudget, check_release

DELTA = 1e-5


def cost(rounds: int) -> GaussianCost:
    return GaussianCost(0.1 * rounds**0.5)


# --- The shared budget ----------------------------------------------------------------------------


def test_two_runs_pay_from_one_budget(tmp_path: Path) -> None:
    limit = epsilon_of((cost(7),), DELTA)
    budget = SharedBudget(str(tmp_path / "budget.json"), limit)
    for rounds in range(1, 5):
        budget.spend("first", rounds, cost(rounds), DELTA)
    for rounds in range(1, 4):
        budget.spend("second", rounds, cost(rounds), DELTA)
    for run, rounds in (("second", 4), ("first", 5), ("third", 1)):
        with pytest.raises(Stopped, match="allows no further round"):
            budget.spend(run, rounds, cost(rounds), DELTA)
    budget.spend("first", 4, cost(4), DELTA)  # a round that is repeated costs nothing


def test_what_was_refused_is_not_recorded(tmp_path: Path) -> None:
    budget = SharedBudget(str(tmp_path / "budget.json"), epsilon_of((cost(2),), DELTA))
    budget.spend("run", 2, cost(2), DELTA)
    before = (tmp_path / "budget.json").read_text()
    with pytest.raises(Stopped):
        budget.spend("run", 3, cost(3), DELTA)
    assert (tmp_path / "budget.json").read_text() == before


def test_runs_with_other_noise_share_a_budget(tmp_path: Path) -> None:
    sampled = SampledCost(0.1, 1.0, 20)
    total = epsilon_of((cost(4), sampled), DELTA)
    budget = SharedBudget(str(tmp_path / "budget.json"), total * 0.999)
    budget.spend("banded", 4, cost(4), DELTA)
    with pytest.raises(Stopped):
        budget.spend("sampled", 20, sampled, DELTA)


def test_a_budget_with_other_numbers_is_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "budget.json")
    SharedBudget(path, 4.0).spend("run", 1, cost(1), DELTA)
    with pytest.raises(ValueError, match="name the same one"):
        SharedBudget(path, 8.0).spend("run", 2, cost(2), DELTA)
    with pytest.raises(ValueError, match="name the same one"):
        SharedBudget(path, 4.0).spend("run", 2, cost(2), 1e-9)


def test_a_damaged_ledger_is_refused_and_never_begun_anew(tmp_path: Path) -> None:
    (tmp_path / "budget.json").write_text("{")
    with pytest.raises(ValueError, match=r"budget\.json"):
        SharedBudget(str(tmp_path / "budget.json"), 4.0).spend("run", 1, cost(1), DELTA)


@pytest.mark.parametrize(
    "cost", [{}, {"cost": []}, {"cost": "free"}, {"cost": "gaussian"}, {"cost": "gaussian", "shift": "1"}]
)
def test_an_edited_cost_is_refused_by_the_name_of_the_file(tmp_path: Path, cost: dict[str, Any]) -> None:
    budget = SharedBudget(str(tmp_path / "budget.json"), 4.0)
    budget.spend("run", 1, GaussianCost(0.1), DELTA)
    body = json.loads((tmp_path / "budget.json").read_text())
    del body["sha256"]
    body["runs"]["run"]["cost"] = cost
    (tmp_path / "budget.json").write_text(json.dumps(body))
    with pytest.raises(ValueError, match=r"budget\.json is damaged \(runs\.run: .*Restore it"):
        budget.spend("other", 1, GaussianCost(0.1), DELTA)


def test_a_changed_digit_of_what_was_spent_or_released_is_found(tmp_path: Path) -> None:
    budget = SharedBudget(str(tmp_path / "budget.json"), 4.0)
    budget.spend("run", 1, GaussianCost(0.125), DELTA)
    check_release(tmp_path, bytes(32), 3, {"w": np.ones(2)})
    for name, old, new in (("budget.json", "0.125", "0.025"), (RELEASES_FILE, '"3"', '"7"')):
        path = tmp_path / name
        path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(ValueError, match=r"budget\.json is damaged, or was edited"):
        budget.spend("run", 1, GaussianCost(0.125), DELTA)
    with pytest.raises(ValueError, match=r"releases\.json is damaged, or was edited"):
        check_release(tmp_path, bytes(32), 3, {"w": np.zeros(2)})


def test_a_link_that_leads_nowhere_is_no_new_ledger(tmp_path: Path) -> None:
    for name in ("budget.json", RELEASES_FILE):
        (tmp_path / name).symlink_to(tmp_path / name)
    with pytest.raises(ValueError, match=r"cannot read budget\.json"):
        SharedBudget(str(tmp_path / "budget.json"), 4.0).spend("run", 1, GaussianCost(0.1), DELTA)
    with pytest.raises(ValueError, match=r"cannot read releases\.json"):
        check_release(tmp_path, bytes(32), 0, {})


def _spend(path: str, run: str) -> int:
    budget, done = SharedBudget(path, epsilon_of((cost(12),), DELTA)), 0
    for rounds in range(1, 20):
        try:
            budget.spend(run, rounds, cost(rounds), DELTA)
        except Stopped:
            return done
        done = rounds
    return done


def test_processes_that_spend_at_once_never_exceed_the_budget(tmp_path: Path) -> None:
    path = str(tmp_path / "budget.json")
    with ProcessPoolExecutor(2) as pool:
        rounds = list(pool.map(_spend, [path] * 3, ["a", "b", "c"]))
    assert sum(rounds) == 12
    runs = json.loads(Path(path).read_text())["runs"]
    assert sum(entry["rounds"] for entry in runs.values()) == 12


# --- Rounds that were released ---------------------------------------------------------------------


def test_a_round_can_be_released_again_with_the_same_answers_only(tmp_path: Path) -> None:
    key, total = bytes(32), {"w": np.arange(4.0), "b": np.ones(2)}
    check_release(tmp_path, key, 3, total)
    check_release(tmp_path, key, 3, total)
    check_release(tmp_path, key, 4, {})
    expected = r"releases\.json says that round 4 was released before, with other answers"
    for other in ({**total, "w": np.array([0.0, 1.0, 2.0, 3.000001])}, {"w": total["w"]}, {}):
        with pytest.raises(ValueError, match=expected):
            check_release(tmp_path, key, 3, other)


def test_the_list_of_releases_says_nothing_without_the_key(tmp_path: Path) -> None:
    digests = []
    for number, key in enumerate((bytes(32), bytes([1]) * 32)):
        folder = tmp_path / str(number)
        check_release(folder, key, 0, {"w": np.ones(3)})
        digests.append(json.loads((folder / RELEASES_FILE).read_text())["rounds"]["0"])
    assert digests[0] != digests[1]


# --- The key --------------------------------------------------------------------------------------


def test_a_key_is_made_once_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "noise.key"
    make_key(path)
    key = read_key(path)
    make_key(path)
    assert read_key(path) == key
    assert len(key) == 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_key_that_others_can_read_or_that_is_damaged_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "noise.key"
    with pytest.raises(ValueError, match="cannot be read"):
        read_key(path)
    make_key(path)
    path.chmod(0o640)
    with pytest.raises(ValueError, match="chmod 600"):
        read_key(path)
    path.chmod(0o600)
    path.write_bytes(b"short")
    with pytest.raises(ValueError, match="5 bytes, not 32"):
        read_key(path)


def test_keys_differ_by_seed_and_by_purpose() -> None:
    keys = {simulated_key(0), simulated_key(1), derived_key(simulated_key(0), "noise")}
    assert len(keys | {derived_key(simulated_key(0), "cohorts")}) == 4
