"""The mathematics of a round, on real clients in float64."""

from __future__ import annotations

import math
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from world import SEED, World, start

from antiphon.algorithms.fedavg import FedAvg, bmuf, dga, fedavg, fedsgd, select
from antiphon.core import Pool, Report, Task, Tensors, Update
from antiphon.data.batches import collate
from antiphon.pools.local import LocalPool
from antiphon.pools.recording import RecordingPool
from antiphon.server.optimizers import Sgd
from antiphon.server.schedules import Cosine, Step
from antiphon.server.weighting import ByExamples, Uniform
from antiphon.tasks.local_training import LocalTraining

COHORT = ["speaker/s00", "speaker/s01", "speaker/s02"]  # of 5, 4 and 5 utterances
EXACT = LocalTraining(lr=0.1, batch_seconds=1.0)


def flat(tensors: Tensors) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors.values()])


def relative(left: Tensor, right: Tensor) -> float:
    return float((left - right).norm() / right.norm())


@pytest.fixture
def params(world: World) -> Tensors:
    return world.params(dtype=torch.float64)


@pytest.fixture
def pool(world: World) -> LocalPool:
    return LocalPool(world.worker(world.clients(), world.exact_runtime()))


def observed(pool: Pool, cohort: list[str]) -> RecordingPool:
    return RecordingPool(pool, cohort, 1, lambda client: None, threading.Event())


@pytest.mark.parametrize("model", ["ctc", "las"])
def test_fedsgd_is_a_central_gradient_step_on_the_pooled_utterances(world: World, model: str) -> None:
    runtime, clients = world.exact_runtime(model), world.clients()
    params = world.params(model, torch.float64)
    algorithm = fedsgd(Sgd(lr=0.3))
    state = algorithm.init(params)
    after, _ = algorithm.round(state, COHORT, LocalPool(world.worker(clients, runtime)))

    parameters = runtime.load(params)
    batch = collate(world.store, np.concatenate([clients[c] for c in COHORT]), runtime.tokens.encode)
    loss = (runtime.model.losses(batch) / batch.token_lengths).mean()
    grads = dict(zip(params, torch.autograd.grad(loss, parameters), strict=True))
    step = {name: p - after.params[name] for name, p in params.items()}
    assert relative(flat(step), 0.3 * flat(grads)) <= 1e-10


def test_fedavg_of_one_client_is_that_client_s_model(world: World, pool: LocalPool, params: Tensors) -> None:
    state = start_of(fedavg(EXACT), params)
    after, _ = fedavg(EXACT).round(state, COHORT[:1], pool)
    local = pool.worker.runtime.parameters  # as the client left them
    for name, p in after.params.items():
        torch.testing.assert_close(p, local[name].detach(), rtol=1e-15, atol=1e-15)


def start_of(algorithm: FedAvg, params: Tensors):  # type: ignore[no-untyped-def]
    return replace(algorithm.init(params), seed=SEED)


def test_fedavg_is_the_mean_of_the_clients_models_by_utterances(pool: LocalPool, params: Tensors) -> None:
    state = start_of(fedavg(EXACT), params)
    after, _ = fedavg(EXACT).round(state, COHORT, pool)
    alone = [flat(fedavg(EXACT).round(state, [client], pool)[0].params) for client in COHORT]
    expected = (5 * alone[0] + 4 * alone[1] + 5 * alone[2]) / 14
    assert relative(flat(after.params), expected) <= 1e-14


def test_dga_weights_are_the_softmax_of_minus_beta_times_the_reported_losses(
    pool: LocalPool, params: Tensors
) -> None:
    beta = 3.0
    algorithm, watched = dga(EXACT, beta, Sgd()), observed(pool, COHORT)
    state = start_of(algorithm, params)
    after, _ = algorithm.round(state, COHORT, watched)
    losses = torch.tensor([watched.clients[client]["loss"] for client in COHORT], dtype=torch.float64)
    weights = torch.softmax(-beta * losses, dim=0)
    noted = [watched.clients[client]["weight"] for client in COHORT]
    assert noted == pytest.approx(weights.tolist(), rel=1e-12)
    alone = torch.stack([flat(algorithm.round(state, [client], pool)[0].params) for client in COHORT])
    assert relative(flat(after.params), weights @ alone) <= 1e-13


