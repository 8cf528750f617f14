from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence

import pytest
import torch

from antiphon.core import Failure, Report, Stopped, Task, Update, size_in_bytes
from antiphon.pools.local import LocalPool
from antiphon.pools.recording import RecordingPool
from antiphon.server.weighting import ByExamples

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
