"""Dropout and SpecAugment masks from a hash instead of a random generator.

A draw is a hash of the utterance's key, the site in the model, the frame and the channel. So an utterance
gets the same noise alone, in a padded batch, among stacked clients, on a CPU and on a GPU. All arithmetic is
modulo 2³² in int32; `mixed` is the finaliser of MurmurHash3 (A. Appleby, public domain).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from antiphon.data.batches import repeated
from antiphon.models.layers import clients_first

FUSED = find_spec("triton") is not None  # comes with torch for GPUs
FIRST, SECOND, GOLDEN = -2048144789, -1028477387, -1640531527  # 0x85EBCA6B, 0xC2B2AE35, 0x9E3779B9


def mixed(bits: Tensor) -> Tensor:
    """Hash int32 values of any shape, one to one: every bit of the result depends on every input bit."""
    bits = (bits ^ ((bits >> 16) & 0xFFFF)) * FIRST
    bits = (bits ^ ((bits >> 13) & 0x7FFFF)) * SECOND
    return bits ^ ((bits >> 16) & 0xFFFF)


def utterance_keys(noise: Tensor, indices: Tensor) -> Tensor:
    """Keys, int32 [...], of utterances by their indices in the store [...] and a seed `noise` (broadcast)."""
    return mixed(mixed(indices.to(torch.int32) * GOLDEN) ^ mixed(noise.to(torch.int32)))


def uniform(keys: Tensor, site: int, count: int) -> Tensor:
    """Return `count` numbers in [0, 1) per utterance: keys [B] -> [B, count] float64."""
    return (_rows(keys, site, count).double() + 2.0**31) / 2.0**32


class Noise:
    """The noise of one forward pass; `site` counts the draws."""

    def __init__(self, keys: Tensor) -> None:
        self.keys, self.site = keys, 0

    def next(self, count: int) -> tuple[Tensor, int]:
        """Keys of `count` rows, int32 [count], and the next site. Texts of an utterance share its noise."""
        self.site += 1
        return repeated(self.keys, count // len(self.keys)), self.site


_current: ContextVar[Noise | None] = ContextVar("noise", default=None)


@contextmanager
def noise_from(keys: Tensor) -> Iterator[None]:
    """In this context, dropout of utterance b depends on keys[b] and on nothing else."""
    token = _current.set(Noise(keys))
    try:
        yield
    finally:
        _current.reset(token)


def current_noise() -> Noise | None:
    """The noise of the forward pass that runs now; None outside of `noise_from`."""
    return _current.get()


class Dropout(nn.Module):
    """Set values [B, D] or [B, T, D] to zero with probability `rate` in training, and scale the rest.

    Outside of `noise_from`, it is `nn.Dropout`, with torch's own generator.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, values: Tensor) -> Tensor:
        if not self.training or self.rate == 0:
            return values
        noise = current_noise()
        if noise is None:
            return F.dropout(values, self.rate)
        keys, site = noise.next(len(values))
        if FUSED and values.is_cuda and values.dtype != torch.float64:  # the kernel scales in float32
            return FusedDropout.apply(values, keys, site, self.rate)
        rows = _rows(keys, site, values.shape[1] if values.dim() == 3 else 1)[..., None]
        numbers = torch.arange(1, values.shape[-1] + 1, device=keys.device, dtype=torch.int32)
        channels = mixed(numbers * GOLDEN)
        # The top bits of a product depend on all bits of both factors.
        stays = (rows ^ channels) * (rows | 1) >= int(self.rate * 2**32) - 2**31
        return torch.where(stays.view_as(values), values * (1 / (1 - self.rate)), 0.0)


