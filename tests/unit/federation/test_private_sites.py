"""The privacy budget of a site: it computes the loss itself, counts turns, and remembers what was spent."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from world import FRONTEND, LETTERS, MASKS, MODELS, World

from antiphon.core import Task
from antiphon.data.corpus import Corpus
from antiphon.data.tokens import Characters
from antiphon.federation.federation_site import Site
from antiphon.federation.run_setup import SetupSettings, pack_setup
from antiphon.federation.site_policy import SitePolicy
from antiphon.pools.remote_messages import Message, head_of, pack
from antiphon.privacy.announced_noise import AnnouncedNoise
from antiphon.privacy.participation import RoundRobin
from antiphon.privacy.update_accounting import GaussianCost, epsilon_of
from antiphon.recognizer import Blueprint, Recognizer
from antiphon.tasks.local_training import LocalTraining
from antiphon.tasks.update_clipping import Clipped, WholeUpdate
from antiphon.tasks.views import through

NOISE = AnnouncedNoise(RoundRobin(separation=2), rounds=4, deviation=2.0, bands=1)
LOSS = epsilon_of((GaussianCost(2**0.5 / 2.0),), 1e-6)  # two turns with independent noise
CLIENT = "speaker/s01"


def setup_of(world: World, noise: AnnouncedNoise | None) -> Message:
    model: Any = world.runtime().model
    recognizer = Recognizer(Blueprint(FRONTEND, MODELS["ctc"]), Characters(LETTERS), model)
    return pack_setup(recognizer, SetupSettings(tuple(world.params()), 7, MASKS, noise=noise))


def asked(site: Site, world: World, setup: Message, /, round: int = 0, run: str = "a", **more: Any) -> str:
    """Ask a client for an update; return "" if it answers, else the reason."""
    local = {**LocalTraining(lr=0.05, batch_seconds=1.5).to_task(), "round": round, "call": 0, "seed": 3}
    task = through(Task("train", {}, local), Clipped(WholeUpdate(1.0)))
    about = {"verb": "work", "run": run * 32, "client": CLIENT, "kind": "train", "cohort": 4}
    head = {**about, "config": dict(task.config), "setup": head_of(setup)["body"]["sha256"], **more}
    site.answer(setup)
    reply = head_of(site.answer(pack(head, world.params())))
    assert reply["verb"] in ("answer", "failure")
    return str(reply.get("reason", ""))


@pytest.fixture
def site(world: World, tmp_path: Path) -> Site:
    return Site("oslo", Corpus.open(world.corpus), tmp_path, SitePolicy(epsilon=1.01 * LOSS), "cpu")


def test_a_site_with_a_limit_takes_part_in_private_runs_within_it(site: Site, world: World) -> None:
    assert asked(site, world, setup_of(world, NOISE)) == ""
    assert asked(site, world, setup_of(world, NOISE), round=2) == ""
    assert site.ledger.epsilon(site.ledger.costs, 1e-6) == pytest.approx(LOSS)


def test_a_site_with_a_limit_refuses_runs_without_noise_or_with_too_little(site: Site, world: World) -> None:
    assert "private runs only" in asked(site, world, setup_of(world, None))
    weak = asked(site, world, setup_of(world, replace(NOISE, deviation=1.9)))
    wanted = epsilon_of((GaussianCost(2**0.5 / 1.9),), 1e-6)
    assert f"epsilon of a client would be {wanted:.4g} at delta 1e-06 in all runs together" in weak
    assert site.ledger.costs == {}


def test_a_task_that_does_not_clip_is_refused(site: Site, world: World) -> None:
    plain = {**LocalTraining().to_task(), "round": 0}
    assert "does not clip" in asked(site, world, setup_of(world, NOISE), config=plain)


def test_turns_that_were_not_announced_are_refused_also_after_a_restart(site: Site, world: World) -> None:
    setup = setup_of(world, NOISE)
    assert asked(site, world, setup) == ""
    assert "1 apart" in asked(site, world, setup, round=1)
    assert "1 apart" in asked(replace(site), world, setup, round=1)
    assert "this is round 5" in asked(replace(site), world, setup, round=4)


def test_a_resumed_server_may_repeat_a_round_and_nothing_else(site: Site, world: World) -> None:
    setup = setup_of(world, NOISE)
    assert asked(site, world, setup) == ""
    assert asked(replace(site), world, setup, states={"attempt": "second"}) == ""
    assert "asked something else in round 1" in asked(replace(site), world, setup, kind="evaluate")


def test_a_run_cannot_announce_other_noise_later(site: Site, world: World) -> None:
    assert asked(site, world, setup_of(world, NOISE)) == ""
    more = setup_of(world, replace(NOISE, deviation=4.0))
    assert "announced other noise before" in asked(site, world, more, round=2)


def test_the_losses_of_runs_add_up_also_after_a_restart(site: Site, world: World) -> None:
    setup = setup_of(world, NOISE)
    assert asked(site, world, setup) == ""
    both = epsilon_of((GaussianCost(2**0.5 / 2.0),) * 2, 1e-6)
    assert f"would be {both:.4g}" in asked(replace(site), world, setup, run="b")
    generous = replace(site, policy=SitePolicy(epsilon=1.01 * both))
    assert asked(generous, world, setup, run="b") == ""
