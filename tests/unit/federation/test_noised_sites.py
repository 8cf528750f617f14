"""A site that adds its share of the noise itself: from its own randomness, as large as announced, once."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from elsewhere import NoStates
from world import FRONTEND, LETTERS, MASKS, MODELS, World

from antiphon.core import Task, Update
from antiphon.data.corpus import Corpus
from antiphon.data.tokens import Characters
from antiphon.federation.federation_site import Site
from antiphon.federation.run_setup import SetupSettings, pack_setup
from antiphon.federation.site_policy import SitePolicy
from antiphon.pools.remote_exchange import Arrival, Patience
from antiphon.pools.remote_messages import Message
from antiphon.pools.remote_pool import RemotePool, RemoteRun, RemoteStates
from antiphon.privacy.announced_noise import AnnouncedNoise
from antiphon.privacy.distributed_noise import ConcentratedCost, Distributed
from antiphon.privacy.participation import RoundRobin
from antiphon.privacy.update_accounting import epsilon_of
from antiphon.recognizer import Blueprint, Recognizer
from antiphon.secure_aggregation.rules import SecureAggregation
from antiphon.secure_aggregation.secure_pool import SecurePool
from antiphon.server.weighting import Uniform
from antiphon.tasks.local_training import LocalTraining
from antiphon.tasks.noised_update import NoisedByClient
from antiphon.tasks.update_clipping import ClippedByClient, WholeUpdate
from antiphon.tasks.views import View, through

CLIENTS = [f"speaker/s{number:02d}" for number in range(5)]
NOISE = AnnouncedNoise(RoundRobin(separation=2), rounds=4, deviation=2.0, noise=Distributed(1))
VIEW = NoisedByClient(WholeUpdate(0.2), 2**14, 2.0, colluding=1)
LOSS = epsilon_of((ConcentratedCost(2 / (2 * 2.0**2)),), 1e-6)  # two turns with deviation 2


@dataclass
class DirectLink:
    """Brings messages to a site at once."""

    site: Site
    arrivals: deque[Arrival] = field(default_factory=deque)
    number: int = 0

    def push(self, site: str, message: Message) -> str:
        self.number += 1
        self.arrivals.append(Arrival(str(self.number), self.site.answer(message), ""))
        return str(self.number)

    def poll(self, seconds: float) -> Arrival | None:
        return self.arrivals.popleft() if self.arrivals else None

    def cancel(self, ticket: str) -> None: ...


@pytest.fixture
def site(world: World, tmp_path: Path) -> Site:
    policy = SitePolicy(epsilon=1.01 * LOSS, only_secure=True)
    return Site("oslo", Corpus.open(world.corpus), tmp_path / "site", policy, "cpu")


@pytest.fixture(scope="module")
def setup(world: World) -> Message:
    model: Any = world.runtime().model
    recognizer = Recognizer(Blueprint(FRONTEND, MODELS["ctc"]), Characters(LETTERS), model)
    return pack_setup(recognizer, SetupSettings(tuple(world.params()), 7, MASKS, noise=NOISE))


def summed(site: Site, setup: Message, world: World, view: View = VIEW, plain: bool = False) -> Update:
    local = {**LocalTraining(lr=0.05, batch_seconds=1.5).to_task(), "round": 2, "call": 0, "seed": 3}
    task = through(Task("train", world.params(), local), view)
    run, here = RemoteRun("a" * 32, setup, RemoteStates(NoStates())), world.worker(world.clients())
    remote = RemotePool(DirectLink(site), dict.fromkeys(CLIENTS, "oslo"), here, run, Patience(backoff=0.0))
    pool: Any = remote if plain else SecurePool(remote.ask, remote, SecureAggregation(), run.id)
    update: Update = pool.reduce(task, CLIENTS, Uniform())
    return update


def flat(update: Update) -> torch.Tensor:
    return torch.cat([update.mean[name].double().flatten() for name in sorted(update.mean)])


def test_a_sum_of_sites_has_the_announced_noise_and_a_resumed_server_gets_the_same(
    site: Site, setup: Message, world: World
) -> None:
    """Five shares, of which two carry 2 · 0.2: the mean has √(5/2) · 0.4 / 5."""
    first = flat(summed(site, setup, world))
    assert float(first.std()) == pytest.approx(2.5**0.5 * 0.4 / 5, rel=0.1)
    assert torch.equal(first, flat(summed(replace(site), setup, world)))
    assert site.ledger.epsilon(site.ledger.costs, 1e-6) == pytest.approx(LOSS)
    assert {len(rounds) for rounds in site.ledger.turns["a" * 32].values()} == {1}


def test_two_sites_that_are_asked_the_same_add_other_noise(
    site: Site, setup: Message, world: World, tmp_path: Path
) -> None:
    """Nothing that the server sends decides the noise."""
    again = replace(site, folder=tmp_path / "again")
    one, two = (flat(summed(place, setup, world)) for place in (site, again))
    assert float((one - two).std()) == pytest.approx(2**0.5 * 2.5**0.5 * 0.4 / 5, rel=0.1)


def test_a_smaller_share_no_noise_and_a_task_without_masks_are_refused(
    site: Site, setup: Message, world: World
) -> None:
    for view, reason in (
        (replace(VIEW, multiplier=1.9), "smaller share of the noise"),
        (replace(VIEW, colluding=0), "smaller share of the noise"),
        (ClippedByClient(WholeUpdate(0.2)), "noise that clients add"),
    ):
        update = summed(site, setup, world, view)
        assert update.is_empty
        assert all(reason in failure.reason for failure in update.failures)
    site.policy = SitePolicy(epsilon=1.01 * LOSS)
    update = summed(site, setup, world, plain=True)
    assert update.is_empty
    assert all("under secure aggregation only" in failure.reason for failure in update.failures)