def test_bmuf_filters_the_mean_by_block_momentum(pool: LocalPool, params: Tensors) -> None:
    """Chen and Huo 2016: Δ(t) = η Δ(t−1) + ζ G(t), W(t) = W(t−1) + Δ(t), with ζ = 1."""
    algorithm = bmuf(EXACT, block_momentum=0.5)
    zero = start_of(algorithm, params)
    one, _ = algorithm.round(zero, COHORT, pool)
    two, _ = algorithm.round(one, COHORT, pool)
    plain = FedAvg(EXACT, weighting=Uniform())
    mean, _ = plain.round(replace(one, opt=None), COHORT, pool)
    block = flat(mean.params) - flat(one.params)
    expected = flat(one.params) + block + 0.5 * (flat(one.params) - flat(zero.params))
    assert relative(flat(two.params), expected) <= 1e-13


class Recorder:
    """A pool without clients: remembers tasks and answers with a fixed delta."""

    def __init__(self) -> None:
        self.tasks: list[Task] = []

    def reduce(self, task: Task, cohort, weigh) -> Update:  # type: ignore[no-untyped-def]
        self.tasks.append(task)
        ones = {name: torch.ones_like(tensor) for name, tensor in task.tensors.items()}
        report = Report(cohort[0], {"loss": 1.0, "num_utterances": 1.0})
        return Update(ones, weigh(report), (report,))

    def collect(self, task: Task, cohort):  # type: ignore[no-untyped-def]
        raise NotImplementedError


def test_schedules_of_both_tiers_reach_the_client_and_the_server() -> None:
    algorithm = FedAvg(
        LocalTraining(lr=0.4),
        client_schedule=Step(every=1, factor=0.5),
        server=Sgd(lr=2.0),
        server_schedule=Cosine(rounds=3),
    )
    pool, state = Recorder(), algorithm.init({"w": torch.zeros(1, dtype=torch.float64)})
    server = [2.0 * (1 + math.cos(math.pi * r / 3)) / 2 for r in range(3)]
    for round in range(3):
        before = state.params["w"]
        state, metrics = algorithm.round(state, ["a"], pool)
        assert pool.tasks[round].config["lr"] == metrics["client_lr"] == 0.4 * 0.5**round
        assert pool.tasks[round].config["round"] == round
        assert float(before - state.params["w"]) == pytest.approx(server[round])
        assert metrics["server_lr"] == pytest.approx(server[round])


def test_the_client_s_step_shrinks_with_its_schedule(pool: LocalPool, params: Tensors) -> None:
    one_step = LocalTraining(lr=0.1, steps=1, batch_seconds=0.0, clip_norm=0.0)
    algorithm = FedAvg(one_step, client_schedule=Step(every=1, factor=0.25))
    state = start_of(algorithm, params)
    deltas = []
    for round in (0, 1):
        after, _ = algorithm.round(replace(state, round=round), COHORT, pool)
        deltas.append(flat(params) - flat(after.params))
    assert relative(4 * deltas[1], deltas[0]) <= 1e-12


def test_every_round_and_every_seed_has_its_own_task_seed(params: Tensors) -> None:
    algorithm, pool = fedavg(), Recorder()
    for round in (0, 1):
        for seed in (0, 1):
            algorithm.round(replace(algorithm.init(params), round=round, seed=seed), ["a"], pool)
    assert len({task.config["seed"] for task in pool.tasks}) == 4


def test_a_task_carries_numbers_and_tensors_only(params: Tensors) -> None:
    pool = Recorder()
    fedavg().round(fedavg().init(params), ["a"], pool)
    assert all(isinstance(value, int | float | str | bool | None) for value in pool.tasks[0].config.values())


def test_a_pattern_that_matches_nothing_is_refused_with_what_there_is(params: Tensors) -> None:
    with pytest.raises(ValueError, match=r"'decoder\.\*'; names begin with encoder, output"):
        FedAvg(trainable=("encoder.*", "decoder.*")).init(params)


def test_patterns_choose_parameters_by_name() -> None:
    params = {name: torch.zeros(1) for name in ("encoder.a", "encoder.b", "output.weight")}
    assert list(select(params, ["output.*", "*.b"])) == ["encoder.b", "output.weight"]


def test_when_nobody_answers_there_is_no_step(world: World) -> None:
    from world import ALGORITHMS, Broken

    case = ALGORITHMS["fedavg"]
    pool = LocalPool(Broken(world.worker(world.clients()), frozenset(COHORT)))
    with pytest.raises(ValueError, match="no client's update arrived"):
        case.algorithm.round(start(case, world.params()), COHORT, pool)


def test_the_order_of_the_cohort_does_not_matter_beyond_rounding(pool: LocalPool, params: Tensors) -> None:
    algorithm = FedAvg(EXACT, weighting=ByExamples())
    state = start_of(algorithm, params)
    one, other = (algorithm.round(state, order, pool)[0] for order in (COHORT, COHORT[::-1]))
    assert relative(flat(one.params), flat(other.params)) <= 1e-14
