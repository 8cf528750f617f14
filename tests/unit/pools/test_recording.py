from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from antiphon.core import Failure, Report, Stopped, Task, Update, Weigh, size_in_bytes
from antiphon.pools.local import LocalPool
from antiphon.pools.recording import RecordingPool
from antiphon.server.weighting import ByExamples, Uniform

TASK = Task("count", {"w": torch.zeros(5), "b": torch.zeros(2, dtype=torch.float64)})
BYTES = 5 * 4 + 2 * 8 + len('{"round": 0, "call": 0}')  # of the task as it is sent: tensors and configuration


class Counts:
    """Client "c3" has three utterances; "x…" fail."""

    def run(self, task: Task, clients: Sequence[str]) -> Iterator[Update]:
        for client in clients:
            if client.startswith("x"):
                yield Update.nothing(Failure(client, "no"))
                continue
            number = float(client[-1])
            stats = {"loss": number, "num_utterances": number, "words": 1.0}
            yield Update({"w": torch.full((5,), number)}, reports=(Report(client, stats),))


def watch(
    cohort: list[str], min_clients: int = 1, interrupted: threading.Event | None = None
) -> RecordingPool:
    return RecordingPool(
        LocalPool(Counts()), cohort, min_clients, lambda client: None, interrupted or threading.Event()
    )


def test_weights_bytes_and_failures_of_the_cohort_are_noted() -> None:
    cohort = ["c1", "x1", "c3"]
    pool = watch(cohort)
    update = pool.reduce(TASK, cohort, ByExamples())
    assert update.mean["w"].tolist() == pytest.approx([2.5] * 5)
    assert pool.entry() == {
        "clients": {
            "c1": {"loss": 1.0, "num_utterances": 1.0, "weight": pytest.approx(0.25)},
            "c3": {"loss": 3.0, "num_utterances": 3.0, "weight": pytest.approx(0.75)},
        },
        "failures": {"x1": "no"},
        "loss": pytest.approx(2.5),
        "bytes_down": 3 * BYTES,
        "bytes_up": 2 * 5 * 4,
    }


def test_work_on_the_server_s_own_clients_is_not_the_cohort_s() -> None:
    pool = watch(["c1", "c2"])
    pool.reduce(TASK, ["server/c9"], ByExamples())
    assert pool.clients == {}
    assert pool.bytes_down == pool.bytes_up == 0


def test_collected_updates_are_noted_with_the_weights_used_last() -> None:
    pool = watch(["c1", "x2", "c3"])
    held = pool.collect(TASK, ["c1", "x2", "c3"])
    held.combine([0.0, 0.0])
    update = held.combine([0.0, math.log(3)])
    assert update.mean["w"].tolist() == pytest.approx([2.5] * 5)
    assert [stats["weight"] for stats in pool.clients.values()] == pytest.approx([0.25, 0.75])
    assert list(held.failures) == [Failure("x2", "no")]


def test_huge_log_weights_are_noted_without_overflow() -> None:
    pool = watch(["c1", "c2"])
    pool.reduce(TASK, ["c1", "c2"], lambda report: 5000.0 * report.stats["loss"])
    assert [stats["weight"] for stats in pool.clients.values()] == [0.0, 1.0]


def test_fewer_answers_than_needed_stop_the_run_and_say_why() -> None:
    cohort = ["c1", "x1", "x2"]
    with pytest.raises(Stopped, match=r"1 of 3 clients answered, 2 needed \(x1: no; x2: no\)"):
        watch(cohort, min_clients=2).reduce(TASK, cohort, ByExamples())


def test_an_interrupt_stops_after_the_client_in_hand() -> None:
    asked, trained = threading.Event(), []

    def replied(client: str) -> None:
        trained.append(client)
        asked.set()

    pool = RecordingPool(LocalPool(Counts()), ["c1", "c2"], 1, replied, asked)
    with pytest.raises(Stopped, match="interrupted"):
        pool.reduce(TASK, ["c1", "c2"], ByExamples())
    assert trained == ["c1"]


