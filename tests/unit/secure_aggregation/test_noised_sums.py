"""Sums of updates with noise of their clients: exact, repeatable, never with less noise than claimed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from antiphon.core import Report, Task, Tensors, Update
from antiphon.pools.local import LocalPool
from antiphon.privacy.distributed_noise import scale_of_share
from antiphon.privacy.samplers import Randomness, Secure, Seeded, discrete_gaussian
from antiphon.secure_aggregation.member import STEPS, Member, Message
from antiphon.secure_aggregation.record_files import RecordFiles
from antiphon.secure_aggregation.rules import SecureAggregation
from antiphon.secure_aggregation.secure_pool import SecurePool, in_process
from antiphon.server.weighting import Uniform
from antiphon.tasks.client_work import client_work
from antiphon.tasks.noised_update import NoisedByClient
from antiphon.tasks.update_clipping import WholeUpdate
from antiphon.tasks.views import through

SIZE = 300
CLIENTS = [f"c{number}" for number in range(5)]
NOISE = NoisedByClient(WholeUpdate(0.5), 2**12, 2.0, colluding=1)


@client_work("test.noised", answers="parameters")
def _noised(task: Task, client: Any) -> Update:
    raise AssertionError("the worker of the test answers")


@dataclass
class Vectors:
    """Clients whose updates follow from their names, all longer than the bound."""

    def update(self, client: str) -> torch.Tensor:
        return torch.randn(SIZE, generator=torch.Generator().manual_seed(CLIENTS.index(client)))

    def run(self, task: Task, clients: Sequence[str]) -> Iterator[Update]:
        assert "views" not in task.config or task.config["views"] == "[]"
        for client in clients:
            yield Update({"w": self.update(client)}, reports=(Report(client, {}),))


def task_of(noise: NoisedByClient = NOISE, round: int = 0) -> Task:
    return through(Task("test.noised", {"w": torch.zeros(SIZE)}, {"round": round, "call": 0}), noise)


def pool_of(exchange: Any, **settings: Any) -> SecurePool:
    return SecurePool(exchange, LocalPool(Vectors()), SecureAggregation(**settings), "run")


def source(client: str) -> Randomness:
    return Seeded(CLIENTS.index(client))


def members(record: Callable[[str], Any] = lambda client: None, own: bool = True) -> dict[str, Member]:
    worker = Vectors()

    def member(client: str) -> Member:
        work = lambda task: next(iter(worker.run(task, [client])))  # noqa: E731
        kept = {} if record(client) is None else {"record": record(client)}
        return Member(client, work, randomness=source(client) if own else Secure(), **kept)

    return {client: member(client) for client in CLIENTS}


def wire(
    people: Mapping[str, Member],
    gone: Mapping[str, str] = {},
    change: Callable[[str, dict[str, Any]], dict[str, Any]] = lambda step, head: head,
    seen: dict[tuple[str, str], Tensors] | None = None,
) -> Any:
    """An exchange with members, of whom some leave at a step, and whose requests may be changed."""

    def exchange(messages: Mapping[str, Message]) -> Iterator[tuple[str, Message | str]]:
        for client, (head, tensors) in messages.items():
            if client in gone and STEPS.index(head["step"]) >= STEPS.index(gone[client]):
                yield client, "no answer"
                continue
            answer = people[client].answer(change(head["step"], dict(head)), tensors)
            if seen is not None:
                seen[client, head["step"]] = answer[1]
            yield client, answer

    return exchange


def expected(clients: Sequence[str], threshold: int) -> np.ndarray:
    """The mean of clipped updates and shares, in steps."""
    scale = scale_of_share(NOISE.multiplier, NOISE.steps, threshold - NOISE.colluding)
    total = np.zeros(SIZE, dtype=np.int64)
    for client in clients:
        total += NOISE.on_grid({"w": Vectors().update(client)})
        total += discrete_gaussian(source(client).words(0), scale, SIZE)
    return total / len(clients)


@pytest.mark.parametrize("step", ["work", "share", "mask", "reveal"])
def test_a_sum_has_the_share_of_everybody_in_it_and_no_other(step: str) -> None:
    """A client that leaves before it masks has no part; one that leaves later has all of it."""
    everybody = pool_of(wire(members())).reduce(task_of(), CLIENTS, Uniform())
    assert np.allclose(everybody.mean["w"].double().numpy() / NOISE.step, expected(CLIENTS, 3), rtol=1e-6)
    update = pool_of(wire(members(), {"c1": step})).reduce(task_of(), CLIENTS, Uniform())
    there = [client for client in CLIENTS if client != "c1" or step == "reveal"]
    assert np.allclose(update.mean["w"].double().numpy() / NOISE.step, expected(there, 3), rtol=1e-6)


def test_with_the_fewest_clients_the_shares_that_count_have_the_claimed_deviation() -> None:
    """Three of five answer, and one of the three tells its noise: two shares are left."""
    few = pool_of(wire(members(), {"c0": "mask", "c4": "work"})).reduce(task_of(), CLIENTS, Uniform())
    assert [report.client for report in few.reports] == ["c1", "c2", "c3"]
    scale, total = scale_of_share(NOISE.multiplier, NOISE.steps, 2), 3 * few.mean["w"].double().numpy()
    for client in ("c1", "c2", "c3"):
        total -= NOISE.step * NOISE.on_grid({"w": Vectors().update(client)})
    total -= NOISE.step * discrete_gaussian(source("c2").words(0), scale, SIZE)
    claimed = NOISE.multiplier * NOISE.clipping.bound
    assert np.sqrt(np.mean(total**2)) == pytest.approx(claimed, rel=4 / np.sqrt(2 * SIZE))
    assert 2 * scale**2 >= (NOISE.multiplier * NOISE.steps) ** 2


def test_a_round_with_fewer_answers_releases_nothing() -> None:
    update = pool_of(wire(members(), dict.fromkeys(("c0", "c1", "c4"), "mask"))).reduce(
        task_of(), CLIENTS, Uniform()
    )
    assert update.is_empty
    assert any("the sum stays closed" in failure.reason for failure in update.failures)


def test_what_leaves_a_member_is_neither_its_update_nor_its_noised_update() -> None:
    seen: dict[tuple[str, str], Tensors] = {}
    pool_of(wire(members(), seen=seen)).reduce(task_of(), CLIENTS, Uniform())
    whole = NOISE.on_grid({"w": Vectors().update("c0")})
    noised = NOISE.noised(whole, 3, source("c0").words(0))
    sent = seen["c0", "mask"]["masked"].numpy()
    for known in (whole, noised):
        gap = (sent - known.astype(np.uint32).view(np.int32)).view(np.uint32) / 2**32
        assert 0.4 < gap.mean() < 0.6  # uniform: the masks


def test_a_simulation_has_the_same_bits_each_time_and_other_noise_in_other_rounds_and_seeds() -> None:
    def mean(seed: int, round: int = 0) -> torch.Tensor:
        pool = pool_of(in_process(Vectors(), 0.5, seed))
        return pool.reduce(task_of(round=round), CLIENTS, Uniform()).mean["w"]

    assert torch.equal(mean(1), mean(1))
    assert not torch.equal(mean(1), mean(2))
    assert not torch.equal(mean(1), mean(1, round=1))


def test_a_site_answers_again_with_the_bytes_that_it_revealed(tmp_path: Path) -> None:
    """With noise of the operating system: a process that begins anew must not draw it anew."""

    def kept(client: str) -> RecordFiles:
        return RecordFiles(tmp_path / client)

    first, second = (
        pool_of(wire(members(kept, own=False))).reduce(task_of(), CLIENTS, Uniform()) for _ in range(2)
    )
    assert torch.equal(first.mean["w"], second.mean["w"])
    fewer = pool_of(wire(members(kept, own=False))).reduce(task_of(), CLIENTS[:4], Uniform())
    assert fewer.is_empty
    assert any("was summed before" in failure.reason for failure in fewer.failures)


def test_a_session_that_revealed_nothing_is_repeated_with_new_noise() -> None:
    people, seen = members(own=False), [{}, {}]
    for number, gone in enumerate((dict.fromkeys(CLIENTS[:3], "reveal"), {})):
        update = pool_of(wire(people, gone, seen=seen[number])).reduce(task_of(), CLIENTS[:3], Uniform())
        assert update.is_empty == (number == 0)
    one, two = (answers["c0", "mask"]["masked"] for answers in seen)
    assert not torch.equal(one, two)


def test_members_refuse_thresholds_without_noise_and_unequal_weights() -> None:
    for noise, reason in (
        (replace(NOISE, colluding=3), "no sure noise"),
        (replace(NOISE, steps=1, multiplier=0.5), "too little for theorem 1"),
    ):
        update = pool_of(wire(members())).reduce(task_of(noise), CLIENTS, Uniform())
        assert update.is_empty
        assert any(reason in failure.reason for failure in update.failures)

    def other_weights(step: str, head: dict[str, Any]) -> dict[str, Any]:
        return {**head, "weights": {**head["weights"], "c0": 5}} if step == "mask" else head

    update = pool_of(wire(members(), change=other_weights)).reduce(task_of(), CLIENTS, Uniform())
    assert update.is_empty
    assert any("weights that are all the same" in failure.reason for failure in update.failures)


def test_an_update_that_is_not_finite_is_named_and_the_others_are_summed() -> None:
    people = members()
    wrong = Update({"w": torch.full((SIZE,), float("nan"))}, reports=(Report("c2", {}),))
    people["c2"].work = lambda task: wrong
    update = pool_of(wire(people)).reduce(task_of(), CLIENTS, Uniform())
    assert [report.client for report in update.reports] == ["c0", "c1", "c3", "c4"]
    assert [failure.reason for failure in update.failures] == [
        "NaN or infinity in its update (secure aggregation, step work)"
    ]


def test_a_member_enforces_the_threshold_that_its_share_was_made_for() -> None:
    """A server that promises four clients and opens the sum of three gets no shares."""

    def promise(step: str, head: dict[str, Any]) -> dict[str, Any]:
        return {**head, "threshold": 4} if step == "share" else head

    exchange = wire(members(), dict.fromkeys(("c0", "c1"), "mask"), promise)
    update = pool_of(exchange, threshold=0.6).reduce(task_of(), CLIENTS, Uniform())
    assert update.is_empty
    assert any("4 needed" in failure.reason for failure in update.failures)
