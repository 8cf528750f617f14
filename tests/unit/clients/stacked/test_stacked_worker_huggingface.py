"""Hugging Face models, many clients at once: each gets what it would get alone."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_folders import ALL, SEQ2SEQ, write_folder
from world import MASKS, Doubled, World

from antiphon.clients.client import ClientRuntime
from antiphon.clients.stacked.stacked_worker import StackedWorker
from antiphon.clients.worker import SpeechWorker
from antiphon.core import Task
from antiphon.data.corpus import Corpus
from antiphon.data.huggingface_folder import HuggingFaceFeatures, HuggingFaceTokensConfig
from antiphon.data.store import compute_features
from antiphon.models.huggingface.lora import LoraAdapter
from antiphon.models.huggingface.speech_models import HuggingFaceConfig
from antiphon.tasks.local_training import LocalTraining

LOCAL = LocalTraining(lr=0.3, epochs=2, batch_seconds=1.0)


FULL = [pytest.param(name, None, id=name) for name in ALL]
ADAPTED = [pytest.param(name, LoraAdapter(rank=2), id=f"{name} by lora") for name in ("wav2vec2", "whisper")]
each_model = pytest.mark.parametrize(("name", "lora"), FULL + ADAPTED)


def make_bench(
    world: World, folder: Path, name: str, lora: LoraAdapter | None, dtype: torch.dtype, device: str = "cpu"
) -> ClientRuntime:
    """With dropout and masks in time; frozen parameters are no part of the base."""
    store = compute_features(Corpus.open(world.corpus), HuggingFaceFeatures(str(folder)))
    tokens = HuggingFaceTokensConfig(str(folder), capitals=name not in SEQ2SEQ).fit([], None)
    torch.manual_seed(3)
    model: Any = HuggingFaceConfig(str(folder), lora).build(store.dim, tokens.size).to(device, dtype)
    base = {n: p.detach().clone() for n, p in model.named_parameters() if p.requires_grad}
    return ClientRuntime(store, tokens, model, base, replace(MASKS, num_frequency_masks=0), device)


def unequal(runtime: ClientRuntime) -> dict[str, np.ndarray]:
    """Four clients of 1 to 4 utterances: their numbers of steps differ too."""
    speakers = runtime.store.speakers("pool")[:4]
    return {name: runtime.store.where("pool", [name])[: 1 + n] for n, name in enumerate(speakers)}


@each_model
def test_each_client_s_delta_is_what_it_gets_alone(
    world: World,
    name: str,
    lora: LoraAdapter | None,
    tmp_path_factory: pytest.TempPathFactory,
    caplog: pytest.LogCaptureFixture,
) -> None:
    folder = write_folder(tmp_path_factory.mktemp("folder"), name)
    runtime = make_bench(world, folder, name, lora, torch.float64)
    runtime.feed = Doubled(runtime.feed)
    clients = unequal(runtime)
    task = Task("train", runtime.base, {**LOCAL.to_task(), "round": 0, "seed": 11})
    alone = list(SpeechWorker(runtime, clients).run(task, list(clients)))
    with caplog.at_level(logging.WARNING, "antiphon"):
        stacked = list(StackedWorker(runtime, clients).run(task, list(clients)))
    assert not caplog.text  # nothing fell back to one after another
    assert len({update.reports[0].stats["num_steps"] for update in alone}) > 1
    for left, right in zip(stacked, alone, strict=True):
        assert left.reports[0].stats == pytest.approx(right.reports[0].stats, rel=1e-10)
        assert left.mean.keys() == right.mean.keys() == runtime.base.keys()
        for tensor, expected in zip(left.mean.values(), right.mean.values(), strict=True):
            torch.testing.assert_close(tensor, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@each_model
def test_on_a_gpu_in_float32_with_graphs_each_client_s_delta_is_what_it_gets_alone(
    world: World,
    name: str,
    lora: LoraAdapter | None,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    runtime = make_bench(world, write_folder(tmp_path, name), name, lora, torch.float32, "cuda")
    clients = unequal(runtime)
    worker = StackedWorker(runtime, clients)
    for seed in range(4):  # shapes repeat, graphs are captured and replayed
        config = {**LOCAL.to_task(), "lr": 0.02 * (1 + seed), "round": 0, "seed": 11}
        task = Task("train", {n: tensor + 0.01 * seed for n, tensor in runtime.base.items()}, config)
        alone = SpeechWorker(runtime, clients).run(task, list(clients))
        with caplog.at_level(logging.WARNING, "antiphon"):
            for stacked, update in zip(worker.run(task, list(clients)), alone, strict=True):
                off = sum(float((stacked.mean[n] - t).square().sum()) for n, t in update.mean.items())
                assert off**0.5 <= 1e-3 * update.reports[0].stats["norm"]
    assert not caplog.text
    stack = worker.trainer(runtime)._stack
    assert stack is not None
    assert stack._graphs
