"""Rows of parameters: nothing is lost, nothing overlaps, every tensor begins where it is read fastest."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from antiphon.clients.stacked.stacked_rows import ALIGNED, Layout

SHAPES = st.lists(st.lists(st.integers(1, 9), max_size=3), min_size=1, max_size=5)


@given(shapes=SHAPES, num_clients=st.integers(1, 3))
def test_what_is_joined_is_parted_again(shapes: list[list[int]], num_clients: int) -> None:
    tensors = {str(place): torch.randn(num_clients, *shape) for place, shape in enumerate(shapes)}
    layout = Layout.of({name: tensor[0] for name, tensor in tensors.items()})
    rows = layout.join(tensors.values())
    parted = layout.split(rows)
    assert list(parted) == list(tensors)
    for name, tensor in tensors.items():
        assert torch.equal(parted[name], tensor)
        assert parted[name].storage_offset() % ALIGNED == 0
        parted[name].zero_()
    assert not rows.any()  # all that was not a tensor's was zero, and no tensor is a copy


def test_a_number_alone_stays_one() -> None:
    layout = Layout.of({"scale": torch.tensor(3.0)})
    assert layout.split(torch.ones(2, ALIGNED))["scale"].tolist() == [1.0, 1.0]


def test_parameters_of_two_kinds_are_refused() -> None:
    with pytest.raises(ValueError, match=r"torch.float32 and torch.float64 do not share a row"):
        Layout.of({"weight": torch.ones(2), "bias": torch.ones(2, dtype=torch.float64)})


def test_tensors_are_put_into_rows_as_they_are_joined() -> None:
    tensors = [torch.randn(2, 3, 4), torch.randn(2), torch.randn(2, ALIGNED)]
    layout = Layout.of({str(place): tensor[0] for place, tensor in enumerate(tensors)})
    rows = torch.full_like(layout.join(tensors), torch.nan)
    there = layout.split(rows)["2"].copy_(tensors[2])  # it was written where it belongs
    assert layout.put([*tensors[:2], there], rows) is rows
    assert torch.equal(rows, layout.join(tensors))
