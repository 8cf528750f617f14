from __future__ import annotations

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from antiphon.secure_aggregation.masks import (
    LARGEST,
    FixedPoint,
    add_pair_mask,
    flatten,
    layout_of,
    public_key,
    self_mask,
    unflatten,
)


@given(
    weights=st.lists(st.integers(1, LARGEST), min_size=2, max_size=60),
    bound=st.floats(1e-6, 1e6),
    sign=st.sampled_from((-1.0, 1.0)),
)
def test_no_sum_leaves_the_ring_even_if_every_value_is_at_the_bound(
    weights: list[int], bound: float, sign: float
) -> None:
    fixed = FixedPoint(bound, {str(k): weight for k, weight in enumerate(weights)})
    values = np.full(3, sign * bound)
    total = sum(fixed.encode(values, client).view(np.int32).astype(object) for client in fixed.weights)
    assert max(abs(int(value)) for value in total) <= LARGEST


@given(st.lists(st.tuples(st.floats(-1, 1), st.integers(1, 1000)), min_size=3, max_size=20))
def test_the_decoded_mean_is_the_weighted_mean_to_half_a_step_for_each_client(
    rows: list[tuple[float, int]],
) -> None:
    weights = {str(k): weight for k, (_, weight) in enumerate(rows)}
    fixed = FixedPoint(1.0, weights)
    total = np.zeros(1, dtype=np.uint32)
    for client, (value, _) in zip(weights, rows, strict=True):
        total += fixed.encode(np.array([value]), client)
    mean = sum(value * weight for value, weight in rows) / sum(weights.values())
    assert fixed.decode(total, list(weights))[0] == pytest.approx(
        mean, abs=fixed.step * len(rows) / 2 * 1.001
    )


@pytest.mark.parametrize("value", [1.0001, -1.0001, np.nan, np.inf])
def test_a_value_out_of_range_is_refused_and_never_wrapped(value: float) -> None:
    with pytest.raises(ValueError, match="not finite or above 1"):
        FixedPoint(1.0, {"a": 1}).encode(np.array([0.0, value]), "a")


def test_pair_masks_cancel_and_self_masks_depend_on_session_and_seed() -> None:
    one, two = X25519PrivateKey.generate(), X25519PrivateKey.generate()
    first, second = np.zeros(1000, dtype=np.uint32), np.zeros(1000, dtype=np.uint32)
    add_pair_mask(first, one, "a", "b", public_key(two), "run/0/0")
    add_pair_mask(second, two, "b", "a", public_key(one), "run/0/0")
    assert first.any()
    assert not (first + second).any()
    other = np.zeros(1000, dtype=np.uint32)
    add_pair_mask(other, one, "a", "b", public_key(two), "run/1/0")
    assert (first != other).mean() > 0.99
    assert (self_mask(b"s" * 32, "run/0/0", 1000) != self_mask(b"s" * 32, "run/0/1", 1000)).mean() > 0.99
    assert (self_mask(b"s" * 32, "run/0/0", 1000) != self_mask(b"t" * 32, "run/0/0", 1000)).mean() > 0.99


def test_tensors_come_back_from_one_vector_in_their_order_with_their_types() -> None:
    tensors = {"z": torch.randn(2, 3), "a": torch.randn(4, dtype=torch.float64), "scalar": torch.tensor(1.5)}
    back = unflatten(flatten(tensors), tensors)
    assert list(back) == list(tensors)
    assert all(torch.equal(back[name], tensors[name]) for name in tensors)
    assert layout_of(tensors)[0] == ["a", [4], "torch.float64"]
