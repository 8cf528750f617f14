"""q-FedAvg against Algorithm 2 of its paper, written out, in double precision."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from textbook import EXACT, ExactClients, Quadratics, assert_near
from world import SEED, World

from antiphon.algorithms.fedavg import FedAvg
from antiphon.algorithms.q_fedavg import QFedAvg
from antiphon.core import Report, Tensors, Update
from antiphon.server.optimizers import Sgd
from antiphon.server.schedules import Step
from antiphon.server.weighting import Uniform


@pytest.fixture
def clients(world: World, tmp_path: Path) -> ExactClients:
    return ExactClients(world, tmp_path / "clients")


def paper(clients: ExactClients, w: Tensors, cohort: list[str], q: float, lr: float) -> Tensors:
    """w − Σ Δ_k / Σ h_k with L = 1 / lr."""
    num, total = {name: torch.zeros_like(p) for name, p in w.items()}, 0.0
    for client in cohort:
        loss = clients.loss(w, client)
        trained = clients.descend(w, client, replace(EXACT, lr=lr), lambda v: dict.fromkeys(v, 0.0))
        moved = {n: (w[n] - trained[n]) / lr for n in w}  # Δw_k
        norm = math.sqrt(sum(float((m**2).sum()) for m in moved.values()))
        num = {n: num[n] + loss**q * moved[n] for n in w}
        total += q * loss ** (q - 1) * norm**2 + loss**q / lr
    return {n: w[n] - num[n] / total for n in w}


@pytest.mark.parametrize("q", [0.0, 0.5, 1.0, 2.0])
def test_three_rounds_are_those_of_the_paper(q: float, clients: ExactClients) -> None:
    algorithm = QFedAvg(q, EXACT, client_schedule=Step(1, factor=0.5))
    state, w = algorithm.init(clients.params).with_seed(SEED), clients.params
    for number, cohort in enumerate([clients.names[:3], clients.names[2:4], clients.names[:2]]):
        state, pool = clients.round(algorithm, state, cohort)
        powers = {client: clients.loss(w, client) ** q for client in cohort}
        weights = {client: power / sum(powers.values()) for client, power in powers.items()}
        assert pool.weights() == pytest.approx(weights, abs=1e-12)
        w = paper(clients, w, cohort, q, EXACT.lr * 0.5**number)
        assert_near(state.params, w)
    assert state.round == 3


def test_q_0_is_federated_averaging_with_uniform_weights(clients: ExactClients) -> None:
    cohort = clients.names[:3]
    algorithm, averaging = QFedAvg(0.0, EXACT), FedAvg(EXACT, weighting=Uniform(), server=Sgd())
    state, _ = clients.round(algorithm, algorithm.init(clients.params), cohort)
    averaged, _ = clients.round(averaging, averaging.init(clients.params), cohort)
    assert_near(state.params, averaged.params, 1e-12)


def test_the_step_by_hand() -> None:
    """Losses 2 and 1, q = 1, lr = 1/2: Σ F_k = 3, ‖Δw_k‖ = 2 · norm, h = 4 + 2 · 2 and 16 + 2 · 1."""
    reports = (Report("a", {"start_loss": 2.0, "norm": 1.0}), Report("b", {"start_loss": 1.0, "norm": 2.0}))
    algorithm = QFedAvg(1.0)
    assert [algorithm.log_weight(report) for report in reports] == pytest.approx([math.log(2), 0.0])
    assert algorithm.step_size(Update({}, math.log(3), reports), lr=0.5) == pytest.approx(2 * 3 / 26)


def test_a_client_without_loss_neither_counts_nor_divides_by_zero() -> None:
    reports = (Report("a", {"start_loss": 0.0, "norm": 0.0}), Report("b", {"start_loss": 1.0, "norm": 1.0}))
    algorithm = QFedAvg(2.0)
    assert math.exp(algorithm.log_weight(reports[0])) < 1e-20
    assert algorithm.step_size(Update({}, 0.0, reports), lr=1.0) == pytest.approx(1 / 3)


def test_a_loss_above_the_limit_counts_as_the_limit() -> None:
    """With a limit of 2, a loss of 10^6 makes the step of `test_the_step_by_hand`."""
    reports = (Report("a", {"start_loss": 1e6, "norm": 1.0}), Report("b", {"start_loss": 1.0, "norm": 2.0}))
    algorithm = QFedAvg(1.0, max_loss=2.0)
    assert [algorithm.log_weight(report) for report in reports] == pytest.approx([math.log(2), 0.0])
    assert algorithm.step_size(Update({}, math.log(3), reports), lr=0.5) == pytest.approx(2 * 3 / 26)


# The model of two clients out of three fits one client badly.
UNEQUAL = {"a": (1.0, 1.0, 0.1), "b": (1.0, 1.2, 0.1), "c": (1.0, -2.0, 0.1)}


def test_the_larger_q_the_more_alike_are_the_losses(tmp_path: Path) -> None:
    spreads, largest = [], []
    for q in (0.0, 1.0, 5.0):
        clients = Quadratics(tmp_path / f"{q}", UNEQUAL)
        losses = clients.losses(clients.after(QFedAvg(q, replace(EXACT, lr=0.1)), 400))
        spreads.append(max(losses) - min(losses))
        largest.append(max(losses))
    assert spreads[0] > 1.5 * spreads[1] > 1.5 * spreads[2]
    assert largest == sorted(largest, reverse=True)


def test_only_trained_parameters_travel(clients: ExactClients) -> None:
    algorithm = QFedAvg(1.0, EXACT, trainable=("output.*",))
    state, pool = clients.round(algorithm, algorithm.init(clients.params), clients.names[:2])
    for name, p in clients.params.items():
        assert torch.equal(state.params[name], p) == (not name.startswith("output.")), name
    numbers = sum(p.numel() for name, p in clients.params.items() if name.startswith("output."))
    assert pool.bytes_up == 2 * 8 * numbers


def test_a_negative_q_is_refused() -> None:
    with pytest.raises(ValueError, match="q must not be negative"):
        QFedAvg(-1.0)