def test_an_answer_without_a_loss_still_makes_an_entry() -> None:
    class Silent:
        def run(self, task: Task, clients: Sequence[str]) -> Iterator[Update]:
            for client in clients:
                yield Update({}, reports=(Report(client, {"words": 1.0}),))

    pool = RecordingPool(LocalPool(Silent()), ["c1"], 1, lambda client: None, threading.Event())
    pool.reduce(TASK, ["c1"], lambda report: 0.0)
    assert pool.entry()["loss"] == 0


def test_bytes_are_those_of_the_dtype() -> None:
    assert size_in_bytes({"a": torch.zeros(3, 2), "b": torch.zeros(4, dtype=torch.float16)}) == 24 + 8


def test_the_time_of_each_kind_of_task_is_known() -> None:
    pool = watch(["c1", "c2"])
    pool.reduce(TASK, ["c1", "c2"], ByExamples())
    assert pool.seconds.keys() == {"count"}
    once = pool.seconds["count"]
    pool.collect(TASK, ["c1", "c2"])
    pool.reduce(Task("measure", TASK.tensors), ["valid/c3"], ByExamples())
    assert pool.seconds.keys() == {"count", "measure"}
    assert pool.seconds["count"] > once > 0
    assert "seconds" not in pool.entry()


def test_distances_of_collected_updates_are_the_pool_s() -> None:
    pool = watch(["c1", "c3"])
    held = pool.collect(TASK, ["c1", "c3"])
    assert list(held.distances({"w": torch.ones(5)})) == pytest.approx([0.0, 2 * math.sqrt(5)])


# --- Grouped in any way ---------------------------------------------------------------------------


def recorded(cohort: list[str], **more: Any) -> RecordingPool:
    return RecordingPool(LocalPool(Counts()), cohort, 1, lambda client: None, threading.Event(), **more)


def bytes_of(task: Task, call: int, round: int = 0) -> int:
    """The size of a task as the pool sends it: with its round and its number in the round."""
    return replace(task, config={**task.config, "round": round, "call": call}).num_bytes


def test_one_task_for_each_client_makes_the_same_entry_as_one_for_all() -> None:
    cohort = ["c1", "x1", "c3"]
    together, apart = watch(cohort), watch(cohort)
    together.reduce(TASK, cohort, ByExamples())
    for client in cohort:
        apart.reduce(TASK, [client], ByExamples())
    assert apart.entry() == together.entry()


def test_tasks_of_one_client_each_are_told_apart_by_their_number_in_the_round() -> None:
    sent = []

    class Noting(Counts):
        def run(self, task: Task, clients: Sequence[str]) -> Iterator[Update]:
            sent.append((task.moment, list(clients)))
            return super().run(task, clients)

    pool = RecordingPool(
        LocalPool(Noting()), ["c1", "c2"], 1, lambda client: None, threading.Event(), round=4
    )
    for client in ("c1", "c2"):
        pool.collect(TASK, [client])
    assert sent == [((4, 0), ["c1"]), ((4, 1), ["c2"])]


def test_a_client_that_is_asked_twice_with_one_task_is_refused() -> None:
    """One row could not tell its answers apart, and both would keep a state at the same moment."""
    with pytest.raises(ValueError, match="'b' was asked twice with one task"):
        recorded(["a", "b"]).reduce(Task("train"), ["a", "b", "b"], lambda report: 0.0)


def test_bytes_of_tasks_for_single_clients_are_added_up() -> None:
    pool, small = recorded(["c1", "c2"]), Task("count", {"w": torch.zeros(1)})
    pool.reduce(TASK, ["c1"], ByExamples())
    pool.reduce(small, ["c2"], ByExamples())
    assert pool.bytes_down == bytes_of(TASK, 0) + bytes_of(small, 1)
    assert pool.bytes_up == 2 * 5 * 4


