"""The distributed pool on clients whose answers a person can add up, in two to four real processes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from twins import Twins, side_by_side

from antiphon.core import Failure, Report, Stopped, Task, Tensors, Update
from antiphon.pools.distributed import share_out
from antiphon.pools.local import LocalPool
from antiphon.pools.torch_group import TorchGroup
from antiphon.server.weighting import NEGLIGIBLE, ByExamples, Uniform

TASK = Task("count")


class Counts:
    """Client "c3" sends 3 and tells of three utterances; "x…" fail; "e…" send no tensors; "z…" break all."""

    def run(self, task: Task, clients: Sequence[str]) -> Iterator[Update]:
        for client in clients:
            if client.startswith("x"):
                yield Update.nothing(Failure(client, "no"))
            elif client.startswith("z"):
                raise ValueError("no client of that name")
            else:
                yield Update(self.tensors(client), reports=(Report(client, stats(client)),))

    def tensors(self, client: str) -> Tensors:
        if client.startswith("e"):
            return {}
        number = float(client[1:])
        return {
            "w": torch.full((2, 3), number),
            "exact": torch.tensor([number, -0.0], dtype=torch.float64),
            "b": torch.tensor(number / 7),
        }


def stats(client: str) -> dict[str, float]:
    return {"num_utterances": float(client[1:]), "third": 1 / 3}


def assert_equal(left: Update, right: Update) -> None:
    assert replace(left, mean={}) == replace(right, mean={})
    assert list(left.mean) == list(right.mean)
    for name, tensor in left.mean.items():
        assert tensor.dtype == right.mean[name].dtype
        assert torch.equal(tensor, right.mean[name]), name


COHORTS = {
    "even": ["c1", "c2", "c3", "c4"],
    "uneven": ["c5", "c1", "c2", "c9", "c3"],
    "fewer than processes": ["c4"],
    "one fails": ["c1", "x2", "c3"],
    "a process's share fails": ["c1", "x2"],
    "all fail": ["x1", "x2", "x3"],
    "without tensors": ["e1", "e2", "e3"],
    "without tensors, one": ["e2"],
    "nobody": [],
}
every_cohort = pytest.mark.parametrize("cohort", COHORTS.values(), ids=COHORTS.keys())
every_size = pytest.mark.parametrize("size", [2, 3, 4])


@every_cohort
@every_size
def test_a_mean_over_processes_is_the_mean_of_one(cohort: list[str], size: int) -> None:
    alone = LocalPool(Counts()).reduce(TASK, cohort, ByExamples())
    together = Twins(Counts(), size).reduce(TASK, cohort, ByExamples())
    assert replace(together, mean={}) == replace(alone, mean={})
    assert list(together.mean) == list(alone.mean)
    for name, tensor in together.mean.items():
        torch.testing.assert_close(tensor, alone.mean[name], rtol=1e-6, atol=0)


@every_cohort
def test_folded_in_cohort_order_it_is_the_mean_of_one_to_the_bit(cohort: list[str]) -> None:
    alone = LocalPool(Counts()).reduce(TASK, cohort, ByExamples())
    assert_equal(Twins(Counts(), 3, ordered=True).reduce(TASK, cohort, ByExamples()), alone)


@every_cohort
@pytest.mark.parametrize("ordered", [False, True])
def test_collected_updates_are_combined_by_weights_found_later(cohort: list[str], ordered: bool) -> None:
    alone, together = (
        pool.collect(TASK, cohort) for pool in (LocalPool(Counts()), Twins(Counts(), 2, ordered))
    )
    assert together.reports == alone.reports
    assert together.failures == alone.failures
    for weights in ([-1.0 - k for k in range(len(alone.reports))], [NEGLIGIBLE] * len(alone.reports)):
        found, expected = together.combine(weights), alone.combine(weights)
        assert replace(found, mean={}) == replace(expected, mean={})
        for name, tensor in found.mean.items() if len(set(weights)) > 1 else ():
            torch.testing.assert_close(tensor, expected.mean[name], rtol=1e-6, atol=0)


def test_clients_of_negligible_weight_still_average() -> None:
    update = Twins(Counts()).reduce(TASK, ["c1", "c2", "c3", "c4"], lambda report: NEGLIGIBLE)
    assert update.mean["b"].item() == pytest.approx(2.5 / 7)


@pytest.mark.parametrize("ordered", [False, True])
def test_weights_of_any_size_neither_overflow_nor_vanish(ordered: bool) -> None:
    pool = Twins(Counts(), ordered=ordered)
    update = pool.reduce(TASK, ["c1", "c2", "c3"], lambda report: -1e4 + report.stats["num_utterances"])
    e = [math.exp(k - 3) for k in (1, 2, 3)]
    expected = sum(k * weight for k, weight in enumerate(e, 1)) / sum(e)
    assert update.mean["exact"][0].item() == pytest.approx(expected, rel=1e-12)
    assert update.log_weight == pytest.approx(-1e4 + 3 + math.log(sum(e)))


def test_a_weight_that_is_no_number_leaves_its_client_out() -> None:
    update = Twins(Counts()).reduce(
        TASK, ["c1", "c2"], lambda report: math.nan if report.client == "c2" else 0.0
    )
    assert update.mean["exact"].tolist() == [1.0, 0.0]
    assert [failure.client for failure in update.failures] == ["c2"]


def test_weights_must_be_as_many_as_updates() -> None:
    with pytest.raises(ValueError, match="1 weights for 2 updates"):
        side_by_side(lambda group: group.pool(Counts(), len).collect(TASK, ["c1", "c2"]).combine([0.0]))


def test_an_error_in_one_process_ends_all_with_its_message() -> None:
    with pytest.raises(ValueError, match=r"in process 1 of 3: no client of that name"):
        Twins(Counts(), 3).reduce(TASK, ["c1", "z2", "c3"], Uniform())


def test_a_stop_in_one_process_stops_all() -> None:
    def weigh(report: Report) -> float:
        if report.client == "c2":
            raise Stopped("interrupted")
        return 0.0

    with pytest.raises(Stopped, match="interrupted"):
        Twins(Counts()).reduce(TASK, ["c1", "c2", "c3"], weigh)


def test_updates_with_other_tensors_in_another_process_are_refused() -> None:
    with pytest.raises(ValueError, match=r"hold different tensors: \['b', 'exact', 'w'\]"):
        Twins(Counts()).reduce(TASK, ["c1", "e2"], Uniform())


def test_processes_that_share_out_differently_are_refused() -> None:
    def action(group: TorchGroup) -> Update:
        pool = group.pool(Counts(), lambda client: float(client[1:]) * (1 - 2 * group.rank) + 9)
        return pool.reduce(TASK, ["c1", "c2", "c3"], Uniform())

    with pytest.raises(ValueError, match="do all of them see the same corpus"):
        side_by_side(action)


# --- Shares ---------------------------------------------------------------------------------------


@given(st.lists(st.floats(0.01, 1e4), max_size=40), st.integers(1, 9))
def test_everyone_is_in_one_share_and_no_share_is_far_above_the_least_possible(
    seconds: list[float], num: int
) -> None:
    shares = share_out(seconds, num)
    assert sorted(position for share in shares for position in share) == list(range(len(seconds)))
    assert all(share == sorted(share) for share in shares)
    longest = max((sum(seconds[p] for p in share) for share in shares), default=0.0)
    at_least = max([math.fsum(seconds) / num, *seconds], default=0.0)
    assert longest <= at_least * (2 - 1 / num) + 1e-6  # Graham 1966, against a bound that may not be reached


def test_shares_are_balanced_by_the_longest_first() -> None:
    assert share_out([1.0] * 5, 2) == [[0, 2, 4], [1, 3]]
    assert share_out([], 3) == [[], [], []]


@every_cohort
@every_size
def test_distances_over_processes_are_those_of_one_to_the_bit(cohort: list[str], size: int) -> None:
    counts = Counts()
    point = counts.tensors("e1" if cohort[:1] == ["e1"] or cohort == ["e2"] else "c2")
    alone = LocalPool(counts).collect(TASK, cohort)
    together = Twins(counts, size).collect(TASK, cohort)
    assert together.distances(point) == alone.distances(point)
    assert len(alone.distances(point)) == len(alone.reports)


# --- Groups that processes take when they are free ------------------------------------------------


class Slow(Counts):
    """Clients that take time in one of the processes: it takes fewer of them."""

    def __init__(self, rank: int, seconds: float = 0.05) -> None:
        self.rank, self.seconds = rank, seconds

    def run(self, task: Task, clients: Sequence[str]) -> Iterator[Update]:
        for update in super().run(task, clients):
            if dist.get_rank() == self.rank:
                time.sleep(self.seconds)
            yield update


MANY = [f"c{number}" for number in range(1, 31)]


@every_cohort
@every_size
def test_groups_add_up_to_the_mean_of_one_process(cohort: list[str], size: int) -> None:
    alone = LocalPool(Counts()).reduce(TASK, cohort, ByExamples())
    together = Twins(Counts(), size, dispatch=True).reduce(TASK, cohort, ByExamples())
    assert replace(together, mean={}, log_weight=0.0) == replace(alone, mean={}, log_weight=0.0)
    assert together.log_weight == pytest.approx(alone.log_weight, rel=1e-12)
    assert list(together.mean) == list(alone.mean)
    for name, tensor in together.mean.items():
        torch.testing.assert_close(tensor, alone.mean[name], rtol=1e-6, atol=0)


@pytest.mark.parametrize("seconds", [len, lambda client: float(client[1:])], ids=["equal", "unequal"])
def test_who_was_free_changes_no_bit(seconds: Callable[[str], float]) -> None:
    first, second = (
        Twins(Slow(rank), 2, dispatch=True, seconds=seconds).reduce(TASK, MANY, ByExamples())
        for rank in (0, 1)
    )
    assert_equal(first, second)


def test_groups_in_cohort_order_are_one_process_to_the_bit() -> None:
    alone = LocalPool(Counts()).reduce(TASK, MANY, ByExamples())
    assert_equal(Twins(Slow(1), 2, ordered=True, dispatch=True).reduce(TASK, MANY, ByExamples()), alone)


def test_collected_updates_of_free_processes_are_combined_in_cohort_order() -> None:
    alone = LocalPool(Counts()).collect(TASK, MANY)
    together = Twins(Slow(1), 2, dispatch=True).collect(TASK, MANY)
    assert together.reports == alone.reports
    weights = [-0.1 * k for k in range(len(MANY))]
    assert_equal(together.combine(weights), alone.combine(weights))


def test_a_slow_process_takes_fewer_groups() -> None:
    def work(group: TorchGroup) -> list[int]:
        taken = 0
        for _ in group.take(20):
            taken += 1
            time.sleep(0.15 if group.rank == 1 else 0.005)
        return group.all_gather(lambda: taken)

    for _ in range(2):  # numbers begin again
        taken = side_by_side(work, 2, dispatch=True)
        assert sum(taken) == 20
        assert taken[0] > taken[1]


def test_an_error_of_a_free_process_ends_all() -> None:
    with pytest.raises(ValueError, match="no client of that name"):
        Twins(Counts(), 2, dispatch=True).reduce(TASK, [*MANY, "z1"], ByExamples())
