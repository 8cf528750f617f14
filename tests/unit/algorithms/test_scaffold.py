"""SCAFFOLD against Algorithm 1 of its paper, written out, in double precision."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from textbook import EXACT, ExactClients, Quadratics, assert_near, mean, zeros
from world import SEED, World

from antiphon.algorithms.fedavg import FedAvg
from antiphon.algorithms.scaffold import Scaffold
from antiphon.core import Tensors
from antiphon.server.optimizers import Sgd
from antiphon.server.run_context import RunContext, prepare
from antiphon.server.schedules import Step
from antiphon.server.weighting import Uniform
from antiphon.tasks.local_training import as_part, part_of

# s00 takes part in every round, s03 in two that are far apart, s07 never.
COHORTS = [
    ["s00", "s01"],
    ["s00", "s03", "s02"],
    ["s02", "s00"],
    ["s00"],
    ["s03", "s01", "s00"],
    ["s00", "s02"],
]


@pytest.fixture
def clients(world: World, tmp_path: Path) -> ExactClients:
    return ExactClients(world, tmp_path / "clients")


class Paper:
    """Algorithm 1 with option II: x, c and every client's c_i."""

    def __init__(self, clients: ExactClients, params: Tensors, server_lr: float) -> None:
        self.clients, self.server_lr = clients, server_lr
        self.x, self.c = params, zeros(params)
        self.own = {client: zeros(params) for client in clients.names}

    def round(self, cohort: list[str], lr: float = EXACT.lr) -> None:
        x, c, num_steps = self.x, self.c, EXACT.steps
        model_moves, control_moves = [], []
        for client in cohort:
            c_i = self.own[client]
            y = x
            for _ in range(num_steps):
                gradient = self.clients.gradient(y, client)
                y = {n: y[n] - lr * (gradient[n] - c_i[n] + c[n]) for n in y}
            c_plus = {n: c_i[n] - c[n] + (x[n] - y[n]) / (num_steps * lr) for n in x}
            model_moves.append({n: y[n] - x[n] for n in x})
            control_moves.append({n: c_plus[n] - c_i[n] for n in x})
            self.own[client] = c_plus
        share = len(cohort) / len(self.own)
        model_move, control_move = mean(model_moves), mean(control_moves)
        self.x = {n: x[n] + self.server_lr * model_move[n] for n in x}
        self.c = {n: c[n] + share * control_move[n] for n in x}


@pytest.mark.parametrize("server_lr", [1.0, 0.6])
def test_six_rounds_are_those_of_the_paper(server_lr: float, clients: ExactClients) -> None:
    algorithm = prepare(Scaffold(EXACT, server=Sgd(lr=server_lr)), RunContext(tuple(clients.names)))
    state, paper = algorithm.init(clients.params).with_seed(SEED), Paper(clients, clients.params, server_lr)
    for number, names in enumerate(COHORTS):
        cohort = [f"speaker/{name}" for name in names]
        state, _ = clients.round(algorithm, state, cohort)
        paper.round(cohort)
        assert_near(state.params, paper.x)
        assert_near(state.control, paper.c)
        for client in cohort:
            assert_near(part_of(clients.kept(client, number + 1), "control"), paper.own[client])
    assert clients.kept("speaker/s07", 6) == {}
    assert any(float(c.abs().max()) > 1e-3 for c in state.control.values())


def test_the_server_s_control_is_the_mean_of_all_clients_controls(clients: ExactClients) -> None:
    """By induction over rounds in which any clients take part; those that never did have 0."""
    everyone = clients.names[:3]
    algorithm = prepare(Scaffold(EXACT), RunContext(tuple(everyone)))
    state = algorithm.init(clients.params)
    for number, cohort in enumerate([everyone, everyone[:1], everyone[1:], everyone]):
        state, _ = clients.round(algorithm, state, cohort)
        kept = [part_of(clients.kept(client, number + 1), "control") for client in everyone]
        assert_near(state.control, mean(kept), 1e-12)


def test_the_first_round_is_one_of_federated_averaging(clients: ExactClients) -> None:
    cohort = clients.names[:3]
    averaged, _ = FedAvg(EXACT, weighting=Uniform()).round(
        FedAvg(EXACT).init(clients.params).with_seed(SEED), cohort, clients.pool
    )
    algorithm = prepare(Scaffold(EXACT), RunContext(tuple(clients.names)))
    state, _ = clients.round(algorithm, algorithm.init(clients.params).with_seed(SEED), cohort)
    for name, p in averaged.params.items():
        assert torch.equal(state.params[name], p), name


def test_the_schedule_s_learning_rate_is_the_one_that_controls_are_divided_by(clients: ExactClients) -> None:
    cohort, context = clients.names[:2], RunContext(tuple(clients.names))
    algorithm = prepare(Scaffold(EXACT, client_schedule=Step(1, factor=0.5)), context)
    state, paper = algorithm.init(clients.params), Paper(clients, clients.params, server_lr=1.0)
    for lr in (EXACT.lr, EXACT.lr / 2, EXACT.lr / 4):
        state, _ = clients.round(algorithm, state, cohort)
        paper.round(cohort, lr)
        assert_near(state.params, paper.x)
        assert_near(state.control, paper.c)


def test_only_trained_parameters_have_a_control(clients: ExactClients) -> None:
    algorithm = prepare(Scaffold(EXACT, trainable=("output.*",)), RunContext(tuple(clients.names)))
    state = algorithm.init(clients.params)
    for _ in range(2):
        state, _ = clients.round(algorithm, state, clients.names[:2])
    assert sorted(state.control) == ["output.bias", "output.weight"]
    assert sorted(clients.kept(clients.names[0], 2)) == sorted(as_part(state.control, "control"))
    for name, p in clients.params.items():
        assert torch.equal(state.params[name], p) == (not name.startswith("output.")), name


PARABOLAS = {"a": (1.0, 3.0, 0.0), "b": (9.0, -1.0, 0.0)}
BEST = (1.0 * 3.0 - 9.0 * 1.0) / (1.0 + 9.0)  # of the sum of both losses


def test_clients_that_disagree_do_not_drift(tmp_path: Path) -> None:
    """Ten local steps take FedAvg to a wrong point (Figure 2 of the paper), and SCAFFOLD to the right one."""
    local = replace(EXACT, lr=0.05, steps=10)
    averaged = Quadratics(tmp_path / "averaged", PARABOLAS).after(FedAvg(local, weighting=Uniform()), 300)
    algorithm = prepare(Scaffold(local), RunContext(("a", "b")))
    controlled = Quadratics(tmp_path / "controlled", PARABOLAS).after(algorithm, 300)
    assert abs(averaged - BEST) > 0.1
    assert controlled == pytest.approx(BEST, abs=1e-9)


def test_without_the_number_of_clients_it_is_refused(clients: ExactClients) -> None:
    algorithm = Scaffold(EXACT)
    with pytest.raises(ValueError, match="does not know the number of clients"):
        clients.round(algorithm, algorithm.init(clients.params), clients.names[:2])
