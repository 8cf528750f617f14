from __future__ import annotations

import math
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
import torch

from antiphon.core import Failure, Report, Task, Update
from antiphon.pools.local import LocalPool
from antiphon.server.weighting import ByExamples

TASK = Task("count")


class Numbers:
    """Client "k" answers with k; "bad" fails."""

    def run(self, task: Task, clients: Sequence[str]) -> Iterator[Update]:
        for client in clients:
            if client == "bad":
                yield Update.nothing(Failure(client, "no"))
            else:
                report = Report(client, {"num_utterances": float(client)})
                yield Update({"w": torch.tensor([float(client)], dtype=torch.float64)}, reports=(report,))


def test_reduce_is_the_weighted_mean_in_cohort_order() -> None:
    update = LocalPool(Numbers()).reduce(TASK, ["1", "bad", "3"], ByExamples())
    assert update.mean["w"].item() == pytest.approx((1 * 1 + 3 * 3) / 4)
    assert update.log_weight == pytest.approx(math.log(4))
    assert [report.client for report in update.reports] == ["1", "3"]
    assert update.failures == (Failure("bad", "no"),)


def test_collect_and_combine_are_reduce_to_the_last_bit() -> None:
    pool, cohort = LocalPool(Numbers()), ["5", "1", "bad", "3", "7"]
    held = pool.collect(TASK, cohort)
    combined = held.combine([ByExamples()(report) for report in held.reports])
    reduced = pool.reduce(TASK, cohort, ByExamples())
    assert torch.equal(combined.mean["w"], reduced.mean["w"])
    assert combined.log_weight == reduced.log_weight
    assert combined.reports == reduced.reports
    assert held.failures == reduced.failures


def test_collected_updates_can_be_combined_again_with_other_weights() -> None:
    held = LocalPool(Numbers()).collect(TASK, ["2", "4"])
    first = held.combine([0.0, 0.0]).mean["w"]
    assert held.combine([0.0, math.log(3)]).mean["w"].item() == pytest.approx(3.5)
    assert first.item() == 3.0
    with pytest.raises(ValueError, match="1 weights for 2 updates"):
        held.combine([0.0])


def test_a_client_whose_weight_is_no_number_is_left_out_by_name() -> None:
    update = LocalPool(Numbers()).reduce(
        TASK, ["1", "2"], lambda report: math.nan if report.client == "1" else 0.0
    )
    assert update.mean["w"].item() == 2.0
    assert update.failures == (Failure("1", "its weight is not finite (log-weight nan)"),)


def test_nobody_answering_is_nothing() -> None:
    assert LocalPool(Numbers()).reduce(TASK, ["bad"], ByExamples()).is_empty
    assert LocalPool(Numbers()).reduce(TASK, [], ByExamples()).is_empty


def test_reduce_holds_few_updates_however_many_clients_there_are() -> None:
    living: set[int] = set()
    most = 0

    class Watched(Numbers):
        def run(self, task: Task, clients: Sequence[str]) -> Iterator[Update]:
            nonlocal most
            for update in super().run(task, clients):
                key = id(update.mean["w"])
                living.add(key)
                weakref.finalize(update.mean["w"], living.discard, key)
                most = max(most, len(living))
                yield update

    LocalPool(Watched()).reduce(TASK, [str(n) for n in range(1, 100)], ByExamples())
    assert most <= 3


def test_distances_are_over_all_tensors_of_each_update_that_came() -> None:
    class Pairs(Numbers):
        def run(self, task: Task, clients: Sequence[str]) -> Iterator[Update]:
            for update in super().run(task, clients):
                yield replace(update, mean={**update.mean, "b": 2 * update.mean["w"]} if update.mean else {})

    held = LocalPool(Pairs()).collect(TASK, ["1", "bad", "4"])
    point = {"w": torch.tensor([1.0]).double(), "b": torch.tensor([-2.0]).double()}
    assert held.distances(point) == pytest.approx([4.0, math.sqrt(9 + 100)])
    with pytest.raises(ValueError, match=r"hold different tensors: \['b'\]"):
        held.distances({"w": point["w"]})
