"""Many clients at once, where one breaks or has nothing, or where the model or the memory forbids it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from runtimes import assert_same, double_runtime, tasks, unequal
from torch import Tensor, nn
from world import MODELS, World

from antiphon.clients.client import ClientRuntime
from antiphon.clients.stacked.client_stack import Stack
from antiphon.clients.stacked.stacked_rows import StackedBatch
from antiphon.clients.stacked.stacked_worker import StackedWorker
from antiphon.clients.worker import SpeechWorker
from antiphon.data.batches import Batch
from antiphon.tasks.local_training import LocalTraining


def test_where_many_do_not_fit_half_of_them_are_tried(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    runtime, clients = double_runtime(world, MODELS["ctc"]), unequal(world)
    names = list(clients)
    whole = list(StackedWorker(runtime, clients).run(tasks(runtime.base), names))
    step = Stack.step

    def cramped(stack: Stack, given: StackedBatch, local: LocalTraining) -> Tensor:
        if len(given.share) > 2:
            raise torch.OutOfMemoryError("a stand-in: CPUs are not asked")
        return step(stack, given, local)

    monkeypatch.setattr(Stack, "step", cramped)
    with caplog.at_level(logging.WARNING, "antiphon"):
        assert_same(StackedWorker(runtime, clients).run(tasks(runtime.base), names), whole, 1e-10)
    assert f"{len(names)} clients at once do not fit the GPU's memory: half of them" in caplog.text
    assert "one after another" not in caplog.text


def test_a_client_without_usable_speech_is_left_out_and_named(world: World) -> None:
    runtime, clients = double_runtime(world, MODELS["ctc"]), dict(world.clients())
    names = sorted(clients)[:3]
    clients[names[1]] = np.array([], dtype=np.int64)
    updates = list(StackedWorker(runtime, clients).run(tasks(runtime.base), names))
    assert [update.is_empty for update in updates] == [False, True, False]
    assert updates[1].failures[0].client == names[1]
    assert "no usable utterance" in updates[1].failures[0].reason


def test_a_client_that_breaks_is_found_and_the_others_are_trained(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    runtime, clients = double_runtime(world, MODELS["ctc"]), world.clients()
    names = sorted(clients)[:3]
    bad, feed = set(clients[names[1]].tolist()), runtime.feed

    class Broken:
        def __call__(self, places: np.ndarray) -> Batch:
            if bad & set(places.tolist()):
                raise OSError("cannot read frames.f16")
            return feed(places)

        def one_by_one(self, plan: Iterable[np.ndarray]) -> Iterator[Batch]:
            return map(self, plan)

    runtime.feed = Broken()
    with caplog.at_level(logging.WARNING, "antiphon"):
        updates = list(StackedWorker(runtime, clients).run(tasks(runtime.base), names))
    assert [update.is_empty for update in updates] == [False, True, False]
    assert updates[1].failures[0].reason == "OSError: cannot read frames.f16"
    assert "one after another" in caplog.text


def test_a_diverged_client_is_refused_and_does_not_touch_the_others(world: World) -> None:
    runtime, clients = double_runtime(world, MODELS["ctc"]), world.clients()
    names, feed = sorted(clients)[:3], runtime.feed
    loud = torch.tensor(clients[names[0]])

    class Loud:
        def __call__(self, places: np.ndarray) -> Batch:
            batch = feed(places)
            mine = torch.isin(torch.tensor(batch.indices), loud)[:, None, None]
            return replace(batch, features=batch.features.masked_fill(mine, torch.nan))

        def one_by_one(self, plan: Iterable[np.ndarray]) -> Iterator[Batch]:
            return map(self, plan)

    alone = list(SpeechWorker(runtime, clients).run(tasks(runtime.base), names[1:]))
    runtime.feed = Loud()
    updates = list(StackedWorker(runtime, clients).run(tasks(runtime.base), names))
    assert updates[0].failures[0].reason == "loss is nan"
    assert_same(updates[1:], alone, 1e-10)


def test_a_model_that_vmap_cannot_run_is_trained_one_after_another_and_the_log_says_why(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    class Peeking(nn.Module):
        """Looks at a value in its forward pass, which vmap forbids."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = MODELS["ctc"].build(world.store.dim, world.tokens.size)

        def forward(self, batch: Batch) -> tuple[Tensor, ...]:
            assert float(next(self.inner.parameters()).detach().sum()) < 1e9
            outputs: tuple[Tensor, ...] = self.inner(batch)
            return outputs

        def score(self, outputs: tuple[Tensor, ...], batch: Batch) -> Tensor:
            return self.inner.score(outputs, batch)

        def losses(self, batch: Batch) -> Tensor:
            return self.score(self(batch), batch)

        def fits(self, num_frames: int, tokens: list[int]) -> bool:
            return self.inner.fits(num_frames, tokens)

    torch.manual_seed(0)
    model = Peeking()
    base = {name: p.detach().clone() for name, p in model.named_parameters()}
    runtime, clients = ClientRuntime(world.store, world.tokens, model, base), world.clients()  # type: ignore[arg-type]
    names = sorted(clients)[:2]
    with caplog.at_level(logging.WARNING, "antiphon"):
        updates = list(StackedWorker(runtime, clients).run(tasks(base), names))
    alone = SpeechWorker(runtime, clients).run(tasks(base), names)
    assert_same(updates, alone, 0.0)
    assert "one after another, not stacked" in caplog.text
    assert "item()" in caplog.text
