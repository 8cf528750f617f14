"""Secure aggregation at a site: the sum of its clients, in spite of a server that is stopped and resumed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from elsewhere import NoStates
from world import FRONTEND, LETTERS, MASKS, MODELS, World

from antiphon.core import Task
from antiphon.data.corpus import Corpus
from antiphon.data.tokens import Characters
from antiphon.federation.federation_site import Site
from antiphon.federation.run_setup import SetupSettings, pack_setup
from antiphon.federation.site_policy import SitePolicy
from antiphon.pools.local import LocalPool
from antiphon.pools.remote_exchange import Arrival, Patience
from antiphon.pools.remote_messages import Message, head_of
from antiphon.pools.remote_pool import RemotePool, RemoteRun, RemoteStates
from antiphon.privacy.announced_noise import AnnouncedNoise
from antiphon.privacy.participation import RoundRobin
from antiphon.recognizer import Blueprint, Recognizer
from antiphon.secure_aggregation.member import STEPS
from antiphon.secure_aggregation.rules import SecureAggregation
from antiphon.secure_aggregation.secure_pool import SecurePool
from antiphon.server.weighting import ByExamples
from antiphon.tasks.local_training import LocalTraining
from antiphon.tasks.update_clipping import ClippedByClient, WholeUpdate
from antiphon.tasks.views import through

CLIENTS = [f"speaker/s0{number}" for number in range(5)]


@dataclass
class DirectLink:
    """Brings messages to a site at once; `change` may lose or change an answer (None: lost)."""

    site: Site
    change: Callable[[Message, Message], Message | None] = lambda asked, answer: answer
    arrivals: deque[Arrival] = field(default_factory=deque)
    number: int = 0

    def push(self, site: str, message: Message) -> str:
        self.number += 1
        answer = self.change(message, self.site.answer(message))
        self.arrivals.append(Arrival(str(self.number), answer, "" if answer else "the connection broke"))
        return str(self.number)

    def poll(self, seconds: float) -> Arrival | None:
        return self.arrivals.popleft() if self.arrivals else None

    def cancel(self, ticket: str) -> None: ...


@pytest.fixture
def site(world: World, tmp_path: Path) -> Site:
    return Site("oslo", Corpus.open(world.corpus), tmp_path / "site", device="cpu")


@pytest.fixture(scope="module")
def setup(world: World) -> Message:
    model: Any = world.runtime().model
    recognizer = Recognizer(Blueprint(FRONTEND, MODELS["ctc"]), Characters(LETTERS), model)
    return pack_setup(recognizer, SetupSettings(tuple(world.params()), seed=7, augment=MASKS))


def pool_of(link: DirectLink, setup: Message, world: World) -> SecurePool:
    run = RemoteRun("a" * 32, setup, RemoteStates(NoStates()))
    here, patience = world.worker(world.clients()), Patience(backoff=0.0)
    remote = RemotePool(link, dict.fromkeys(CLIENTS, "oslo"), here, run, patience)
    return SecurePool(remote.ask, remote, SecureAggregation(max_share=0.9), run.id)


def task_of(world: World) -> Task:
    config = {**LocalTraining(lr=0.05, batch_seconds=1.5).to_task(), "round": 2, "call": 0, "seed": 3}
    return Task("train", world.params(), config)


def test_the_sum_is_that_of_the_local_pool_and_no_update_leaves_the_site(
    site: Site, setup: Message, world: World
) -> None:
    sent: list[Message] = []

    def keep(asked: Message, answer: Message) -> Message:
        sent.append(answer)
        return answer

    link = DirectLink(site, keep)
    update = pool_of(link, setup, world).reduce(task_of(world), CLIENTS, ByExamples())
    plain = LocalPool(world.worker(world.clients())).reduce(task_of(world), CLIENTS, ByExamples())
    for name, tensor in plain.mean.items():
        assert torch.allclose(update.mean[name], tensor, rtol=0, atol=1e-7), name
    assert [report.client for report in update.reports] == CLIENTS
    assert update.failures == ()
    (sizes,) = site.answer_sizes()
    bodies = {step: {len(a.body) for a in sent if head_of(a).get("step") == step} for step in STEPS}
    assert bodies["mask"] == {sizes.masked}
    (shares,) = bodies["share"]
    assert 0 <= shares - 94 * len(CLIENTS) < 100  # and the header of the tensor
    assert bodies["work"] == bodies["reveal"] == {0}
    assert {head_of(answer)["verb"] for answer in sent} == {"need", "ready", "secure"}
    assert site.ledger.num_answers("a" * 32, CLIENTS[0]) == 1


def test_a_resumed_server_gets_the_same_sum_from_a_site_that_was_started_again(
    site: Site, setup: Message, world: World
) -> None:
    first = pool_of(DirectLink(site), setup, world).reduce(task_of(world), CLIENTS, ByExamples())
    again = pool_of(DirectLink(replace(site)), setup, world).reduce(task_of(world), CLIENTS, ByExamples())
    for name, tensor in first.mean.items():
        assert torch.equal(again.mean[name], tensor), name
    fewer = pool_of(DirectLink(replace(site)), setup, world).reduce(task_of(world), CLIENTS[:4], ByExamples())
    assert fewer.is_empty
    assert all("was summed before" in failure.reason for failure in fewer.failures)


def test_answers_that_are_lost_are_asked_for_again(site: Site, setup: Message, world: World) -> None:
    lost: set[bytes] = set()

    def lose_once(asked: Message, answer: Message) -> Message | None:
        if asked.head in lost or head_of(asked)["verb"] != "secure":
            return answer
        lost.add(asked.head)
        return None

    pool = pool_of(DirectLink(site, lose_once), setup, world)
    update = pool.reduce(task_of(world), CLIENTS, ByExamples())
    plain = LocalPool(world.worker(world.clients())).reduce(task_of(world), CLIENTS, ByExamples())
    assert [report.client for report in update.reports] == CLIENTS
    assert all(torch.allclose(update.mean[n], t, rtol=0, atol=1e-7) for n, t in plain.mean.items())


def test_the_policy_can_demand_secure_aggregation_and_bounds_the_weights(
    site: Site, setup: Message, world: World
) -> None:
    site.policy = SitePolicy(only_secure=True, max_share=0.1)
    secure = pool_of(DirectLink(site), setup, world)
    assert (
        "under secure aggregation only"
        in secure.pool.reduce(task_of(world), CLIENTS, ByExamples()).failures[0].reason
    )
    update = secure.reduce(task_of(world), CLIENTS, ByExamples())
    assert update.is_empty
    assert any("more than 0.1 of the weight" in failure.reason for failure in update.failures)


def test_the_text_of_an_error_stays_at_the_site(site: Site, setup: Message, world: World) -> None:
    task = task_of(world)
    broken = replace(task, tensors={**task.tensors, "secret word": torch.zeros(1)})
    secure = pool_of(DirectLink(site), setup, world)
    update = secure.reduce(broken, CLIENTS, ByExamples())
    assert update.is_empty
    assert not any("secret word" in failure.reason for failure in update.failures)
    assert any("the log of site 'oslo' says more" in failure.reason for failure in update.failures)


def test_a_privacy_budget_counts_a_secure_sum_as_one_turn_also_if_it_is_asked_for_again(
    site: Site, world: World
) -> None:
    model: Any = world.runtime().model
    recognizer = Recognizer(Blueprint(FRONTEND, MODELS["ctc"]), Characters(LETTERS), model)
    noise = AnnouncedNoise(RoundRobin(separation=2), rounds=4, deviation=2.0)
    private = pack_setup(recognizer, SetupSettings(tuple(world.params()), 7, MASKS, noise=noise))
    task = through(task_of(world), ClippedByClient(WholeUpdate(1.0)))
    site.policy = SitePolicy(epsilon=10.0, only_secure=True, max_share=0.9)
    for again in (site, replace(site)):
        update = pool_of(DirectLink(again), private, world).reduce(task, CLIENTS, ByExamples())
        assert [report.client for report in update.reports] == CLIENTS
    turns = replace(site).ledger.turns["a" * 32]
    assert {client: list(rounds) for client, rounds in turns.items()} == {client: ["2"] for client in CLIENTS}
    early = replace(task, config={**task.config, "round": 3})
    failed = pool_of(DirectLink(site), private, world).reduce(early, CLIENTS, ByExamples())
    assert all("refuses by its policy" in failure.reason for failure in failed.failures)
