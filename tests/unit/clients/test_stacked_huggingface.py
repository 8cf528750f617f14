"""Hugging Face models, many clients at once: each gets what it would get alone."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tiny_folders import ALL, write_folder
from world import MASKS, Doubled, World

from antiphon.clients.client import Bench
from antiphon.clients.stacked import StackedWorker
from antiphon.clients.worker import SpeechWorker
from antiphon.core import Task
from antiphon.data.corpus import Corpus
from antiphon.data.huggingface import HuggingFaceFeatures, HuggingFaceTokensConfig
from antiphon.data.store import compute_features
from antiphon.local import LocalTraining
from antiphon.models.huggingface import HuggingFaceConfig
from antiphon.models.lora import LoraAdapter

LOCAL = LocalTraining(lr=0.3, epochs=2, batch_seconds=1.0)


def double_bench(world: World, folder: str, name: str, lora: LoraAdapter | None) -> Bench:
    """In float64, with dropout and masks in time; frozen parameters are no part of the base."""
    store = compute_features(Corpus.open(world.corpus), HuggingFaceFeatures(folder))
    tokens = HuggingFaceTokensConfig(folder, capitals=name not in ("whisper", "moonshine")).fit([], None)
    torch.manual_seed(3)
    model: Any = HuggingFaceConfig(folder, lora).build(store.dim, tokens.size).double()
    base = {n: p.detach().clone() for n, p in model.named_parameters() if p.requires_grad}
    bench = Bench(store, tokens, model, base, replace(MASKS, num_frequency_masks=0))
    bench.feed = Doubled(bench.feed)
    return bench


def unequal(bench: Bench) -> dict[str, np.ndarray]:
    """Four clients of 1 to 4 utterances: their numbers of steps differ too."""
    speakers = bench.store.speakers("pool")[:4]
    return {name: bench.store.where("pool", [name])[: 1 + n] for n, name in enumerate(speakers)}


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("lora", [None, LoraAdapter(rank=2)], ids=["full", "lora"])
def test_each_client_s_delta_is_what_it_gets_alone(
    world: World,
    name: str,
    lora: LoraAdapter | None,
    tmp_path_factory: pytest.TempPathFactory,
    caplog: pytest.LogCaptureFixture,
) -> None:
    folder = write_folder(tmp_path_factory.mktemp("folder"), name)
    bench = double_bench(world, str(folder), name, lora)
    clients = unequal(bench)
    task = Task("train", bench.base, {**vars(LOCAL), "round": 0, "seed": 11})
    alone = list(SpeechWorker(bench, clients).run(task, list(clients)))
    with caplog.at_level(logging.WARNING, "antiphon"):
        stacked = list(StackedWorker(bench, clients).run(task, list(clients)))
    assert not caplog.text  # nothing fell back to one after another
    assert len({update.reports[0].stats["num_steps"] for update in alone}) > 1
    for left, right in zip(stacked, alone, strict=True):
        assert left.reports[0].stats == pytest.approx(right.reports[0].stats, rel=1e-10)
        assert left.mean.keys() == right.mean.keys() == bench.base.keys()
        for tensor, expected in zip(left.mean.values(), right.mean.values(), strict=True):
            torch.testing.assert_close(tensor, expected, rtol=1e-10, atol=1e-10)
