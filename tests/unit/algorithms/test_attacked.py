"""Clients that attack: who they are, what they send, and where they are refused."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from textbook import ExactClients
from world import LOCAL, World, recording

from antiphon import config
from antiphon.algorithms.attacked import Attacked
from antiphon.algorithms.fedavg import FedAvg, dga
from antiphon.algorithms.q_fedavg import QFedAvg
from antiphon.data.corruption.corrupted_clients import Corruption
from antiphon.pools.local import LocalPool
from antiphon.seeding import chosen_share, derive
from antiphon.server.optimizers import Sgd
from antiphon.server.run_context import RunContext, prepare
from antiphon.server.weighting import SoftmaxLoss, Uniform
from antiphon.tasks.views import views_of

PLAIN = FedAvg(LOCAL, weighting=Uniform(), server=Sgd())


@pytest.fixture
def clients(world: World, tmp_path: Path) -> ExactClients:
    return ExactClients(world, tmp_path)


def deltas(clients: ExactClients, algorithm: Any, cohort: list[str]) -> dict[str, dict[str, Any]]:
    """Return what each client sends in the first round, from rounds with one client."""
    state = algorithm.init(clients.params).with_seed(derive(1, "run"))
    found = {}
    for name in cohort:
        after, _ = algorithm.round(state, [name], recording(LocalPool(clients.worker), [name]))
        found[name] = {n: clients.params[n] - p for n, p in after.params.items()}
    return found


def test_only_the_attackers_send_something_else(clients: ExactClients) -> None:
    cohort = clients.names[:3]
    honest = deltas(clients, PLAIN, cohort)
    found = deltas(clients, Attacked(PLAIN, scale=-3.0, names=(cohort[1],)), cohort)
    for name in cohort:
        factor = -3.0 if name == cohort[1] else 1.0
        for n, delta in honest[name].items():
            np.testing.assert_allclose(found[name][n], factor * delta, rtol=1e-9, atol=1e-12)


def test_the_server_measures_the_norm_of_what_arrives_and_believes_the_loss(clients: ExactClients) -> None:
    cohort = clients.names[:3]
    algorithm = Attacked(PLAIN, scale=10.0, loss=0.25, names=(cohort[0],))
    state = algorithm.init(clients.params).with_seed(derive(1, "run"))
    pools = [recording(LocalPool(clients.worker), cohort) for _ in range(2)]
    for one, pool in zip((PLAIN, algorithm), pools, strict=True):
        one.round(state, cohort, pool)
    honest, attacked = (pool.clients for pool in pools)
    assert attacked[cohort[0]]["loss"] == 0.25 != honest[cohort[0]]["loss"]
    assert attacked[cohort[0]]["norm"] == pytest.approx(10 * honest[cohort[0]]["norm"])
    for name in cohort[1:]:
        assert {**attacked[name], "seconds": 0} == {**honest[name], "seconds": 0}


def test_a_false_loss_gives_the_weight_that_the_softmax_says(clients: ExactClients) -> None:
    cohort = clients.names[:2]
    algorithm = Attacked(replace(PLAIN, weighting=SoftmaxLoss(0.5)), loss=0.0, names=(cohort[0],))
    pool = recording(LocalPool(clients.worker), cohort)
    algorithm.round(algorithm.init(clients.params).with_seed(derive(1, "run")), cohort, pool)
    other = pool.clients[cohort[1]]["loss"]
    assert pool.clients[cohort[0]]["weight"] == pytest.approx(1 / (1 + math.exp(-0.5 * other)))


def test_a_false_loss_is_reported_to_q_fedavg_too(clients: ExactClients) -> None:
    cohort = clients.names[:3]
    algorithm = Attacked(QFedAvg(1.0, LOCAL), loss=9.0, names=(cohort[0],))
    pool = recording(LocalPool(clients.worker), cohort)
    _, metrics = algorithm.round(algorithm.init(clients.params).with_seed(derive(1, "run")), cohort, pool)
    assert metrics["largest_loss"] == 9.0


def test_a_loss_that_nobody_can_have_is_a_failure_of_the_attacker(clients: ExactClients) -> None:
    cohort = clients.names[:3]
    algorithm = Attacked(PLAIN, loss=-5.0, names=(cohort[0],))
    pool = recording(LocalPool(clients.worker), cohort)
    algorithm.round(algorithm.init(clients.params).with_seed(derive(1, "run")), cohort, pool)
    assert list(pool.failures) == [cohort[0]]
    assert "loss: -5 is not between" in pool.failures[cohort[0]]


# --- Who attacks ----------------------------------------------------------------------------------

NAMES = tuple(f"speaker/{number:02d}" for number in range(20))


def test_the_seed_decides_who_attacks_and_more_include_fewer() -> None:
    def chosen(fraction: float, seed: int = 0) -> tuple[str, ...]:
        algorithm = prepare(Attacked(fraction=fraction, scale=-1.0, seed=seed), RunContext(NAMES))
        return algorithm.names

    assert [len(chosen(share)) for share in (0.01, 0.1, 0.3, 1.0)] == [1, 2, 6, 20]
    assert set(chosen(0.1)) < set(chosen(0.3))
    assert chosen(0.3) == chosen(0.3) != chosen(0.3, seed=1)


def test_the_attackers_are_the_clients_that_corruption_chooses(world: World) -> None:
    corruption = Corruption(fraction=0.4, keep=0.5, seed=3)
    bad = corruption.choose(world.store, world.store.where("pool"), seed=7)
    assert sorted(bad.clients) == chosen_share(world.clients(), 0.4, 3)


def test_a_view_carries_the_attack_to_the_client() -> None:
    seen = []

    class Watching:
        def reduce(self, task: Any, cohort: Any, weigh: Any) -> Any:
            seen.extend(views_of(task))
            raise InterruptedError

    algorithm = Attacked(PLAIN, scale=-1.0, names=NAMES[:2])
    with pytest.raises(InterruptedError):
        algorithm.round(algorithm.init({"w": torch.zeros(1)}), NAMES, Watching())  # type: ignore[arg-type]
    (view,) = seen
    assert (view.names, view.scale, view.loss) == (NAMES[:2], -1.0, None)


# --- What is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "their answers are right: set scale or loss"),
        ({"scale": -1.0, "fraction": 0.0}, "above 0 and up to 1, not 0"),
        ({"scale": -1.0, "fraction": 1.5}, "above 0 and up to 1, not 1.5"),
    ],
)
def test_settings_that_make_no_sense_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config.from_dict(Attacked, values)


def test_an_infinite_scale_is_refused() -> None:
    with pytest.raises(ValueError, match="scale is a number"):
        Attacked(scale=math.inf)


def test_a_federation_and_unknown_clients_are_refused() -> None:
    algorithm = Attacked(dga(), scale=-1.0, names=("speaker/nobody",))
    with pytest.raises(ValueError, match=r"attacked.names: unknown client 'speaker/nobody'"):
        prepare(algorithm, RunContext(NAMES))
    algorithm.check_place(False)
    with pytest.raises(ValueError, match="a federation has real ones"):
        algorithm.check_place(True)
