"""Optimisers of clients: values computed by hand, torch's own classes, rows, and tasks that carry them."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from runtimes import CONFIGS, assert_same, double_runtime, tasks, unequal
from runtimes import LOCAL as STACKED
from textbook import EXACT, ExactClients
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer
from world import World, recording

from antiphon import config
from antiphon.algorithms.central import Central
from antiphon.algorithms.fedavg import FedAvg
from antiphon.algorithms.scaffold import Scaffold
from antiphon.clients.client import Client, ClientRuntime
from antiphon.clients.stacked.client_stack import Stack
from antiphon.clients.stacked.footprint import BUFFERED, COPIES, HELD, WAITING, Footprint
from antiphon.clients.stacked.grouping import Plan
from antiphon.clients.stacked.stacked_worker import StackedTrainer, StackedWorker
from antiphon.clients.train import local_sgd
from antiphon.clients.worker import SpeechWorker
from antiphon.core import Tensors
from antiphon.pools.local import LocalPool
from antiphon.seeding import derive
from antiphon.server.optimizers import Sgd
from antiphon.server.weighting import Uniform
from antiphon.tasks.client_optimizers import (
    CLIENT_OPTIMIZERS,
    ClientAdam,
    ClientAdamW,
    ClientMomentum,
    ClientOptimizer,
    ClientSgd,
)
from antiphon.tasks.local_training import LocalSteps, LocalTraining, seed_of

OTHERS: list[ClientOptimizer] = [ClientMomentum(0.8), ClientAdam(), ClientAdamW(weight_decay=0.3)]


def torchs(optimizer: Any, parameters: list[Tensor], lr: float) -> Optimizer:
    """Torch's class with the same settings."""
    if isinstance(optimizer, ClientSgd | ClientMomentum):
        return SGD(parameters, lr, momentum=getattr(optimizer, "momentum", 0.0))
    kept = {"betas": (optimizer.beta1, optimizer.beta2), "eps": optimizer.epsilon, "foreach": False}
    if isinstance(optimizer, ClientAdam):
        return Adam(parameters, lr, **kept)
    return AdamW(parameters, lr, weight_decay=optimizer.weight_decay, **kept)


def path(optimizer: ClientOptimizer, gradients: Sequence[Sequence[float]], lr: float) -> list[float]:
    """The parameter after steps along gradients, from 1."""
    w = torch.tensor([1.0], dtype=torch.float64)
    moments = [torch.zeros_like(w) for _ in range(optimizer.num_moments)]
    for number, gradient in enumerate(gradients, start=1):
        w = w - lr * optimizer.direction(w, torch.tensor(gradient, dtype=torch.float64), moments, number)
    return w.tolist()


# --- Steps ----------------------------------------------------------------------------------------


def test_two_steps_of_momentum_by_hand() -> None:
    """m is 2, then 0.5·2 + 4 = 5: 1 − 0.1·2 − 0.1·5."""
    assert path(ClientMomentum(0.5), [[2.0], [4.0]], lr=0.1) == pytest.approx([0.3])


def test_two_steps_of_adam_by_hand() -> None:
    """β1 = 0.5, β2 = 0.75, ε = 1, gradients 2 and 4.

    m = 1, v = 1: d = (1/0.5) / (√(1/0.25) + 1) = 2/3. Then m = 2.5, v = 4.75, corrections 0.75 and 0.4375:
    d = (10/3) / (√(76/7) + 1).
    """
    second = (10 / 3) / ((76 / 7) ** 0.5 + 1)
    found = path(ClientAdam(0.5, 0.75, 1.0), [[2.0], [4.0]], lr=0.1)
    assert found == pytest.approx([1 - 0.1 * (2 / 3 + second)], rel=1e-12)


def test_the_decay_of_adamw_is_a_share_of_the_parameter_before_the_step() -> None:
    """One step of Adam with ε ≈ 0 is `lr` long: 1 − 0.1·(1 + 0.5·1)."""
    assert path(ClientAdamW(epsilon=1e-15, weight_decay=0.5), [[3.0]], lr=0.1) == pytest.approx([0.85])


