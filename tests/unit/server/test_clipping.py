from __future__ import annotations

import pytest
import torch

from antiphon.algorithms.fedavg import FedAvg
from antiphon.core import Tensors
from antiphon.server.clipping import ClipLayers, ClipLayersRelative, Unclipped
from antiphon.server.optimizers import Sgd


def tensors(**values: list[float]) -> Tensors:
    return {name: torch.tensor(value, dtype=torch.float64) for name, value in values.items()}


DELTA = tensors(long=[3.0, 4.0], short=[0.03, 0.04], still=[0.0, 0.0])
PARAMS = tensors(long=[0.0, 10.0], short=[6.0, 8.0], still=[1.0, 1.0], other=[9.0])


def lists(found: Tensors) -> dict[str, list[float]]:
    return {name: tensor.tolist() for name, tensor in found.items()}


def test_a_layer_longer_than_the_limit_is_shortened_to_it_and_others_are_left_alone() -> None:
    found = ClipLayers(limit=2.5)(PARAMS, DELTA)
    assert lists(found) == {"long": [1.5, 2.0], "short": [0.03, 0.04], "still": [0.0, 0.0]}


def test_a_layer_on_the_limit_keeps_every_bit() -> None:
    assert torch.equal(ClipLayers(limit=5.0)(PARAMS, DELTA)["long"], DELTA["long"])


def test_a_relative_limit_is_the_layer_s_own_length_times_it() -> None:
    found = ClipLayersRelative(limit=0.1)(PARAMS, DELTA)  # both are 10 long, so at most 1
    assert lists(found)["long"] == pytest.approx([0.6, 0.8])
    assert lists(found)["short"] == [0.03, 0.04]


def test_a_layer_of_zeros_can_leave_zero() -> None:
    found = ClipLayersRelative(limit=0.5, floor=0.1)(tensors(bias=[0.0, 0.0]), tensors(bias=[3.0, 4.0]))
    assert lists(found)["bias"] == pytest.approx([0.03, 0.04])


def test_nothing_given_changes() -> None:
    before = {name: tensor.clone() for name, tensor in DELTA.items()}
    ClipLayers(0.1)(PARAMS, DELTA)
    ClipLayersRelative(0.001)(PARAMS, DELTA)
    assert all(torch.equal(DELTA[name], tensor) for name, tensor in before.items())
    assert Unclipped()(PARAMS, DELTA) is DELTA


def test_the_server_steps_by_the_clipped_aggregate() -> None:
    algorithm = FedAvg(server=Sgd(lr=2.0), clipping=ClipLayers(limit=2.5))
    after, _ = algorithm.step(algorithm.init(PARAMS), DELTA)
    assert after.params["long"].tolist() == [-3.0, 6.0]
    assert after.params["short"].tolist() == pytest.approx([5.94, 7.92])
    assert after.params["other"].tolist() == [9.0]


@pytest.mark.parametrize(
    ("kind", "wrong"), [(ClipLayers, {"limit": 0.0}), (ClipLayersRelative, {"limit": -1.0}),
                        (ClipLayersRelative, {"floor": 0.0})]
)  # fmt: skip
def test_limits_that_make_no_sense_are_refused(kind: type, wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"clipping: {next(iter(wrong))} must be above 0"):
        kind(**wrong)
