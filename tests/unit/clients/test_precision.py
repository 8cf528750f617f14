"""Bits of matrix products in training: names, devices, old settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from world import World

from antiphon import config
from antiphon.clients.client import ClientRuntime
from antiphon.clients.precision import PRECISIONS, check_precision, from_bfloat16, tf32
from antiphon.experiment.settings import Experiment
from antiphon.recipes import recipe


@pytest.mark.parametrize("precision", ["tf32", "bfloat16"])
def test_fewer_bits_without_a_gpu_are_refused(world: World, precision: str) -> None:
    with pytest.raises(ValueError, match=f"{precision} needs a GPU, and the device is cpu"):
        ClientRuntime(world.store, world.tokens, world.runtime().model, world.params(), precision=precision)


def test_a_precision_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(ValueError, match="one of float32, tf32, bfloat16, not 'float16'"):
        config.override(recipe("fedavg"), ["precision=float16"])


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_gpu_has_all_of_them(precision: str) -> None:
    check_precision(precision, torch.device("cuda"))


@pytest.mark.parametrize(("old", "precision"), [("true", "bfloat16"), ("false", "float32")])
@pytest.mark.parametrize(
    "read",
    [
        lambda old: config.override(recipe("fedavg"), [f"bfloat16={old}"]),
        lambda old: config.from_dict(Experiment, {"bfloat16": old == "true"}),
    ],
)
def test_the_old_setting_still_works(read: Callable[[str], Experiment], old: str, precision: str) -> None:
    experiment = read(old)
    assert experiment.precision == precision
    assert "bfloat16" not in config.to_dict(experiment)


def test_an_old_setting_that_is_not_true_or_false_is_refused() -> None:
    with pytest.raises(ValueError, match="bfloat16 is true or false, not 16: set precision"):
        from_bfloat16(16)


@pytest.mark.parametrize("before", [False, True])
def test_flags_are_those_of_before_also_after_an_error(before: bool) -> None:
    def flags() -> list[bool]:
        return [torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32]

    def fail(enabled: bool) -> None:
        with tf32(enabled):
            assert flags() == [enabled, enabled]
            raise KeyError

    with tf32(before):
        for enabled in (True, False):
            with pytest.raises(KeyError):
                fail(enabled)
            assert flags() == [before, before]


def test_a_run_of_a_gpu_records_its_precision() -> None:
    experiment = replace(recipe("fedavg"), precision="tf32")
    assert config.to_dict(experiment)["precision"] == "tf32"