def test_the_configuration_of_a_task_travels_too() -> None:
    pool, long = recorded(["c1"]), replace(TASK, config={"text": "x" * 1000})
    pool.reduce(long, ["c1"], ByExamples())
    assert pool.bytes_down == BYTES + len(', "text": ""') + 1000


def test_a_client_with_a_simulated_fault_was_asked_all_the_same() -> None:
    pool = recorded(["c1", "c2"], faults=lambda task, client: "away" if client == "c2" else "")
    pool.reduce(TASK, ["c1", "c2"], ByExamples())
    assert (pool.bytes_down, pool.bytes_up) == (2 * BYTES, 5 * 4)


def test_collected_updates_report_the_bytes_that_came() -> None:
    pool = recorded(["c1", "x1", "c3"])
    collected = pool.collect(TASK, ["c1", "x1", "c3"])
    assert pool.entry()["bytes_up"] == 2 * 5 * 4
    assert [report.bytes_up for report in collected.reports] == [20, 20]


def test_nothing_travels_to_clients_of_the_server() -> None:
    pool = recorded(["c1"])
    pool.collect(TASK, ["server/c1", "valid/c2"])
    assert (pool.bytes_down, pool.bytes_up) == (0, 0)


# --- Several kinds, several passes ----------------------------------------------------------------


def test_weights_are_shares_among_tasks_of_one_kind() -> None:
    pool = recorded(["c1", "c3", "c2"])
    pool.reduce(TASK, ["c1", "c3"], ByExamples())
    pool.reduce(replace(TASK, kind="other"), ["c2"], ByExamples())
    assert pool.weights() == {"c1": pytest.approx(0.25), "c3": pytest.approx(0.75), "c2": 1.0}


def test_weights_of_single_tasks_of_a_kind_are_shares_of_them_all() -> None:
    pool = recorded(["c1", "c3"])
    for client in ("c1", "c3"):
        pool.reduce(TASK, [client], ByExamples())
    assert pool.weights() == {"c1": pytest.approx(0.25), "c3": pytest.approx(0.75)}


def test_the_loss_of_a_round_with_several_kinds_of_tasks_is_a_mean() -> None:
    pool = recorded(["c1", "c3", "c2"])
    pool.reduce(TASK, ["c1", "c3"], ByExamples())
    pool.reduce(replace(TASK, kind="other"), ["c2"], ByExamples())
    assert pool.entry()["loss"] == pytest.approx((0.25 * 1 + 0.75 * 3 + 1.0 * 2) / 2)


def test_of_two_passes_the_weights_are_those_of_the_last() -> None:
    pool = recorded(["c1", "c3"])
    pool.reduce(TASK, ["c1", "c3"], ByExamples())
    pool.reduce(TASK, ["c1", "c3"], Uniform())
    assert pool.weights() == {"c1": pytest.approx(0.5), "c3": pytest.approx(0.5)}


def test_passes_are_counted_for_each_client() -> None:
    pool = recorded(["c1", "c2", "c3"])
    for client in ("c1", "c1", "c3"):  # of the second pass only one client
        pool.reduce(TASK, [client], ByExamples())
    assert pool.weights() == {"c1": 1.0, "c3": pytest.approx(0.75)}


def test_a_pass_that_adds_nothing_up_leaves_the_weights_of_the_one_before() -> None:
    pool = recorded(["c1", "c3"])
    pool.reduce(TASK, ["c1", "c3"], ByExamples())
    pool.collect(replace(TASK, kind="look"), ["c1", "c3"])  # nothing is combined
    assert pool.weights() == {"c1": pytest.approx(0.25), "c3": pytest.approx(0.75)}


def test_the_weight_of_a_client_of_the_server_takes_nothing_from_the_others() -> None:
    pool = recorded(["c1", "c3"])
    pool.reduce(TASK, ["c1", "c3"], ByExamples())
    pool.reduce(TASK, ["server/c9"], ByExamples())
    assert pool.weights() == {"c1": pytest.approx(0.25), "c3": pytest.approx(0.75)}


