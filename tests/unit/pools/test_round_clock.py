"""Rounds with a simulated clock: who is late, how long a round takes, and that nobody else notices."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from timed_runs import Constant, TimedRun, by_speed
from toy_runs import Toy
from world import assert_same

from antiphon.algorithms.fedavg import FedAvg, hierarchical
from antiphon.core import Task
from antiphon.engine import Engine, Rounds
from antiphon.pools.local import LocalPool
from antiphon.pools.round_clock import RoundClock
from antiphon.server.optimizers import Adam

SPEEDS = {"a": 4.0, "b": 1.0, "c": 9.0, "d": 2.0, "e": 3.0}
TASK = Task("train")


def clock(needed: int = 5, deadline: float = 0.0, began: float = 100.0) -> RoundClock:
    return RoundClock(by_speed(SPEEDS), began, needed, deadline)


# --- One round ------------------------------------------------------------------------------------


def test_a_round_takes_as_long_as_its_slowest_answer() -> None:
    one = clock()
    assert one.ask(TASK, "abcde", "abcde") == {}
    assert one.entry() == {"simulated_seconds": 9.0, "simulated_time": 109.0}


def test_the_first_to_answer_are_taken_and_the_others_are_named() -> None:
    one = clock(needed=3)
    late = one.ask(TASK, "abcde", "abcde")
    assert late == {
        "a": "late: 4.0 s, 3 others had answered after 3.0 s",
        "c": "late: 9.0 s, 3 others had answered after 3.0 s",
    }
    assert one.total == 3.0
    assert one.seconds == {"b": 1.0, "d": 2.0, "e": 3.0}


def test_of_equally_fast_clients_those_drawn_first_are_taken() -> None:
    one = RoundClock(lambda task, client, sent: sent + 1.0, 0.0, 2)
    assert set(one.ask(TASK, "dcba", "dcba")) == {"b", "a"}


def test_a_round_with_a_deadline_ends_there_if_answers_are_missing() -> None:
    one = clock(deadline=3.5)
    assert one.ask(TASK, "abcde", "abcde") == {
        "a": "late: 4.0 s, deadline 3.5 s",
        "c": "late: 9.0 s, deadline 3.5 s",
    }
    assert one.total == 3.5
    assert clock(deadline=20.0).total == 20.0  # nobody was asked
    whole = clock(deadline=20.0)
    whole.ask(TASK, "abcde", "abcde")
    assert whole.total == 9.0


def test_a_deadline_leaves_out_clients_among_the_first_to_answer() -> None:
    one = clock(needed=4, deadline=3.5)
    late = one.ask(TASK, "abcde", "abcde")
    assert late["a"] == "late: 4.0 s, deadline 3.5 s"
    assert late["c"].startswith("late: 9.0 s, 4 others had answered")
    assert one.total == 3.5


def test_a_client_that_is_away_is_not_among_the_first_to_answer() -> None:
    assert set(clock(needed=3).ask(TASK, "acde", "acde")) == {"c"}


def test_tasks_of_one_client_add_up_and_it_stays_late() -> None:
    one = clock(needed=3, deadline=5.5)
    one.ask(TASK, "abcde", "abcde")
    assert set(one.ask(TASK, "abcde", "abcde")) == {"a", "c", "e"}  # e would need 6 seconds
    assert one.seconds["d"] == 4.0
    assert one.total == 5.5


def test_one_task_for_each_client_is_one_task_for_all() -> None:
    one, all_at_once = clock(needed=3), clock(needed=3)
    late = {}
    for client in SPEEDS:
        late |= one.ask(TASK, [client], list(SPEEDS))
    assert late == all_at_once.ask(TASK, list(SPEEDS), list(SPEEDS))
    assert one.entry() == all_at_once.entry()


def test_tasks_from_earlier_rounds_have_their_own_times() -> None:
    one = clock(needed=1, deadline=1.0)
    task = replace(TASK, times={"a": (20.0, 103.0), "b": (90.0, 101.0)})
    assert one.ask(task, "ab", "ab") == {}
    assert one.seconds == {"a": 83.0, "b": 11.0}
    assert one.entry() == {"simulated_seconds": 3.0, "simulated_time": 103.0}


# --- Runs -----------------------------------------------------------------------------------------

LATE = {
    "a": "late: 4.0 s, 3 others had answered after 3.0 s",
    "c": "late: 9.0 s, 3 others had answered after 3.0 s",
}


def test_late_clients_do_not_train_and_change_no_bit_of_the_others(tmp_path: Path) -> None:
    worker = Constant()
    rounds = Rounds(total=2, cohort=3, over_selection=5 / 3)
    run = TimedRun(hierarchical(server=Adam()), tmp_path / "over", rounds, SPEEDS, worker)
    run.run()
    assert sorted(worker.asked) == sorted("bde" * 2)
    first, second = run.entries
    assert first["failures"] == LATE
    assert set(first["clients"]) == set("bde")
    assert len(first["cohort"]) == 5
    assert (first["simulated_time"], second["simulated_time"]) == (3.0, 6.0)

    over = replace(run, folder=tmp_path / "toy", worker=Toy()).run()
    drawn = {0: first["cohort"], 1: second["cohort"]}
    options = {"draw": lambda clients, size, seed, round: [c for c in drawn[round] if c in "bde"]}
    others = replace(run, folder=tmp_path / "others", rounds=Rounds(total=2), worker=Toy(), options=options)
    assert_same(over, others.run())


def test_a_deadline_names_who_missed_it(tmp_path: Path) -> None:
    run = TimedRun(FedAvg(), tmp_path, Rounds(total=1, cohort=5, deadline=3.5), SPEEDS)
    run.run()
    (entry,) = run.entries
    assert entry["failures"] == {"a": "late: 4.0 s, deadline 3.5 s", "c": "late: 9.0 s, deadline 3.5 s"}
    assert entry["simulated_time"] == 3.5
    assert entry["bytes_down"] > entry["bytes_up"] > 0  # all five got the model


def test_simulated_time_goes_on_when_a_run_is_resumed(tmp_path: Path) -> None:
    rounds = Rounds(total=5, cohort=2)
    whole = TimedRun(FedAvg(), tmp_path / "whole", rounds, SPEEDS, Toy())
    last = whole.run()
    for stop in range(1, 5):
        stopped = replace(whole, folder=tmp_path / str(stop))
        stopped.run(total=stop)
        assert_same(stopped.run(resume=True), last)
        assert stopped.files(5) == whole.files(5)
    times = [entry["simulated_time"] for entry in whole.entries]
    assert times == sorted(times)
    assert times[-1] == sum(entry["simulated_seconds"] for entry in whole.entries)


def test_without_a_clock_the_journal_says_nothing_of_time(tmp_path: Path) -> None:
    engine = Engine(FedAvg(), LocalPool(Toy()), list("abc"), Rounds(total=1, valid_every=0), tmp_path, 1)
    engine.run({"w": torch.zeros(2)})
    assert "simulated" not in (tmp_path / "journal.jsonl").read_text()


@pytest.mark.parametrize("settings", [{"deadline": -1.0}, {"over_selection": 0.9}])
def test_settings_without_a_meaning_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="deadline must be at least 0, and over_selection at least 1"):
        Rounds(**settings)  # type: ignore[arg-type]


def test_over_selection_needs_clients_besides_the_cohort() -> None:
    with pytest.raises(ValueError, match=r"over_selection has no effect: cohort 5 takes all 5 clients"):
        Rounds(cohort=5, over_selection=1.3).check(5)
    Rounds(cohort=5, over_selection=1.3).check(6)
    Rounds(cohort=5).check(5)


def test_over_selection_draws_more_clients() -> None:
    assert Rounds(cohort=10, over_selection=1.3).num_drawn == 13
    assert Rounds(cohort=10, over_selection=1.31).num_drawn == 14
    assert Rounds(cohort=10).num_drawn == 10


# --- Energy ---------------------------------------------------------------------------------------


class Metered:
    """Arrivals by speed; a watt for each second, and a joule for a client that is late."""

    def __call__(self, task: Task, client: str, sent: float) -> float:
        return sent + SPEEDS[client]

    def joules(self, task: Task, client: str, is_late: bool) -> float:
        return 1.0 if is_late else SPEEDS[client]


def test_the_energy_of_a_round_is_that_of_all_who_got_its_tasks() -> None:
    one = RoundClock(Metered(), 0.0, needed=3)
    one.ask(TASK, "abcde", "abcde")
    assert one.entry()["simulated_joules"] == 1.0 + 2.0 + 3.0 + 2 * 1.0  # b, d, e; a and c are late
    one.ask(TASK, "b", "abcde")
    assert one.entry()["simulated_joules"] == 9.0


def test_energy_of_a_task_from_an_earlier_round_counts_when_it_is_answered() -> None:
    one = RoundClock(Metered(), 7.0, needed=3)
    one.ask(replace(TASK, times={"c": (0.0, 9.0)}), "c", "abcde")
    assert one.entry() == {"simulated_seconds": 2.0, "simulated_time": 9.0, "simulated_joules": 9.0}
