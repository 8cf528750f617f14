"""Tensors that lie in one add up like any others, and are like any others once one was replaced."""

from __future__ import annotations

import pickle

import pytest
import torch

from antiphon.core import RunningMean, Tensors, Update
from antiphon.tasks.local_training import MeasuredDelta, Row, parts_of

PARTS = object()


def row(seed: int, parts: object = PARTS) -> Row:
    """A row of a table of several, as those of stacked clients."""
    table = torch.randn(3, 10, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    whole = table[1]
    return Row({"weight": whole[:6].view(2, 3), "bias": whole[8:]}, whole, parts)


def total(*given: Tensors) -> Tensors:
    mean = RunningMean()
    for place, tensors in enumerate(given):
        mean.add(Update(tensors, log_weight=0.5 * place))
    return mean.total().mean


def assert_same(found: Tensors, expected: Tensors) -> None:
    assert list(found) == list(expected)
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_rows_add_up_to_what_their_tensors_add_up_to(count: int) -> None:
    given = [row(seed) for seed in range(count)]
    before = [dict(tensors, weight=tensors["weight"].clone()) for tensors in given]
    found = total(*given)
    assert parts_of(found) is PARTS
    assert_same(found, total(*map(dict, given)))
    for tensors, kept in zip(given, before, strict=True):
        assert torch.equal(tensors["weight"], kept["weight"])  # no update changes


def test_rows_and_other_tensors_add_up() -> None:
    ours, other = row(1), dict(row(2))
    for given in ((ours, other), (other, ours), (ours, row(3, parts=object()))):
        assert_same(total(*given), total(*map(dict, given)))


def test_a_row_with_another_tensor_is_like_any_dictionary() -> None:
    ours, changed = row(1), row(2)
    changed["bias"] = torch.ones(2, dtype=torch.float64)
    assert parts_of(changed) is None
    for given in ((ours, changed), (changed, ours), (changed,)):
        assert_same(total(*given), total(*map(dict, given)))


def test_a_row_travels_as_its_tensors() -> None:
    found = pickle.loads(pickle.dumps(row(1)))
    assert type(found) is dict
    assert_same(found, dict(row(1)))


def test_a_measured_row_knows_whether_it_was_changed() -> None:
    ours = row(1)
    delta = MeasuredDelta(ours, {"norm": 1.0}, ours.whole, PARTS)
    assert delta.stats == {"norm": 1.0}
    delta["bias"].add_(1.0)
    assert delta.stats is None
    assert parts_of(delta) is PARTS  # its tensors still lie in one
