from __future__ import annotations

import numpy as np
import pytest
import torch
from world import World

from antiphon.data.batches import Batch, Resident, Streamed, feeder

CPU = torch.device("cpu")


def same(one: Batch, other: Batch) -> None:
    assert torch.equal(one.features, other.features)
    assert one.features.dtype == other.features.dtype
    assert torch.equal(one.feature_lengths, other.feature_lengths)
    assert torch.equal(one.tokens, other.tokens)
    assert one.tokens.dtype == other.tokens.dtype
    assert torch.equal(one.token_lengths, other.token_lengths)
    assert one.indices == other.indices


@pytest.mark.parametrize("places", [[0], [3, 1, 2], [5, -1, 7, -1], [-1]])
def test_a_resident_store_gives_the_batches_that_are_read(world: World, places: list[int]) -> None:
    encode = world.tokens.encode
    resident, streamed = Resident(world.store, encode, CPU), Streamed(world.store, encode, CPU)
    same(resident(np.array(places)), streamed(np.array(places)))
    plan = [np.array(places), np.array([2])]
    for one, other in zip(resident.one_by_one(plan), streamed.one_by_one(plan), strict=True):
        same(one, other)


def test_without_a_gpu_batches_are_read_from_the_store(world: World) -> None:
    assert isinstance(feeder(world.store, world.tokens.encode, CPU), Streamed)
