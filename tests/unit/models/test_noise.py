"""Noise by hashing: an utterance meets the same noise wherever it is, and it is as random as it must be."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.func import vmap

from antiphon.models.noise import Dropout, mixed, noise_from, uniform, utterance_keys


def some_keys(count: int, noise: int = 1) -> Tensor:
    return utterance_keys(torch.tensor(noise), torch.arange(count))


def dropped(values: Tensor, keys: Tensor, rate: float = 0.5, sites: int = 1) -> Tensor:
    """What is left after some layers of dropout."""
    layer = Dropout(rate)
    with noise_from(keys):
        for _ in range(sites):
            values = layer(values)
    return values


def test_mixing_is_murmurhash_s_finaliser() -> None:
    # fmix32(1) = 0x514e28b7 and fmix32(0xdeadbeef) = 0x0de5c6a9 by the reference implementation.
    given = torch.tensor([0, 1, 0xDEADBEEF - 2**32], dtype=torch.int32)
    assert [value % 2**32 for value in mixed(given).tolist()] == [0, 0x514E28B7, 0x0DE5C6A9]


def test_an_utterance_is_dropped_the_same_alone_and_in_any_padded_batch() -> None:
    values, keys = torch.rand(4, 9, 16) + 1, some_keys(4)
    together = dropped(values, keys, sites=2)
    assert torch.equal(dropped(values[2:3, :5], keys[2:3], sites=2), together[2:3, :5])


def test_rows_without_frames_are_dropped_too() -> None:
    values, keys = torch.ones(3, 64), some_keys(3)
    assert torch.equal(dropped(values, keys), dropped(values[:, None], keys)[:, 0])


def test_what_is_kept_is_scaled_so_that_the_mean_stays() -> None:
    kept = dropped(torch.ones(50, 40, 64, dtype=torch.float64), some_keys(50), rate=0.2)
    assert set(kept.unique().tolist()) == {0.0, 1.25}
    assert float(kept.mean()) == pytest.approx(1.0, abs=4 * 0.5 / math.sqrt(kept.numel()))


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_channels_frames_and_sites_are_independent(rate: float) -> None:
    """Correlations of 400 pairs of each kind: a sample of n has a standard error of 1 / sqrt(n)."""
    keys, (frames, channels) = some_keys(100), (200, 24)
    layers = [Dropout(rate), Dropout(rate)]
    ones = torch.ones(100, frames, channels, dtype=torch.float64)
    with noise_from(keys):
        first, second = (layer(ones).bool().double() for layer in layers)
    for left, right in (
        (first[..., :-1], first[..., 1:]),
        (first[:, :-1], first[:, 1:]),
        (first[:-1], first[1:]),
        (first, second),
    ):
        both = torch.stack((left.flatten(), right.flatten()))
        assert abs(float(torch.corrcoef(both)[0, 1])) < 4.5 / math.sqrt(both.shape[1])
    by_channel = torch.corrcoef(first.flatten(0, 1).T).fill_diagonal_(0)
    assert float(by_channel.abs().max()) < 5.5 / math.sqrt(100 * frames)


def test_other_noise_and_other_utterances_are_dropped_otherwise() -> None:
    values = torch.ones(1, 5, 64)
    masks = [dropped(values, some_keys(2, noise)[place : place + 1]) for noise in (1, 2) for place in (0, 1)]
    for number, mask in enumerate(masks):
        assert not any(torch.equal(mask, other) for other in masks[number + 1 :])


def test_the_gradient_is_that_of_what_was_kept() -> None:
    values = torch.rand(2, 3, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda given: dropped(given, some_keys(2), sites=2), values)


def test_under_vmap_every_client_draws_by_its_own_keys() -> None:
    values = torch.rand(3, 2, 4, 8, dtype=torch.float64, requires_grad=True)
    keys = torch.stack([some_keys(2, noise) for noise in (1, 2, 3)])
    together = vmap(dropped)(values, keys)
    gradient = torch.autograd.grad(together.square().sum(), values)[0]
    for client in range(3):
        own = values[client].detach().requires_grad_()
        alone = dropped(own, keys[client])
        assert torch.equal(alone, together[client])
        assert torch.equal(torch.autograd.grad(alone.square().sum(), own)[0], gradient[client])


def test_keys_shared_by_all_clients_drop_the_same_from_each() -> None:
    values, keys = torch.ones(2, 4, 8).expand(3, 2, 4, 8), some_keys(2)
    together = vmap(dropped, in_dims=(0, None))(values, keys)
    assert torch.equal(together[0], together[2])


def test_nothing_is_dropped_in_evaluation_or_at_rate_zero() -> None:
    values, keys = torch.rand(2, 3, 4), some_keys(2)
    assert dropped(values, keys, rate=0.0) is values
    assert Dropout(0.9).eval()(values) is values


def test_outside_of_drawing_torch_s_own_generator_decides() -> None:
    layer, values = Dropout(0.5), torch.ones(4, 100)
    torch.manual_seed(1)
    first, second = layer(values), layer(values)
    torch.manual_seed(1)
    assert torch.equal(layer(values), first)
    assert not torch.equal(first, second)


def test_uniform_numbers_are_uniform() -> None:
    numbers = uniform(some_keys(2000), site=-1, count=10)
    assert float(numbers.min()) >= 0
    assert float(numbers.max()) < 1
    counts = torch.histc(numbers.float(), bins=20, min=0, max=1)
    chi_squared = float(((counts - 1000) ** 2 / 1000).sum())
    assert chi_squared < 43.8  # 99.9 % of samples, 19 degrees of freedom


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(3, 7, 50), (3, 50), (6, 7, 50)], ids=["frames", "rows", "two texts each"])
def test_a_gpu_drops_what_the_cpu_drops(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    values, keys = torch.rand(shape, dtype=dtype), some_keys(3)
    expected = dropped(values, keys, 0.3, sites=3)
    assert torch.equal(dropped(values.cuda(), keys.cuda(), 0.3, sites=3).cpu(), expected)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_too_every_client_draws_by_its_own_keys() -> None:
    values = torch.rand(3, 2, 4, 8, device="cuda", requires_grad=True)
    keys = torch.stack([some_keys(2, noise) for noise in (1, 2, 3)]).cuda()
    together = vmap(dropped)(values, keys)
    alone = torch.stack([dropped(own, own_keys) for own, own_keys in zip(values, keys, strict=True)])
    assert torch.equal(together, alone)
    ours, theirs = (torch.autograd.grad(kept.square().sum(), values)[0] for kept in (together, alone))
    assert torch.equal(ours, theirs)