@pytest.mark.parametrize("optimizer", [ClientSgd(), *OTHERS], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_steps_are_those_of_torch(optimizer: ClientOptimizer, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(4)
    w = torch.randn(6, 5, generator=generator, dtype=dtype)
    reference = w.clone().requires_grad_()
    theirs = torchs(optimizer, [reference], lr=0.05)
    moments = [torch.zeros_like(w) for _ in range(optimizer.num_moments)]
    for number in range(1, 21):
        reference.grad = torch.randn(6, 5, generator=generator, dtype=dtype)
        w = w - 0.05 * optimizer.direction(w, reference.grad.clone(), moments, number)
        theirs.step()
        torch.testing.assert_close(w, reference.detach(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("optimizer", OTHERS, ids=str)
def test_rows_at_different_steps_are_what_each_is_alone(optimizer: ClientOptimizer) -> None:
    """In float32, where 1 − 0.999^t needs its float64."""
    generator = torch.Generator().manual_seed(5)
    draw = [torch.randn(3, 7, generator=generator) for _ in range(2 + optimizer.num_moments)]
    parameters, gradients, *moments = [draw[0], draw[1], *(tensor.abs() for tensor in draw[2:])]
    taken = torch.tensor([[1.0], [2.0], [50.0]], dtype=torch.float64)
    alone = [
        optimizer.direction(parameters[i], gradients[i], [m[i].clone() for m in moments], int(taken[i]))
        for i in range(3)
    ]
    found = optimizer.direction(parameters, gradients, moments, taken)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, torch.stack(alone), rtol=1e-6, atol=1e-6)


# --- Clients --------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", [ClientSgd(), *OTHERS], ids=str)
def test_a_client_takes_the_steps_of_torch_with_correction_proximal_term_and_clipping(
    world: World, tmp_path: Path, optimizer: ClientOptimizer
) -> None:
    clients = ExactClients(world, tmp_path)
    name, local = clients.names[0], replace(EXACT, lr=0.01, steps=4, proximal=0.3, clip_norm=0.4)
    correction = {n: torch.full_like(p, 0.01) for n, p in clients.params.items()}
    model = {n: p.clone() for n, p in clients.params.items()}
    theirs = torchs(optimizer, list(model.values()), lr=0.01)
    for _ in range(4):
        for n, gradient in clients.gradient(model, name).items():
            model[n].grad = gradient + correction[n] + 0.3 * (model[n] - clients.params[n])
        torch.nn.utils.clip_grad_norm_(list(model.values()), 0.4, error_if_nonfinite=True)
        theirs.step()
    client = Client(name, world.clients()[name], world.exact_runtime())
    steps = LocalSteps(clients.params, replace(local, optimizer=optimizer), seed=1, correction=correction)
    delta = local_sgd(client, steps).delta
    for n, p in clients.params.items():
        torch.testing.assert_close(p - delta[n], model[n], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "optimizer"), [*(("ctc", one) for one in OTHERS), ("las", OTHERS[-1])], ids=str
)
def test_stacked_clients_get_what_each_gets_alone(
    world: World,
    name: str,
    optimizer: ClientOptimizer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With launches of some clients at some steps, whose rows of moments are copied out and back."""
    monkeypatch.setattr("antiphon.clients.stacked.grouping.LAUNCH", 3)
    runtime, clients = double_runtime(world, CONFIGS[name]), unequal(world)
    local = replace(STACKED, lr=0.01, proximal=0.5, clip_norm=0.1, optimizer=optimizer)
    task, names = tasks(runtime.base, local), list(clients)
    alone = list(SpeechWorker(runtime, clients).run(task, names))
    assert len({update.reports[0].stats["num_steps"] for update in alone}) > 1
    worker = StackedWorker(runtime, clients)
    with caplog.at_level(logging.WARNING, "antiphon"):
        for _ in range(2):  # moments of the first task are forgotten
            assert_same(worker.run(task, names), alone, 1e-9)
        plain = tasks(runtime.base, STACKED)
        assert_same(worker.run(plain, names), SpeechWorker(runtime, clients).run(plain, names), 1e-9)
    assert not caplog.text  # nothing fell back to one after another


def test_stacked_corrections_come_before_the_moments(world: World) -> None:
    runtime, clients = double_runtime(world, CONFIGS["ctc"]), world.clients()
    local = replace(STACKED, lr=0.01, optimizer=ClientAdam())
    people = [Client(name, own, runtime) for name, own in sorted(clients.items())[:3]]
    wanted = [
        LocalSteps(
            runtime.base,
            local,
            seed=5,
            correction={n: torch.full_like(p, 0.1 * number) for n, p in runtime.base.items()},
        )
        for number in range(3)
    ]
    alone = [local_sgd(client, steps) for client, steps in zip(people, wanted, strict=True)]
    plans = [
        Plan(client, list(client.steps(local, 5)), steps)
        for client, steps in zip(people, wanted, strict=True)
    ]
    together = StackedTrainer(runtime, 256, graphs=False).train(plans, Footprint())
    for one, other in zip(together, alone, strict=True):
        for name, tensor in other.delta.items():
            torch.testing.assert_close(one.delta[name], tensor, rtol=1e-6, atol=1e-7)


def test_moments_take_memory_of_a_launch_and_between_launches() -> None:
    plain = Footprint(room=1000.0, update=1.0)
    adam = replace(plain, num_moments=2)
    assert plain.max_in_training(10**6) == int(HELD * 1000 / WAITING)
    assert adam.max_in_training(10**6) == int(HELD * 1000 / (WAITING + 2))
    most = int((1 - HELD) * 1000 / (COPIES + 2 * BUFFERED))
    shapes = torch.ones(2, 2).numpy()
    assert adam.fits(torch.tensor([most, most + 1]).numpy(), shapes).tolist() == [True, False]


def test_a_stack_forgets_in_the_memory_that_graphs_use(world: World) -> None:
    runtime: ClientRuntime = world.runtime("ctc")
    stack = Stack(runtime, runtime.base, size=2)
    adam = LocalSteps(runtime.base, replace(STACKED, optimizer=ClientAdam()), seed=1)
    stack.restart([adam, adam])
    kept = [table.data_ptr() for table in stack.moments]
    for table in (*stack.moments, stack.taken):
        table.fill_(3.0)
    stack.restart([adam, adam])
    assert [table.data_ptr() for table in stack.moments] == kept
    assert not any(bool(table.any()) for table in (*stack.moments, stack.taken))


# --- Tasks and settings ---------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", [ClientSgd(), *OTHERS], ids=str)
def test_a_task_carries_the_optimizer_as_text(optimizer: ClientOptimizer) -> None:
    local = LocalTraining(lr=0.01, optimizer=optimizer)
    settings = local.to_task()
    assert LocalTraining.from_task(json.loads(json.dumps(settings))) == local
    assert ("optimizer" in settings) == (optimizer != ClientSgd())


def test_a_task_of_plain_sgd_is_that_of_older_versions() -> None:
    assert LocalTraining().to_task() == {
        "lr": 0.05,
        "epochs": 1,
        "steps": 0,
        "batch_seconds": 60.0,
        "clip_norm": 1.0,
        "proximal": 0.0,
    }


@pytest.mark.parametrize("written", ['{"tests.evil:Class":{}}', '{"adam":{"momentum":0.9}}', "[]", "7"])
def test_a_task_with_another_optimizer_is_refused(written: str) -> None:
    with pytest.raises(ValueError, match="optimizer"):
        LocalTraining.from_task({**LocalTraining().to_task(), "optimizer": written})


def test_settings_choose_an_optimizer_by_name() -> None:
    assert list(CLIENT_OPTIMIZERS)[:4] == ["sgd", "momentum", "adam", "adamw"]
    read = config.from_dict(LocalTraining, {"lr": 0.001, "optimizer": {"adam": {"beta2": 0.98}}})
    assert read == LocalTraining(lr=0.001, optimizer=ClientAdam(beta2=0.98))
    assert config.from_dict(LocalTraining, {"lr": 0.1}) == LocalTraining(lr=0.1)
    assert config.override(FedAvg(), ["local.optimizer=adamw", "local.optimizer.weight_decay=0.1"]) == FedAvg(
        LocalTraining(optimizer=ClientAdamW(weight_decay=0.1))
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"adam": {"momentum": 0.9}}, r"optimizer: unknown key 'momentum'; .*beta1"),
        ({"sgd": {"momentum": 0.9}}, "unknown key 'momentum'"),
        ({"adam": {"weight_decay": 0.1}}, "unknown key 'weight_decay'"),
        ({"momentum": {"momentum": 1.0}}, "momentum must be at least 0 and below 1, not 1.0"),
        ({"adam": {"beta2": 1.0}}, "beta2 must be at least 0 and below 1"),
        ({"adamw": {"epsilon": 0.0}}, "epsilon must be above 0"),
        ({"adamw": {"weight_decay": -1.0}}, "weight_decay must not be negative"),
        ({"lamb": {}}, "unknown choice 'lamb'.*adam"),
        ({"package.module:Class": {}}, "unknown choice 'package.module:Class'"),
    ],
)
def test_settings_that_belong_to_another_optimizer_or_make_no_sense_are_refused(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        config.from_dict(LocalTraining, {"optimizer": settings})


def test_algorithms_that_need_plain_sgd_refuse_another_optimizer() -> None:
    with pytest.raises(ValueError, match=r"mean gradients of SGD steps: leave local.optimizer at sgd"):
        Scaffold(LocalTraining(optimizer=ClientMomentum()))
    with pytest.raises(ValueError, match="an AdamW of its own"):
        Central(LocalTraining(optimizer=ClientAdam()))


def test_a_round_of_clients_with_adam_is_the_mean_of_their_models(world: World, tmp_path: Path) -> None:
    clients = ExactClients(world, tmp_path)
    local = replace(EXACT, lr=0.01, optimizer=ClientAdam())
    algorithm = FedAvg(local, weighting=Uniform(), server=Sgd())
    cohort = clients.names[:3]
    state = algorithm.init(clients.params).with_seed(derive(1, "run"))
    after, _ = algorithm.round(state, cohort, recording(LocalPool(clients.worker), cohort))
    task = algorithm.task(state)
    runtime = world.exact_runtime()

    def end(name: str) -> Tensors:
        client = Client(name, world.clients()[name], runtime)
        delta = local_sgd(client, LocalSteps(clients.params, local, seed_of(task))).delta
        return {n: p - delta[n] for n, p in clients.params.items()}

    ends = [end(name) for name in cohort]
    for n, p in after.params.items():
        torch.testing.assert_close(p, sum(model[n] for model in ends) / 3, rtol=1e-9, atol=1e-9)
