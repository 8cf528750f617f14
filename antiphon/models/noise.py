"""Random numbers that an utterance takes with it: dropout and masks by hashing, not by a generator.

A draw is a hash of (the utterance's key, the site in the model, the frame, the channel). So an utterance
meets the same noise alone, in a padded batch, among stacked clients, on a CPU and on a GPU.

All arithmetic is modulo 2³² in int32; `mixed` is the finaliser of MurmurHash3 (A. Appleby, public domain).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from antiphon.data.batches import repeated
from antiphon.models.layers import in_front

FUSED = find_spec("triton") is not None  # comes with torch for GPUs
FIRST, SECOND, GOLDEN = -2048144789, -1028477387, -1640531527  # 0x85EBCA6B, 0xC2B2AE35, 0x9E3779B9


def mixed(bits: Tensor) -> Tensor:
    """Every bit of the result depends on every bit given: int32, any shape; one to one."""
    bits = (bits ^ ((bits >> 16) & 0xFFFF)) * FIRST
    bits = (bits ^ ((bits >> 13) & 0x7FFFF)) * SECOND
    return bits ^ ((bits >> 16) & 0xFFFF)


def utterance_keys(noise: Tensor, places: Tensor) -> Tensor:
    """A key for each utterance (its place in the store) of batches whose noise is decided by `noise`.

    Places [...] and noise, which broadcasts to them -> int32 [...].
    """
    return mixed(mixed(places.to(torch.int32) * GOLDEN) ^ mixed(noise.to(torch.int32)))


def uniform(keys: Tensor, site: int, count: int) -> Tensor:
    """`count` numbers in [0, 1) an utterance: keys [B] -> [B, count] float64."""
    return (_rows(keys, site, count).double() + 2.0**31) / 2.0**32


class Noise:
    """One forward pass: where it is, counted in draws."""

    def __init__(self, keys: Tensor) -> None:
        self.keys = keys
        self.site = 0

    def next(self, count: int) -> tuple[Tensor, int]:
        """Keys of `count` rows, int32 [count], and the next site, at which they draw.

        Texts of one utterance meet the same noise, so that the loss of many is the sum of their losses.
        """
        self.site += 1
        return repeated(self.keys, count // len(self.keys)), self.site


_current: ContextVar[Noise | None] = ContextVar("noise", default=None)


@contextmanager
def noise_from(keys: Tensor) -> Iterator[None]:
    """Within: dropout of utterance b is decided by keys[b] and by nothing else."""
    token = _current.set(Noise(keys))
    try:
        yield
    finally:
        _current.reset(token)


class Dropout(nn.Module):
    """Sets values [B, D] or [B, T, D] to zero with probability `rate` while training, and scales the rest.

    Outside of `noise_from`, it draws from torch's own generator, as `nn.Dropout` would.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, values: Tensor) -> Tensor:
        if not self.training or self.rate == 0:
            return values
        noise = _current.get()
        if noise is None:
            return F.dropout(values, self.rate)
        keys, site = noise.next(len(values))
        if FUSED and values.is_cuda and values.dtype != torch.float64:  # the kernel scales in float32
            kept: Tensor = Kept.apply(values, keys, site, self.rate)
            return kept
        rows = _rows(keys, site, values.shape[1] if values.dim() == 3 else 1)
        keeps = _keeps(rows, values.shape[-1], self.rate).view_as(values)
        return torch.where(keeps, values * (1 / (1 - self.rate)), 0.0)


class Kept(torch.autograd.Function):
    """The same in one kernel on a GPU, whose gradient hashes again instead of keeping a mask."""

    @staticmethod
    def forward(values: Tensor, keys: Tensor, site: int, rate: float) -> Tensor:
        return _fused(values, keys, site, rate)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, keys, ctx.site, ctx.rate = inputs
        ctx.save_for_backward(keys)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None, None, None]:
        (keys,) = ctx.saved_tensors
        return _fused(upstream[0], keys, ctx.site, ctx.rate), None, None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], values: Tensor, keys: Tensor, site: int, rate: float
    ) -> Any:
        return Kept.apply(*in_front(info.batch_size, in_dims[:2], values, keys), site, rate), 0


def _fused(values: Tensor, keys: Tensor, site: int, rate: float) -> Tensor:
    from antiphon.models.kernels import fused_dropout

    return fused_dropout.kept(values, keys, _of_site(site), rate, (FIRST, SECOND, GOLDEN))


def _keeps(rows: Tensor, dim: int, rate: float) -> Tensor:
    """Row bits [...] -> bool [..., dim]. One multiplication: its top bits depend on all bits of both."""
    channels = mixed(torch.arange(1, dim + 1, device=rows.device, dtype=torch.int32) * GOLDEN)
    rows = rows[..., None]
    return (rows ^ channels) * (rows | 1) >= int(rate * 2**32) - 2**31


def _rows(keys: Tensor, site: int, num_rows: int) -> Tensor:
    """Keys [B] -> int32 [B, num_rows], another set at every site."""
    frames = torch.arange(1, num_rows + 1, device=keys.device, dtype=torch.int32) * FIRST
    return mixed(mixed(keys + _of_site(site))[:, None] + frames)


def _of_site(site: int) -> int:
    """Added to every key there."""
    return site * GOLDEN & 0x7FFFFFFF
