"""Updates with noise of their clients: sensitivity on the grid, shares, and no way around the noise."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from world import World

from antiphon.core import Task, Unusable, Update
from antiphon.pools.local import LocalPool
from antiphon.privacy.samplers import Seeded
from antiphon.server.weighting import Uniform
from antiphon.tasks.local_training import LocalTraining
from antiphon.tasks.noised_update import NoisedByClient, without_noise
from antiphon.tasks.update_clipping import ClippedByClient, EachLayer, EachLayerByDimension, WholeUpdate
from antiphon.tasks.views import through, views_of

CLIPPINGS = (WholeUpdate(0.3), EachLayer(0.3), EachLayerByDimension(0.3))


@settings(max_examples=200, deadline=None)
@given(
    values=st.lists(st.floats(-2, 2, width=32), min_size=1, max_size=40),
    clipping=st.sampled_from(CLIPPINGS),
    steps=st.sampled_from([1, 2, 3, 8, 64, 1000]),
)
def test_no_update_is_longer_than_the_bound_on_the_grid(
    values: list[float], clipping: Any, steps: int
) -> None:
    """In integers, after rounding, whatever the grid: one client moves the sum by at most `steps`."""
    cut = len(values) // 2
    update = {"b": torch.tensor(values[:cut]), "a": torch.tensor(values[cut:])}
    whole = NoisedByClient(clipping, steps, 1.0).on_grid(update)
    assert whole.dtype == np.int64
    assert sum(int(value) ** 2 for value in whole) <= steps**2


def test_an_update_that_rounding_makes_too_long_is_shrunk_and_others_are_rounded_to_the_nearest() -> None:
    """100 entries of 0.55 steps have norm 5.5, and 10 after rounding."""
    noised = NoisedByClient(WholeUpdate(1.0), 6, 1.0)
    assert noised.on_grid({"w": torch.full((100,), 0.55 / 6)}).tolist() == [0] * 100
    fine = NoisedByClient(WholeUpdate(1.0), 100, 1.0)
    assert fine.on_grid({"w": torch.tensor([0.114, -0.116, 0.5])}).tolist() == [11, -12, 50]


def test_a_long_update_uses_up_its_bound_on_a_fine_grid() -> None:
    update = {"w": torch.randn(5000, generator=torch.Generator().manual_seed(1))}
    whole = NoisedByClient(WholeUpdate(0.5), 2**20, 1.0).on_grid(update)
    assert 1 - 2e-6 < np.linalg.norm(whole) / 2**20 <= 1
    scaled = update["w"].double().numpy() * 2**20 / float(update["w"].norm())
    assert np.abs(whole - scaled).max() < 2.5


def test_an_update_that_is_not_finite_is_refused() -> None:
    with pytest.raises(Unusable, match="NaN or infinity"):
        NoisedByClient(WholeUpdate(0.5), 8, 1.0).on_grid({"w": torch.tensor([1.0, math.nan])})


def test_a_share_is_as_large_as_the_threshold_and_the_colluding_clients_ask_for() -> None:
    whole = np.zeros(150_000, dtype=np.int64)  # more than a block
    for threshold, colluding, want in ((4, 0, 500.0), (6, 2, 500.0), (4, 3, 1000.0)):
        noised = NoisedByClient(WholeUpdate(1.0), 1000, 1.0, colluding)
        noise = noised.noised(whole, threshold, Seeded(4).words(0))
        assert float(noise.std()) == pytest.approx(want, rel=0.01)
        assert not whole.any()  # the argument stays
    with pytest.raises(ValueError, match="no sure noise"):
        noised.noised(whole, 3, Seeded(4).words(0))


def test_noise_that_is_too_little_for_the_grid_is_refused() -> None:
    with pytest.raises(ValueError, match="too little for theorem 1"):
        NoisedByClient(WholeUpdate(1.0), 4, 0.5).noised(np.zeros(9, dtype=np.int64), 3, Seeded(0).words(0))


@pytest.mark.parametrize("change", [{"steps": 0}, {"multiplier": 0.0}, {"colluding": -1}])
def test_settings_without_noise_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="needs steps and a multiplier above 0"):
        NoisedByClient(WholeUpdate(1.0), **{"steps": 8, "multiplier": 1.0, **change})


def test_without_secure_aggregation_the_task_fails_before_any_work(world: World) -> None:
    config = {**LocalTraining(lr=0.05, batch_seconds=1.5).to_task(), "round": 0, "call": 0, "seed": 3}
    task = through(Task("train", world.params(), config), NoisedByClient(WholeUpdate(1.0), 8, 1.0))
    worker = world.worker(world.clients())

    class Watched:
        def run(self, task: Task, clients: Sequence[str]) -> Iterator[Update]:
            for update in worker.run(task, clients):
                assert update.is_empty
                yield update

    update = LocalPool(Watched()).reduce(task, list(world.clients())[:2], Uniform())
    assert update.is_empty
    assert all("under secure aggregation only" in failure.reason for failure in update.failures)


def test_only_the_last_view_of_a_task_is_taken_as_noise() -> None:
    noise, clip = NoisedByClient(WholeUpdate(1.0), 8, 1.0, 2), ClippedByClient(WholeUpdate(1.0))
    plain = Task("train", {}, {"round": 3})
    inner, found = without_noise(through(through(plain, clip), noise))
    assert found == noise
    assert views_of(inner) == [clip]
    for task in (plain, through(plain, clip), through(through(plain, noise), clip)):
        assert without_noise(task) == (task, None)
