"""Clipping of updates: lengths, shares of layers, rounding, and clients that do not clip."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from antiphon import config
from antiphon.core import Report, Task, Tensors, Unusable, Update
from antiphon.pools.local import arrived
from antiphon.tasks.update_clipping import (
    Clipped,
    ClippedByClient,
    EachLayer,
    EachLayerByDimension,
    EachLayerByNorm,
    UpdateClipping,
    WholeUpdate,
    fits_grid,
)
from antiphon.tasks.views import enter, through, views_of


def by_norm(bound: float) -> EachLayerByNorm:
    return EachLayerByNorm(bound, (0.0, 3.0, 0.2, 1.0))  # b, half, scalar, w


KINDS = [WholeUpdate, EachLayer, EachLayerByDimension, by_norm]
BOUND = 0.7


def length(update: Tensors) -> float:
    return math.sqrt(sum(float(tensor.double().pow(2).sum()) for tensor in update.values()))


def drawn(seed: int, power: float = 0.0) -> Tensors:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"w": (7, 5), "b": (3,), "scalar": (), "half": (300,)}
    update = {
        name: torch.randn(shape, generator=generator) * 10.0**power * (1 + len(name))
        for name, shape in shapes.items()
    }
    return {**update, "half": update["half"].bfloat16()}


@pytest.mark.parametrize("kind", KINDS)
@given(seed=st.integers(0, 999), power=st.floats(-12, 12))
def test_no_clipped_update_is_longer_than_its_bound_in_any_type(kind: Any, seed: int, power: float) -> None:
    assert length(kind(BOUND)(drawn(seed, power))) <= BOUND


@pytest.mark.parametrize("kind", KINDS)
def test_a_short_update_keeps_its_bits(kind: Any) -> None:
    update = drawn(1, -6)
    assert all(torch.equal(new, update[name]) for name, new in kind(BOUND)(update).items())


def test_the_whole_update_keeps_its_direction() -> None:
    clipped = WholeUpdate(1.0)({"a": torch.tensor([3.0, 0.0]), "b": torch.tensor([4.0])})
    assert clipped["a"].tolist() == pytest.approx([0.6, 0.0], rel=1e-5)
    assert clipped["b"].tolist() == pytest.approx([0.8], rel=1e-5)


def test_each_layer_gets_the_same_bound() -> None:
    """bound² = 2 is shared by two layers: 1 each. The short layer stays."""
    clipped = EachLayer(math.sqrt(2))({"a": torch.tensor([3.0, 4.0]), "b": torch.tensor([0.5])})
    assert clipped["a"].tolist() == pytest.approx([0.6, 0.8], rel=1e-5)
    assert clipped["b"].tolist() == [0.5]


def test_each_layer_gets_a_bound_by_its_number_of_entries() -> None:
    """bound² = 5 is shared 4 : 1 by layers of 4 and 1 entries: their bounds are 2 and 1."""
    clipped = EachLayerByDimension(math.sqrt(5))({"a": torch.full((2, 2), 9.0), "b": torch.tensor([9.0])})
    assert clipped["a"].flatten().tolist() == pytest.approx([1.0] * 4, rel=1e-5)
    assert clipped["b"].tolist() == pytest.approx([1.0], rel=1e-5)


def test_each_layer_gets_a_bound_by_its_norm_on_other_data_whatever_the_order_of_tensors() -> None:
    """Norms 3 and 4 share a bound of 10: their bounds are 6 and 8."""
    learnt = EachLayerByNorm(10.0).learnt_from({"b": torch.tensor([0.0, 4.0]), "a": torch.tensor([[3.0]])})
    assert learnt.norms == (3.0, 4.0)
    clipped = learnt({"b": torch.tensor([90.0, 0.0]), "a": torch.tensor([[7.0]])})
    assert clipped["a"].tolist() == [[pytest.approx(6.0, rel=1e-5)]]
    assert clipped["b"].tolist() == [pytest.approx(8.0, rel=1e-5), 0.0]


def test_a_layer_that_did_not_move_on_other_data_keeps_a_tenth_of_an_equal_bound() -> None:
    shares = EachLayerByNorm(1.0, (1.0, 0.0)).shares({"a": 5, "b": 5})
    assert math.sqrt(shares[1] / sum(shares)) == pytest.approx(0.1 / math.sqrt(2), rel=1e-2)
    assert math.sqrt(shares[0] / sum(shares)) > 0.995


@pytest.mark.parametrize("norms", [(0.0, 0.0), (1.0, -1.0), (math.inf, 1.0), (math.nan, 1.0)])
def test_norms_that_bound_nothing_are_refused(norms: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="finite norms of at least 0"):
        EachLayerByNorm(1.0, norms)


def test_norms_of_other_tensors_are_refused() -> None:
    with pytest.raises(ValueError, match="norms of 3 tensors, and an update has 1"):
        EachLayerByNorm(1.0, (1.0, 2.0, 3.0))({"w": torch.ones(3)})


@pytest.mark.parametrize("kind", KINDS)
def test_clipping_twice_is_clipping_once_apart_from_rounding(kind: Any) -> None:
    once = kind(BOUND)(drawn(2, 3))
    for name, again in kind(BOUND)(once).items():
        assert torch.allclose(again, once[name], rtol=2 * torch.finfo(torch.bfloat16).eps, atol=0.0)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_an_update_that_is_not_finite_is_refused_on_the_client_and_on_the_server(
    value: float,
) -> None:
    view, wrong = Clipped(WholeUpdate(BOUND)), {"w": torch.tensor([1.0, value]), "b": torch.ones(2)}
    update = Update(wrong, reports=(Report("c", {}),))
    with pytest.raises(Unusable, match="NaN or infinity"):
        view.after(Task("train"), None, (update, {}))
    task = through(Task("unknown", wrong), view)
    assert "NaN or infinity" in arrived(task)(update, "c").failures[0].reason


def test_finite_values_whose_norm_is_above_the_largest_float_are_clipped() -> None:
    update = {"w": torch.full((8,), 3e38)}
    assert 0 < length(WholeUpdate(BOUND)(update)) <= BOUND


@pytest.mark.parametrize("clipping", [kind(BOUND) for kind in KINDS])
def test_a_task_carries_the_clipping_to_the_client(clipping: UpdateClipping) -> None:
    task = through(Task("train", drawn(3)), Clipped(clipping))
    assert views_of(task) == [Clipped(clipping)]
    assert config.from_dict(Clipped, config.to_dict(Clipped(clipping))) == Clipped(clipping)
    answer = Update(drawn(3, 6), reports=(Report("c", {}),))
    left, _ = enter(task, None).leave(answer)
    assert length(left.mean) <= BOUND


def test_the_server_clips_what_a_client_did_not() -> None:
    task = through(Task("unknown", {"w": torch.zeros(3)}), Clipped(WholeUpdate(BOUND)))
    answer = Update({"w": torch.full((3,), 50.0)}, reports=(Report("c", {}),))
    assert length(arrived(task)(answer, "c").mean) <= BOUND


def test_the_view_for_secure_aggregation_changes_nothing_on_arrival_and_leaves_room_for_its_grid() -> None:
    view, update = ClippedByClient(WholeUpdate(BOUND)), Update({"w": torch.full((3,), 50.0)})
    assert view.arrive(update) is update
    clipped = view.after(Task("train"), None, (update, {}))[0].mean
    assert BOUND * (1 - 2.0**-9) < length(clipped) < BOUND * (1 - 2.0**-11)


@pytest.mark.parametrize(("entries", "clients"), [(3_000_000, 2000), (300_000, 7000), (100, 10)])
def test_rounding_to_the_grid_stays_in_the_room_that_clipping_leaves(entries: int, clients: int) -> None:
    """The grid of `secure_aggregation.masks`, with its bound set to that of the clipping."""
    masks = pytest.importorskip("antiphon.secure_aggregation.masks")
    fixed = masks.FixedPoint(BOUND, {f"c{i}": masks.LARGEST for i in range(clients)})
    step = 1 / (fixed.scale * masks.LARGEST)  # in the values of one client
    rounding = step / 2 * math.sqrt(entries)
    assert fits_grid(entries, clients)
    assert rounding <= BOUND * 2.0**-10
    assert not fits_grid(entries, 100_000_000)


@pytest.mark.parametrize("bound", [0.0, -1.0, math.inf, math.nan])
def test_a_bound_that_bounds_nothing_is_refused(bound: float) -> None:
    with pytest.raises(ValueError, match="bound above 0"):
        WholeUpdate(bound)