def test_a_client_with_several_tasks_is_one_client_with_a_number_of_tasks() -> None:
    pool = recorded(["c1", "c2"])
    pool.reduce(TASK, ["c1", "c2"], ByExamples())
    pool.reduce(replace(TASK, kind="other"), ["c2"], ByExamples())
    assert {client: stats.get("tasks") for client, stats in pool.clients.items()} == {"c1": None, "c2": 2}


def test_the_statistics_of_several_tasks_are_laid_over_each_other() -> None:
    class Kinds(Counts):
        def run(self, task: Task, clients: Sequence[str]) -> Iterator[Update]:
            stats = {"loss": 1.0, "norm": 2.0} if task.kind == "first" else {"loss": 3.0}
            yield from (Update({}, reports=(Report(client, stats),)) for client in clients)

    pool = RecordingPool(LocalPool(Kinds()), ["c1"], 1, lambda client: None, threading.Event())
    for kind in ("first", "second"):
        pool.collect(Task(kind), ["c1"])
    assert pool.clients["c1"] == {"loss": 3.0, "norm": 2.0, "tasks": 2}


def test_a_client_that_keeps_a_state_says_how_large_it_is() -> None:
    class Keeping(Counts):
        def run(self, task: Task, clients: Sequence[str]) -> Iterator[Update]:
            yield from (Update({}, reports=(Report(client, {}, state_bytes=8),)) for client in clients)

    pool = RecordingPool(LocalPool(Keeping()), ["c1"], 1, lambda client: None, threading.Event())
    pool.collect(TASK, ["c1"])
    assert pool.clients == {"c1": {"state_bytes": 8}}


# --- Enough clients -------------------------------------------------------------------------------


def test_clients_are_counted_once_however_often_they_answer() -> None:
    pool = watch(["c1", "x1"], min_clients=2)
    for _ in range(3):
        pool.reduce(TASK, ["c1"], ByExamples())
    with pytest.raises(Stopped, match=r"1 of 2 clients answered, 2 needed \(x1: no\)"):
        pool.reduce(TASK, ["x1"], ByExamples())


def test_a_client_that_answers_one_of_its_tasks_has_answered() -> None:
    pool = watch(["c1", "c2"], min_clients=2)
    pool.reduce(TASK, ["c1", "c2"], ByExamples())
    pool.faults = lambda task, client: "away"
    pool.reduce(TASK, ["c1"], ByExamples())
    pool.check_enough()
    assert pool.failures == {"c1": "away"}


def test_single_tasks_do_not_stop_a_run_before_the_whole_cohort_was_asked() -> None:
    pool = watch(["x1", "c1", "c2"], min_clients=2)
    for client in ("x1", "c1", "c2"):
        pool.reduce(TASK, [client], ByExamples())
    assert list(pool.clients) == ["c1", "c2"]


def test_too_few_of_those_that_were_asked_stop_the_run_in_the_end() -> None:
    pool = watch(["c1", "c2", "c3"], min_clients=2)
    pool.reduce(TASK, ["c1"], ByExamples())
    with pytest.raises(Stopped, match="1 of 1 clients answered, 2 needed"):
        pool.check_enough()


def test_a_round_without_any_task_has_enough_clients() -> None:
    watch(["c1"], min_clients=1).check_enough()


def test_clients_of_the_server_do_not_count_as_answers_of_the_cohort() -> None:
    pool = watch(["x1", "x2"], min_clients=1)
    pool.reduce(TASK, ["server/c1"], ByExamples())
    with pytest.raises(Stopped, match="0 of 2 clients answered, 1 needed"):
        pool.reduce(TASK, ["x1", "x2"], ByExamples())


