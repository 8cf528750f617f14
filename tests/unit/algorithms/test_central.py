from __future__ import annotations

import numpy as np
import pytest
import torch
from world import World

from antiphon.algorithms.central import Central
from antiphon.core import Tensors
from antiphon.data.batches import collate
from antiphon.pools.local import LocalPool
from antiphon.tasks.local_training import LocalTraining

EVERYTHING = LocalTraining(lr=1e-3, steps=2, batch_seconds=0.0, clip_norm=0.0)


def test_two_rounds_of_two_steps_are_four_steps_of_adamw(world: World) -> None:
    runtime, indices = world.exact_runtime(), world.store.where("pool")
    params = world.params(dtype=torch.float64)
    algorithm, pool = Central(EVERYTHING), LocalPool(world.worker({"part/0": indices}, runtime))
    state = algorithm.init(params)
    for _ in range(2):
        state, _ = algorithm.round(state, ["part/0"], pool)
    assert state.opt["step"] == 4

    expected = adamw(world, params, indices, steps=4)
    for name, p in state.params.items():
        torch.testing.assert_close(p, expected[name], rtol=1e-9, atol=1e-12)


def adamw(world: World, params: Tensors, indices: np.ndarray, steps: int) -> Tensors:
    runtime = world.exact_runtime()
    parameters = runtime.load(params)
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.01, betas=(0.9, 0.98))
    batch = collate(world.store, indices, runtime.tokens.encode)
    for _ in range(steps):
        optimizer.zero_grad()
        (runtime.model.losses(batch) / batch.token_lengths).mean().backward()
        optimizer.step()
    return {name: p.detach() for name, p in runtime.parameters.items()}


def test_central_training_has_one_client(world: World) -> None:
    algorithm = Central()
    with pytest.raises(ValueError, match="one client that holds everything, not 2"):
        algorithm.round(algorithm.init(world.params()), ["a", "b"], LocalPool(world.worker({})))
