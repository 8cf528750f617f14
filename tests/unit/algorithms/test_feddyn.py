"""FedDyn against Algorithm 1 of its paper, written out, in double precision."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from textbook import EXACT, ExactClients, Quadratics, assert_near, mean, zeros
from world import SEED, World, recording

from antiphon.algorithms.fedavg import FedAvg
from antiphon.algorithms.feddyn import FedDyn
from antiphon.algorithms.personal_layers import PersonalLayers
from antiphon.core import Tensors
from antiphon.pools.local import LocalPool
from antiphon.server.run_context import RunContext, prepare
from antiphon.server.schedules import Step
from antiphon.server.weighting import Uniform
from antiphon.tasks.local_training import LocalTraining, as_part, part_of

# s00 takes part in every round, s03 in two that are far apart, s07 never.
COHORTS = [["s00", "s01"], ["s00", "s03", "s02"], ["s02", "s00"], ["s00"], ["s03", "s01", "s00"]]


@pytest.fixture
def clients(world: World, tmp_path: Path) -> ExactClients:
    return ExactClients(world, tmp_path / "clients")


class Paper:
    """Algorithm 1: θ, h and the gradient that every client keeps; minima by steps of gradient descent."""

    def __init__(self, clients: ExactClients, params: Tensors, alpha: float) -> None:
        self.clients, self.alpha = clients, alpha
        self.theta, self.h = params, zeros(params)
        self.gradients = {client: zeros(params) for client in clients.names}

    def round(self, cohort: list[str], lr: float = EXACT.lr) -> None:
        theta, alpha, models = self.theta, self.alpha, []
        for client in cohort:
            kept = self.gradients[client]

            def added(v: Tensors, kept: Tensors = kept) -> Tensors:
                return {n: alpha * (v[n] - theta[n]) - kept[n] for n in v}

            model = self.clients.descend(theta, client, replace(EXACT, lr=lr), added)
            self.gradients[client] = {n: kept[n] - alpha * (model[n] - theta[n]) for n in theta}
            models.append(model)
        moved = mean([{n: model[n] - theta[n] for n in theta} for model in models])
        share = len(cohort) / len(self.gradients)
        self.h = {n: self.h[n] - alpha * share * moved[n] for n in theta}
        self.theta = {n: mean(models)[n] - self.h[n] / alpha for n in theta}


@pytest.mark.parametrize("alpha", [0.1, 1.0])
def test_five_rounds_are_those_of_the_paper(alpha: float, clients: ExactClients) -> None:
    algorithm = prepare(FedDyn(alpha, EXACT), RunContext(tuple(clients.names)))
    state, paper = algorithm.init(clients.params).with_seed(SEED), Paper(clients, clients.params, alpha)
    for number, names in enumerate(COHORTS):
        cohort = [f"speaker/{name}" for name in names]
        state, _ = clients.round(algorithm, state, cohort)
        paper.round(cohort)
        assert_near(state.params, paper.theta)
        assert_near(state.h, paper.h)
        for client in cohort:
            kept = part_of(clients.kept(client, number + 1), "gradient")
            assert_near(kept, paper.gradients[client])
    assert clients.kept("speaker/s07", 5) == {}
    assert any(float(h.abs().max()) > 1e-3 for h in state.h.values())


def test_h_is_the_mean_of_what_all_clients_keep(clients: ExactClients) -> None:
    """By induction over rounds in which any clients take part; those that never did have 0."""
    everyone = clients.names[:3]
    algorithm = prepare(FedDyn(0.2, EXACT), RunContext(tuple(everyone)))
    state = algorithm.init(clients.params)
    for number, cohort in enumerate([everyone, everyone[:1], everyone[1:], everyone]):
        state, _ = clients.round(algorithm, state, cohort)
        kept = [part_of(clients.kept(client, number + 1), "gradient") for client in everyone]
        assert_near(state.h, mean(kept), 1e-12)


def test_the_schedule_scales_the_steps_of_clients(clients: ExactClients) -> None:
    cohort, context = clients.names[:2], RunContext(tuple(clients.names))
    algorithm = prepare(FedDyn(0.1, EXACT, client_schedule=Step(1, factor=0.5)), context)
    state, paper = algorithm.init(clients.params), Paper(clients, clients.params, 0.1)
    for lr in (EXACT.lr, EXACT.lr / 2, EXACT.lr / 4):
        state, _ = clients.round(algorithm, state, cohort)
        paper.round(cohort, lr)
        assert_near(state.params, paper.theta)


def test_two_rounds_by_hand(tmp_path: Path) -> None:
    """Losses (w − 1)² / 2 and (w + 1)² / 2 · 2, α = 1, one step of 0.5 from w = 0.

    Round 1: the models are 0 − 0.5 · (−1) = 0.5 and 0 − 0.5 · 2 = −1; the clients keep −0.5 and 1;
    h = 0.25 and w = −0.25 − 0.25 = −0.5. Round 2: the steps are along −1.5 + 0.5 = −1 and 1 − 1 = 0, so the
    models are 0 and −0.5; h = 0.25 − 0.25 = 0 and w = −0.25.
    """
    clients = Quadratics(tmp_path, {"a": (1.0, 1.0, 0.0), "b": (2.0, -1.0, 0.0)})
    algorithm = FedDyn(1.0, replace(EXACT, lr=0.5, steps=1), num_clients=2)
    state = algorithm.init({"w": torch.zeros((), dtype=torch.float64)})
    for expected_w, expected_h in ((-0.5, 0.25), (-0.25, 0.0)):
        state, _ = algorithm.round(state, ["a", "b"], recording(LocalPool(clients), ["a", "b"], state.round))
        assert float(state.params["w"]) == pytest.approx(expected_w, abs=1e-12)
        assert float(state.h["w"]) == pytest.approx(expected_h, abs=1e-12)


PARABOLAS = {"a": (1.0, 3.0, 0.0), "b": (9.0, -1.0, 0.0)}
BEST = (1.0 * 3.0 - 9.0 * 1.0) / (1.0 + 9.0)  # of the sum of both losses


def test_clients_that_disagree_end_at_the_best_model_of_all(tmp_path: Path) -> None:
    """Ten local steps take FedAvg to a wrong point, and FedDyn to the right one (Theorem 1 of the paper)."""
    local = replace(EXACT, lr=0.05, steps=10)
    averaged = Quadratics(tmp_path / "averaged", PARABOLAS).after(FedAvg(local, weighting=Uniform()), 300)
    algorithm = FedDyn(2.0, local, num_clients=2)
    regularised = Quadratics(tmp_path / "regularised", PARABOLAS).after(algorithm, 300)
    assert abs(averaged - BEST) > 0.1
    assert regularised == pytest.approx(BEST, abs=1e-9)


def test_only_trained_parameters_have_a_memory(clients: ExactClients) -> None:
    algorithm = prepare(FedDyn(0.1, EXACT, trainable=("output.*",)), RunContext(tuple(clients.names)))
    state = algorithm.init(clients.params)
    for _ in range(2):
        state, _ = clients.round(algorithm, state, clients.names[:2])
    assert sorted(state.h) == ["output.bias", "output.weight"]
    assert sorted(clients.kept(clients.names[0], 2)) == sorted(as_part(state.h, "gradient"))
    for name, p in clients.params.items():
        assert torch.equal(state.params[name], p) == (not name.startswith("output.")), name


def test_personal_layers_move_and_have_no_memory(clients: ExactClients) -> None:
    """With a memory, a client at its minimum would stay there: its corrected gradient is 0."""
    context = RunContext(tuple(clients.names))
    algorithm = prepare(PersonalLayers(FedDyn(0.1, replace(EXACT, steps=1)), ("output.*",)), context)
    state, client, before = algorithm.init(clients.params), clients.names[0], clients.params
    for number in range(3):
        state, _ = clients.round(algorithm, state, [client])
        kept = clients.kept(client, number + 1)
        after = part_of(kept, "personal")
        assert float((after["output.weight"] - before["output.weight"]).abs().max()) > 1e-3
        assert not any(name.startswith("output.") for name in part_of(kept, "gradient"))
        before = after


def test_without_the_number_of_clients_it_is_refused(clients: ExactClients) -> None:
    algorithm = FedDyn(0.1, EXACT)
    with pytest.raises(ValueError, match="does not know the number of clients"):
        clients.round(algorithm, algorithm.init(clients.params), clients.names[:2])


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ValueError, match=r"alpha must be above 0, not 0: the server divides by it"):
        FedDyn(0.0)
    with pytest.raises(ValueError, match=r"leave local\.proximal at 0"):
        FedDyn(0.1, LocalTraining(proximal=0.1))
