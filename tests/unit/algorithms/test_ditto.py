"""Ditto against Algorithm 1 of its paper, written out, in double precision."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from textbook import EXACT, ExactClients, Quadratics, assert_near
from world import SEED, World, recording

from antiphon.algorithms.ditto import Ditto
from antiphon.algorithms.fedavg import FedAvg
from antiphon.core import Task, Tensors
from antiphon.server.run_context import personal_pool
from antiphon.server.weighting import Uniform
from antiphon.tasks.local_training import as_part, part_of

LOCAL = replace(EXACT, lr=0.1, steps=2)  # of the clients' own models
INNER = FedAvg(EXACT, weighting=Uniform())
COHORTS = [["s00", "s01"], ["s00", "s03"], ["s01", "s02"], ["s03", "s00"]]


@pytest.fixture
def clients(world: World, tmp_path: Path) -> ExactClients:
    return ExactClients(world, tmp_path / "clients")


def distance(left: Tensors, right: Tensors) -> float:
    return max(float((left[name] - right[name]).abs().max()) for name in left)


@pytest.mark.parametrize("strength", [0.0, 0.7])
def test_four_rounds_are_those_of_the_paper(strength: float, clients: ExactClients) -> None:
    """v_k ← v_k − η (∇F_k(v_k) + λ (v_k − w^t)), from the model of the client's first round."""
    algorithm = Ditto(INNER, LOCAL, strength)
    state, own = algorithm.init(clients.params).with_seed(SEED), dict[str, Tensors]()
    for number, names in enumerate(COHORTS):
        cohort, w = [f"speaker/{name}" for name in names], state.params
        state, _ = clients.round(algorithm, state, cohort)
        for client in cohort:
            own[client] = clients.descend(
                own.get(client, w),
                client,
                LOCAL,
                lambda v, w=w: {name: strength * (v[name] - w[name]) for name in v},
            )
            assert_near(part_of(clients.kept(client, number + 1), "ditto"), own[client])
    assert distance(own["speaker/s00"], own["speaker/s03"]) > 1e-3


def test_the_global_model_is_that_of_the_inner_algorithm(clients: ExactClients) -> None:
    algorithm = Ditto(INNER, LOCAL)
    state = plain = algorithm.init(clients.params).with_seed(SEED)
    for _ in range(2):
        state, _ = clients.round(algorithm, state, clients.names[:3])
        plain, _ = INNER.round(plain, clients.names[:3], clients.pool)
    for name, p in plain.params.items():
        assert torch.equal(state.params[name], p), name


def test_with_strength_0_clients_train_alone_and_with_a_large_one_they_stay_near(
    clients: ExactClients,
) -> None:
    client, far = clients.names[0], {}
    for strength, lr in ((0.0, 0.1), (0.5, 0.1), (99.0, 0.01)):
        algorithm = Ditto(INNER, replace(LOCAL, lr=lr), strength)
        state = algorithm.init(clients.params).with_seed(SEED)
        for _ in range(3):
            w = state.params
            state, _ = clients.round(algorithm, state, clients.names[:3])
        own = part_of(clients.kept(client, 3), "ditto")
        far[strength] = distance(own, w)
        if strength == 0:
            alone = replace(LOCAL, steps=3 * LOCAL.steps)
            assert_near(own, clients.descend(clients.params, client, alone, lambda v: dict.fromkeys(v, 0.0)))
        clients.states.rollback(0)
        clients.states.expected.clear()
    assert far[0.0] > far[0.5] > 10 * far[99.0] > 0


def test_clients_that_disagree_end_between_the_global_model_and_their_own(tmp_path: Path) -> None:
    """min (v − 3)² / 2 + λ (v − w)² / 2 is at (3 + λ w) / (1 + λ)."""
    worker = Quadratics(tmp_path, {"a": (1.0, 3.0, 0.0), "b": (1.0, -1.0, 0.0)})
    local = replace(EXACT, lr=0.1, steps=20)
    w = worker.after(Ditto(FedAvg(local, weighting=Uniform()), local, strength=0.5), 60)
    assert w == pytest.approx(1.0)
    assert float(worker.states.read("a", (60, 0))["ditto/w"]) == pytest.approx((3 + 0.5) / 1.5, abs=1e-9)
    assert float(worker.states.read("b", (60, 0))["ditto/w"]) == pytest.approx((-1 + 0.5) / 1.5, abs=1e-9)


def test_a_client_is_evaluated_with_its_own_model_and_a_new_one_with_the_global_model(
    clients: ExactClients,
) -> None:
    """The own model of the first client says "a" all the time."""
    algorithm, (first, second, *_) = Ditto(INNER, LOCAL), clients.names
    says_a = {
        **clients.params,
        "output.bias": 1e3 * torch.eye(len(clients.params["output.bias"]))[1].double(),
    }
    clients.states.write(first, (0, 0), as_part(says_a, "ditto"))
    through = personal_pool(algorithm, recording(clients.pool, (), round=1))

    def wrong(pool: object, params: Tensors, client: str) -> float:
        update = pool.reduce(Task("evaluate", params), [client], Uniform())  # type: ignore[attr-defined]
        return update.reports[0].stats["characters_wrong"]

    alike = wrong(clients.pool, clients.params, first)
    assert wrong(through, clients.params, first) == wrong(clients.pool, says_a, first) != alike
    assert wrong(through, clients.params, second) == wrong(clients.pool, clients.params, second)


def test_work_that_trains_nothing_leaves_a_client_s_model_alone(clients: ExactClients) -> None:
    pool = Ditto(INNER, LOCAL).personal(recording(clients.pool, (), round=0))
    pool.reduce(Task("cautious.probe", clients.params), clients.names[:1], Uniform())
    assert clients.kept(clients.names[0], 1) == {}


def test_a_negative_strength_is_refused() -> None:
    with pytest.raises(ValueError, match="strength must not be negative"):
        Ditto(strength=-0.1)