def test_a_run_stops_where_no_client_of_the_server_answers() -> None:
    pool = watch(["c1"])
    with pytest.raises(Stopped, match=r"0 of 1 clients answered, 1 needed \(server/x: "):
        RecordingPool(LocalPool(Failing()), ["c1"], 1, pool.replied, pool.interrupted).reduce(
            TASK, ["server/x"], Uniform()
        )


class Failing:
    def run(self, task: Task, clients: Sequence[str]) -> Iterator[Update]:
        yield from (Update.nothing(Failure(client, "no")) for client in clients)


# --- Simulated faults -----------------------------------------------------------------------------


def away(task: Task, client: str) -> str:
    return "away"


@pytest.mark.parametrize("kind", ["train", "evaluate", "central", "a kind of a stranger"])
def test_clients_with_a_fault_are_asked_for_no_kind_of_work(kind: str) -> None:
    class Never:
        def run(self, task: Task, clients: Sequence[str]) -> Iterator[Update]:
            assert list(clients) == []
            return iter(())

    pool = RecordingPool(LocalPool(Never()), ["c1"], 0, lambda client: None, threading.Event(), faults=away)
    assert pool.reduce(Task(kind), ["c1"], Uniform()).failures == (Failure("c1", "away"),)


def test_collected_updates_name_the_clients_with_a_fault() -> None:
    pool = recorded(["c1", "c2"], faults=lambda task, client: "away" if client == "c1" else "")
    collected = pool.collect(TASK, ["c1", "c2"])
    assert [report.client for report in collected.reports] == ["c2"]
    assert list(collected.failures) == [Failure("c1", "away")]


@pytest.mark.parametrize("client", ["server/c1", "valid/c1"])
def test_clients_of_the_server_have_no_faults(client: str) -> None:
    pool = recorded(["c2"], faults=away)
    assert pool.reduce(TASK, [client], ByExamples()).failures == ()


def test_a_fault_is_drawn_with_the_round_of_the_task() -> None:
    moments = []

    def noting(task: Task, client: str) -> str:
        moments.append(task.moment)
        return ""

    pool = recorded(["c1"], round=7, faults=noting)
    for _ in range(2):
        pool.reduce(TASK, ["c1"], ByExamples())
    assert moments == [(7, 0), (7, 1)]


def test_a_client_that_says_nothing_at_all_is_a_failure() -> None:
    class Deaf:
        def reduce(self, task: Task, cohort: Sequence[str], weigh: Weigh) -> Update:
            return Update.nothing()

    pool = RecordingPool(Deaf(), ["c1"], 0, lambda client: None, threading.Event())  # type: ignore[arg-type]
    pool.reduce(TASK, ["c1"], Uniform())
    assert pool.failures == {"c1": "no answer"}


# --- Progress -------------------------------------------------------------------------------------


@pytest.mark.parametrize("collects", [False, True])
def test_a_progress_bar_is_told_of_each_client_once(collects: bool) -> None:
    told: list[str] = []
    cohort = ["c1", "x1", "c3"]
    pool = RecordingPool(LocalPool(Counts()), cohort, 1, told.append, threading.Event())
    for _ in range(2):
        if collects:
            pool.collect(TASK, cohort)
        else:
            pool.reduce(TASK, cohort, ByExamples())
    pool.reduce(replace(TASK, kind="other"), ["c3"], ByExamples())
    assert told == ["c1", "c3"]


def test_a_progress_bar_is_told_of_clients_that_are_asked_one_by_one() -> None:
    told: list[str] = []
    pool = RecordingPool(LocalPool(Counts()), ["c1", "c2"], 1, told.append, threading.Event())
    for client in ("c1", "c2", "c1"):
        pool.reduce(TASK, [client], ByExamples())
    assert told == ["c1", "c2"]


def test_an_interrupt_stops_after_updates_were_collected() -> None:
    asked = threading.Event()
    asked.set()
    with pytest.raises(Stopped, match="interrupted"):
        watch(["c1"], interrupted=asked).collect(TASK, ["c1"])