class FusedDropout(torch.autograd.Function):
    """Dropout in one GPU kernel; the gradient hashes again instead of keeping a mask."""

    @staticmethod
    def forward(values: Tensor, keys: Tensor, site: int, rate: float) -> Tensor:
        from antiphon.models.kernels import fused

        return fused.drop(values, keys, site_bits(site), rate, (FIRST, SECOND, GOLDEN))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, keys, ctx.site, ctx.rate = inputs
        ctx.save_for_backward(keys)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None, None, None]:
        (keys,) = ctx.saved_tensors
        return FusedDropout.apply(upstream[0], keys, ctx.site, ctx.rate), None, None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], values: Tensor, keys: Tensor, site: int, rate: float
    ) -> Any:
        return FusedDropout.apply(*clients_first(info.batch_size, in_dims[:2], values, keys), site, rate), 0


def _rows(keys: Tensor, site: int, num_rows: int) -> Tensor:
    """Keys [B] -> row bits, int32 [B, num_rows], different at every site."""
    frames = torch.arange(1, num_rows + 1, device=keys.device, dtype=torch.int32) * FIRST
    return mixed(mixed(keys + site_bits(site))[:, None] + frames)


def site_bits(site: int) -> int:
    """What a site adds to keys."""
    return site * GOLDEN & 0x7FFFFFFF


SPEC_AUGMENT_SITE = -1  # sites in a model count from 1


@dataclass(frozen=True)
class SpecAugment:
    """SpecAugment (D. Park et al., Interspeech 2019): time and frequency masks of zeros, no time warping.

    Widths are uniform from 0 to the largest, positions uniform over the utterance's own frames. Time
    masks together cover at most `max_time_fraction` of an utterance: short ones get narrower masks.

    >>> augment = SpecAugment(num_time_masks=1, time_width=2, num_frequency_masks=0)
    >>> augment(torch.ones(1, 6, 2), torch.tensor([6]), keys=torch.tensor([4], dtype=torch.int32))[0, :, 0]
    tensor([1., 0., 0., 1., 1., 1.])
    """

    num_time_masks: int = 2  # masks over time in each utterance
    time_width: int = 40  # largest width of a time mask, in frames
    max_time_fraction: float = 0.4
    num_frequency_masks: int = 2  # 0 for features without frequencies, such as those of encoders
    frequency_width: int = 27  # largest width of a frequency mask, in bins

    def __post_init__(self) -> None:
        if min(self.num_time_masks, self.time_width, self.num_frequency_masks, self.frequency_width) < 0:
            raise ValueError(f"numbers and widths of masks cannot be negative: {self}")
        if not 0.0 <= self.max_time_fraction <= 1.0:
            raise ValueError(f"max_time_fraction must lie between 0 and 1, not {self.max_time_fraction}")

    def __call__(self, features: Tensor, lengths: Tensor, keys: Tensor) -> Tensor:
        """Features [B, T, D], lengths [B], keys of the utterances [B] -> features [B, T, D]."""
        num_frames, dim = features.shape[1:]
        num_masks = self.num_time_masks + self.num_frequency_masks
        draws = uniform(keys, SPEC_AUGMENT_SITE, 2 * num_masks).unflatten(1, (num_masks, 2))
        lengths = lengths.to(features.device)[:, None]
        share = self.max_time_fraction / max(self.num_time_masks, 1)
        widest = (lengths * share).long().clamp(max=self.time_width)
        time = _masked(draws[:, : self.num_time_masks], lengths, widest, num_frames)
        bands = torch.full_like(lengths, dim)
        widest = bands.clamp(max=self.frequency_width)
        frequency = _masked(draws[:, self.num_time_masks :], bands, widest, dim)
        return features.masked_fill(time[:, :, None] | frequency[:, None, :], 0.0)


def _masked(draws: Tensor, lengths: Tensor, widest: Tensor, size: int) -> Tensor:
    """Positions that masks cover, bool [B, size], by draws of width and start [B, masks, 2] in [0, 1)."""
    width = (draws[:, :, 0] * (widest + 1)).long()
    start = (draws[:, :, 1] * (lengths - width + 1)).long()
    position = torch.arange(size, device=draws.device)
    return ((position >= start[:, :, None]) & (position < (start + width)[:, :, None])).any(dim=1)
