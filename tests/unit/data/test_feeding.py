from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from world import World

from antiphon.data.batches import Batch, Resident, Streamed, ahead, feeder

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


def test_ahead_gives_the_same_items_in_the_same_order() -> None:
    assert list(ahead(iter(range(100)), depth=3)) == list(range(100))
    assert list(ahead(iter(()))) == []


def test_ahead_makes_the_next_item_while_this_one_is_used() -> None:
    made: list[int] = []
    second = threading.Event()

    def make() -> Iterator[int]:
        for number in range(3):
            made.append(number)
            if number == 1:
                second.set()
            yield number

    items = ahead(make(), depth=1)
    assert next(items) == 0
    assert second.wait(timeout=10)
    assert list(items) == [1, 2]


def test_ahead_hands_on_what_went_wrong_where_it_would_have_happened() -> None:
    def broken() -> Iterator[int]:
        yield 1
        raise OSError("frames.f16 is gone")

    items = ahead(broken())
    assert next(items) == 1
    with pytest.raises(OSError, match=r"frames\.f16 is gone"):
        next(items)


def test_ahead_ends_its_thread_when_nobody_wants_more() -> None:
    before = threading.active_count()
    items = ahead(iter(range(1000)), depth=2)
    assert next(items) == 0
    items.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before
