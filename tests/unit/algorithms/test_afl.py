"""Agnostic federated learning: the mixture by hand, by brute force, and the worst client of parabolas."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from textbook import EXACT, ExactClients, Quadratics, assert_near
from torch import Tensor
from world import SEED, World, recording

from antiphon.algorithms.afl import Afl, gradient, project
from antiphon.algorithms.fedavg import FedAvg
from antiphon.pools.local import LocalPool
from antiphon.server.run_context import RunContext, prepare
from antiphon.server.weighting import Uniform


@pytest.fixture
def clients(world: World, tmp_path: Path) -> ExactClients:
    return ExactClients(world, tmp_path / "clients")


# --- The simplex ----------------------------------------------------------------------------------


def tensor(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize(
    ("point", "nearest"),
    [
        (tensor(0.2, 0.3, 0.5), tensor(0.2, 0.3, 0.5)),
        (tensor(0.9, 0.5, -0.2), tensor(0.7, 0.3, 0.0)),  # −0.2 is left out, 0.4 is too much
        (tensor(5.0, 0.0), tensor(1.0, 0.0)),
        (tensor(-1.0, -1.0, -1.0, -1.0), tensor(0.25, 0.25, 0.25, 0.25)),
        (tensor(-7.0), tensor(1.0)),
    ],
)
def test_projections_by_hand(point: Tensor, nearest: Tensor) -> None:
    torch.testing.assert_close(project(point), nearest, rtol=0, atol=1e-15)


def test_no_point_of_a_fine_grid_on_the_simplex_is_nearer() -> None:
    random = torch.Generator().manual_seed(1)
    grid = [(i / 60, j / 60, (60 - i - j) / 60) for i in range(61) for j in range(61 - i)]
    corners = torch.tensor(grid, dtype=torch.float64)
    for _ in range(200):
        point = torch.randn(3, generator=random, dtype=torch.float64)
        found = project(point)
        assert float(found.min()) >= 0
        assert float(found.sum()) == pytest.approx(1.0, abs=1e-12)
        assert float((found - point).norm()) <= float((corners - point).norm(dim=1).min()) + 1e-12


def test_a_constant_on_all_entries_changes_no_projection() -> None:
    random = torch.Generator().manual_seed(2)
    for _ in range(50):
        point = torch.randn(9, generator=random, dtype=torch.float64)
        torch.testing.assert_close(project(point + 3.5), project(point), rtol=0, atol=1e-12)


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_the_mean_gradient_over_all_cohorts_is_the_true_one(size: int) -> None:
    losses = {"a": 1.0, "b": 2.5, "c": 0.2, "d": 4.0, "e": 3.0}
    cohorts = list(itertools.combinations(losses, size))
    found = sum(gradient({name: losses[name] for name in cohort}, list(losses)) for cohort in cohorts)
    true = tensor(*losses.values()) - sum(losses.values()) / len(losses)
    torch.testing.assert_close(found / len(cohorts), true, rtol=0, atol=1e-12)


def test_one_client_tells_nothing_about_the_others() -> None:
    assert gradient({"a": 9.0}, ["a", "b"]).tolist() == [0.0, 0.0]


# --- Rounds ---------------------------------------------------------------------------------------


def test_three_rounds_are_weighted_by_the_mixture_of_the_round(clients: ExactClients) -> None:
    algorithm = prepare(Afl(2.0, EXACT), RunContext(tuple(clients.names)))
    state, w = algorithm.init(clients.params).with_seed(SEED), clients.params
    mixture = torch.full((len(clients.names),), 1 / len(clients.names), dtype=torch.float64)
    for cohort in [clients.names[:3], clients.names[1:4], clients.names[2:6]]:
        state, pool = clients.round(algorithm, state, cohort)
        shares = {client: float(mixture[clients.names.index(client)]) for client in cohort}
        weights = {client: share / sum(shares.values()) for client, share in shares.items()}
        assert pool.weights() == pytest.approx(weights, abs=1e-12)
        models = {c: clients.descend(w, c, EXACT, lambda v: dict.fromkeys(v, 0.0)) for c in cohort}
        losses = {client: clients.loss(w, client) for client in cohort}
        w = {name: sum(weights[c] * models[c][name] for c in cohort) for name in w}  # type: ignore[misc]
        assert_near(state.params, w)
        mixture = project(mixture + 2.0 / len(clients.names) * gradient(losses, clients.names))
        torch.testing.assert_close(state.mixture, mixture, rtol=0, atol=1e-12)
    assert len(set(mixture.tolist())) > 4


def test_a_rate_of_0_is_federated_averaging_with_uniform_weights(clients: ExactClients) -> None:
    algorithm, averaging = Afl(0.0, EXACT, clients=tuple(clients.names)), FedAvg(EXACT, weighting=Uniform())
    state, averaged = algorithm.init(clients.params), averaging.init(clients.params)
    for _ in range(2):
        state, _ = clients.round(algorithm, state, clients.names[:3])
        averaged, _ = clients.round(averaging, averaged, clients.names[:3])
    assert_near(state.params, averaged.params, 1e-12)


# Two clients that agree, and one that does not.
UNEQUAL = {"a": (1.0, 1.0, 0.1), "b": (1.0, 1.2, 0.1), "c": (1.0, -2.0, 0.1)}


def test_one_round_by_hand(tmp_path: Path) -> None:
    """From w = 0, losses are 0.6, 0.82 and 2.1, their mean is 3.52 / 3; one step of 0.1 each."""
    algorithm = Afl(0.3, replace(EXACT, lr=0.1, steps=1), clients=("a", "b", "c"))
    state = algorithm.init({"w": torch.zeros((), dtype=torch.float64)})
    pool = recording(LocalPool(Quadratics(tmp_path, UNEQUAL)), list(UNEQUAL))
    state, metrics = algorithm.round(state, list(UNEQUAL), pool)
    assert float(state.params["w"]) == pytest.approx((0.1 + 0.12 - 0.2) / 3)
    mean = 3.52 / 3
    expected = [1 / 3 + 0.1 * (loss - mean) for loss in (0.6, 0.82, 2.1)]
    assert state.mixture.tolist() == pytest.approx(expected)
    assert metrics["largest_loss"] == pytest.approx(2.1)
    assert metrics["largest_share"] == pytest.approx(expected[2])


def test_the_worst_client_is_as_well_off_as_it_can_be(tmp_path: Path) -> None:
    """The largest loss is least where those of b and c are equal; federated averaging ends elsewhere."""
    local = replace(EXACT, lr=0.1, steps=1)
    agnostic = Quadratics(tmp_path / "afl", UNEQUAL).after(Afl(0.05, local, clients=("a", "b", "c")), 4000)
    averaged = Quadratics(tmp_path / "avg", UNEQUAL).after(FedAvg(local, weighting=Uniform()), 400)
    assert averaged == pytest.approx(0.2 / 3, abs=1e-3)
    assert agnostic == pytest.approx(-0.4, abs=1e-3)


def test_clients_without_weight_change_the_mixture_and_not_the_model(tmp_path: Path) -> None:
    algorithm = Afl(0.3, replace(EXACT, lr=0.1, steps=1), clients=("a", "b", "c"))
    start = algorithm.init({"w": torch.zeros((), dtype=torch.float64)})
    state = replace(start, mixture=tensor(0.0, 0.0, 1.0))
    pool = recording(LocalPool(Quadratics(tmp_path, UNEQUAL)), ["a", "b"])
    after, _ = algorithm.round(state, ["a", "b"], pool)
    assert torch.equal(after.params["w"], start.params["w"])
    assert after.opt == start.opt
    # b's loss is 0.11 above the mean of both, a's 0.11 below: 2 · 0.1 · 0.11 = 0.022 is moved up and down.
    assert after.mixture.tolist() == pytest.approx([0.0, 0.011, 0.989])


def test_a_loss_above_the_limit_counts_as_the_limit(tmp_path: Path) -> None:
    limited = Afl(0.3, replace(EXACT, lr=0.1, steps=1), max_loss=1.0, clients=("a", "b", "c"))
    state = limited.init({"w": torch.zeros((), dtype=torch.float64)})
    pool = recording(LocalPool(Quadratics(tmp_path, UNEQUAL)), list(UNEQUAL))
    mixture = limited.round(state, list(UNEQUAL), pool)[0].mixture
    assert mixture.tolist() == pytest.approx([1 / 3 + 0.1 * (loss - 2.42 / 3) for loss in (0.6, 0.82, 1.0)])


# --- Settings -------------------------------------------------------------------------------------


def test_without_the_clients_it_is_refused(clients: ExactClients) -> None:
    algorithm = Afl(0.1, EXACT)
    with pytest.raises(ValueError, match="does not know the clients"):
        clients.round(algorithm, algorithm.init(clients.params), clients.names[:2])


def test_a_run_goes_on_with_the_clients_it_began_with(clients: ExactClients) -> None:
    state = Afl(0.1, EXACT, clients=tuple(clients.names)).init(clients.params)
    with pytest.raises(ValueError, match="the run began with 8 clients, and now there are 3"):
        clients.round(Afl(0.1, EXACT, clients=tuple(clients.names[:3])), state, clients.names[:2])


def test_negative_settings_are_refused() -> None:
    with pytest.raises(ValueError, match=r"mixture_lr must not be negative, not -0\.1"):
        Afl(-0.1)
    with pytest.raises(ValueError, match=r"max_loss must not be negative, not -1"):
        Afl(max_loss=-1.0)
