"""Many clients at once on a GPU: CUDA graphs, float32 and bfloat16."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from runtimes import CONFIGS, LOCAL, tasks, unequal
from torch import Tensor
from world import MASKS, World

from antiphon.clients.client import Client, ClientRuntime
from antiphon.clients.stacked.client_stack import MAX_GRAPHS, Stack
from antiphon.clients.stacked.grouping import LAUNCH, Launch, Plan
from antiphon.clients.stacked.stacked_rows import StackedBatch
from antiphon.clients.stacked.stacked_worker import StackedWorker, stacked_batches
from antiphon.clients.worker import SpeechWorker
from antiphon.core import Task
from antiphon.tasks.local_training import LocalSteps, LocalTraining


def test_shapes_that_take_turns_do_not_drive_out_each_other_s_graphs(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    captured = []

    class Recorded:
        """Stands for a CUDA graph, which only a GPU has."""

        def __init__(self, stack: Stack, given: StackedBatch, local: LocalTraining) -> None:
            self.stack, self.local = stack, local
            captured.append(given.batch.features.shape)

        def replay(self, given: StackedBatch, rate: Tensor) -> Tensor:
            return self.stack._step(given, rate, self.local)

    monkeypatch.setattr("antiphon.clients.stacked.client_stack.Captured", Recorded)
    runtime, clients = world.runtime("ctc"), unequal(world)
    local = replace(LOCAL, epochs=1, batch_seconds=0.0)
    wanted = LocalSteps(runtime.base, local, seed=1)
    plans = [
        Plan(c := Client(n, own, runtime), list(c.steps(local, 1)), wanted) for n, own in clients.items()
    ]
    stack = Stack(runtime, runtime.base, size=len(plans))
    stack.graphs = True
    several = [Launch(0, np.arange(count)) for count in range(1, len(plans) + 1)]
    batches = list(stacked_batches(runtime, plans, several))
    assert len({batch.share.shape[0] for batch in batches}) > MAX_GRAPHS
    for _ in range(8):
        for batch in batches:
            stack.step(batch, local)
    assert len(captured) == len(set(captured)) == MAX_GRAPHS
    for _ in range(20):  # one that comes far more often takes the place of another
        stack.step(batches[-1], local)
    assert len(captured) == MAX_GRAPHS + 1
    assert captured[-1] == batches[-1].batch.features.shape


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("launch", [3, LAUNCH])
def test_on_a_gpu_in_float32_each_client_s_delta_is_what_it_gets_alone(
    world: World, name: str, graphs: bool, launch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    monkeypatch.setattr("antiphon.clients.stacked.grouping.LAUNCH", launch)
    torch.manual_seed(3)
    model = CONFIGS[name].build(world.store.dim, world.tokens.size)
    base = {name: p.detach().clone().cuda() for name, p in model.named_parameters()}
    runtime = ClientRuntime(world.store, world.tokens, model, base, MASKS, "cuda")
    clients = unequal(world)
    names = sorted(clients)
    worker = StackedWorker(runtime, clients, graphs=graphs)
    for seed in range(4):  # shapes repeat, graphs are captured and replayed
        config = {**LOCAL.to_task(), "lr": 0.1 * (1 + seed), "round": 0, "seed": 11}
        task = Task("train", {name: tensor + 0.01 * seed for name, tensor in base.items()}, config)
        alone = SpeechWorker(runtime, clients).run(task, names)
        for stacked, update in zip(worker.run(task, names), alone, strict=True):
            off = sum(float((stacked.mean[n] - t).square().sum()) for n, t in update.mean.items())
            assert off**0.5 <= 1e-4 * update.reports[0].stats["norm"]
    stack = worker.trainer(runtime)._stack
    assert stack is not None
    assert bool(stack._graphs) == graphs


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", CONFIGS)
def test_in_bfloat16_parameters_stay_float32_and_clients_get_about_the_same(world: World, name: str) -> None:
    torch.manual_seed(3)
    model = CONFIGS[name].build(world.store.dim, world.tokens.size)
    base = {name: p.detach().clone().cuda() for name, p in model.named_parameters()}
    whole = ClientRuntime(world.store, world.tokens, model, base, MASKS, "cuda")
    half = ClientRuntime(world.store, world.tokens, model, base, MASKS, "cuda", precision="bfloat16")
    clients = unequal(world)
    names, task = sorted(clients), tasks(base, replace(LOCAL, lr=0.01))
    exact = list(SpeechWorker(whole, clients).run(task, names))
    for worker in (SpeechWorker(half, clients), StackedWorker(half, clients)):
        for rough, update in zip(worker.run(task, names), exact, strict=True):
            assert {tensor.dtype for tensor in rough.mean.values()} == {torch.float32}
            off = sum(float((rough.mean[n] - t).square().sum()) for n, t in update.mean.items()) ** 0.5
            assert 0 < off < 0.05 * update.reports[0].stats["norm"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", CONFIGS)
def test_in_tf32_clients_get_about_the_same_and_the_same_bits_every_time(world: World, name: str) -> None:
    torch.manual_seed(3)
    model = CONFIGS[name].build(world.store.dim, world.tokens.size)
    base = {name: p.detach().clone().cuda() for name, p in model.named_parameters()}
    whole = ClientRuntime(world.store, world.tokens, model, base, MASKS, "cuda")
    short = ClientRuntime(world.store, world.tokens, model, base, MASKS, "cuda", precision="tf32")
    clients = unequal(world)
    names, task = sorted(clients), tasks(base, replace(LOCAL, lr=0.01))
    exact = list(SpeechWorker(whole, clients).run(task, names))
    for worker in (SpeechWorker(short, clients), StackedWorker(short, clients)):
        first, again = (list(worker.run(task, names)) for _ in range(2))
        for rough, same, update in zip(first, again, exact, strict=True):
            off = sum(float((rough.mean[n] - t).square().sum()) for n, t in update.mean.items()) ** 0.5
            assert 0 < off < 0.01 * update.reports[0].stats["norm"]
            assert all(torch.equal(rough.mean[n], same.mean[n]) for n in rough.mean)
    assert not torch.backends.cuda.matmul.allow_tf32
