"""Benches, tasks and clients of unequal size, and updates that must be the same stacked and alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from world import MASKS, MODELS, Doubled, World

from antiphon.clients.client import ClientRuntime
from antiphon.core import Task, Tensors, Update
from antiphon.lm.neural_lm import TransformerLmConfig
from antiphon.models.blstm import BlstmConfig
from antiphon.models.ctc import CtcConfig
from antiphon.models.model import ModelConfig
from antiphon.tasks.local_training import LocalTraining
from antiphon.tasks.pseudo_labels import Labelling

CONFIGS: dict[str, ModelConfig] = {
    **MODELS,
    "ctc on a blstm": CtcConfig(BlstmConfig(dim=5, num_layers=2, stack=2)),
    "language model": TransformerLmConfig(8, num_layers=1, num_heads=2, feed_forward_dim=12, dropout=0.2),
    "joint las": replace(MODELS["las"], ctc_weight=0.3, label_smoothing=0.1),  # type: ignore[type-var]
}
LOCAL = LocalTraining(lr=0.3, epochs=2, batch_seconds=1.0)
HEARD = Labelling(num_hypotheses=3, width=4)


def double_runtime(world: World, config: ModelConfig) -> ClientRuntime:
    return _runtime(world, _drawn(world, config), torch.float64)


def talkative(world: World, config: Any = MODELS["ctc"], dtype: torch.dtype = torch.float64) -> ClientRuntime:
    """A runtime whose untrained model does not think that nothing was said."""
    model = _drawn(world, config)
    with torch.no_grad():
        model.output.bias[0] -= 1.0  # type: ignore[operator, index]
    return _runtime(world, model, dtype)


def _drawn(world: World, config: ModelConfig) -> nn.Module:
    torch.manual_seed(3)
    model = config.build(world.store.dim, world.tokens.size)
    assert isinstance(model, nn.Module)
    return model


def _runtime(world: World, model: Any, dtype: torch.dtype) -> ClientRuntime:
    model.to(dtype)
    base = {name: p.detach().clone() for name, p in model.named_parameters()}
    runtime = ClientRuntime(world.store, world.tokens, model, base, MASKS)
    if dtype == torch.float64:
        runtime.feed = Doubled(runtime.feed)
    return runtime


def unequal(world: World) -> dict[str, np.ndarray]:
    """Clients of 1 to all utterances of a speaker; their numbers of steps differ too."""
    everyone = world.clients()
    return {name: own[: 1 + number % 5] for number, (name, own) in enumerate(sorted(everyone.items()))}


def tasks(tensors: Tensors, local: LocalTraining = LOCAL) -> Task:
    return Task("train", tensors, {**local.to_task(), "round": 0, "seed": 11})


def assert_same(stacked: Iterable[Update], alone: Iterable[Update], tolerance: float) -> None:
    for left, right in zip(stacked, alone, strict=True):
        assert left.reports[0].client == right.reports[0].client
        assert left.reports[0].stats == pytest.approx(right.reports[0].stats, rel=tolerance)
        for name, tensor in right.mean.items():
            torch.testing.assert_close(left.mean[name], tensor, rtol=tolerance, atol=tolerance)
