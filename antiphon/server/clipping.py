"""Clipping of the server's aggregate, layer by layer: no tensor of the model moves further than it may.

A round with bad clients does not spoil all of a model alike: often one layer's part of Δ is many times
longer than usual, and clipping Δ as a whole would shorten the good parts with it. Every tensor is one
layer here, as in LAMB and LARS (`optimizers`). The relative limit is adaptive gradient clipping (Brock et
al. 2021, arXiv:2102.06171, eq. 3) on whole tensors instead of their rows.

Clipping comes before the server's optimiser, as it does in central training. An optimiser that
divides by the size of past deltas (Adam, LAMB) undoes a clipping that is the same every round; it
cannot undo that of a round that stands out.

>>> import torch
>>> delta = {"a": torch.tensor([3.0, 4.0]), "b": torch.tensor([0.3, 0.4])}
>>> ClipLayers(limit=1.0)({}, delta)
{'a': tensor([0.6000, 0.8000]), 'b': tensor([0.3000, 0.4000])}
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from antiphon.core import Tensors
from antiphon.registry import Registry, open_kind


class Clipping(Protocol):
    """A frozen dataclass: (params, delta) -> a delta that is nowhere longer. Nothing it is given changes."""

    def __call__(self, params: Tensors, delta: Tensors) -> Tensors: ...


CLIPPINGS = open_kind(
    Clipping,
    Registry("antiphon.clippings", ("__call__",), homes=["antiphon.server.clipping"], default="unclipped"),
)


def norms_of(tensors: list[Tensor] | tuple[Tensor, ...]) -> list[float]:
    """The l2 norm of each tensor, in one transfer: an `.item()` each would stop a GPU hundreds of times."""
    norms: list[float] = torch.stack(torch._foreach_norm(tensors)).tolist()
    return norms


@CLIPPINGS.register
@dataclass(frozen=True)
class Unclipped:
    """The aggregate as it is."""

    def __call__(self, params: Tensors, delta: Tensors) -> Tensors:
        return delta


@CLIPPINGS.register
@dataclass(frozen=True)
class ClipLayers:
    """Each tensor's part of the delta has an l2 norm of at most `limit`."""

    limit: float = 1.0

    def __post_init__(self) -> None:
        _check(self.limit)

    def __call__(self, params: Tensors, delta: Tensors) -> Tensors:
        return _clipped(delta, [self.limit] * len(delta))


@CLIPPINGS.register
@dataclass(frozen=True)
class ClipLayersRelative:
    """Each tensor's part of the delta is at most `limit` times as long as the tensor itself.

    A tensor shorter than `floor` is taken to be that long, or a bias of zero could never leave zero.
    """

    limit: float = 0.02
    floor: float = 1e-3

    def __post_init__(self) -> None:
        _check(self.limit)
        if self.floor <= 0:
            raise ValueError(f"clipping: floor must be above 0, not {self.floor}")

    def __call__(self, params: Tensors, delta: Tensors) -> Tensors:
        lengths = norms_of([params[name] for name in delta])
        return _clipped(delta, [self.limit * max(length, self.floor) for length in lengths])


def _check(limit: float) -> None:
    if not limit > 0:
        raise ValueError(f"clipping: limit must be above 0, not {limit} (unclipped clips nothing)")


def _clipped(delta: Tensors, limits: Sequence[float]) -> Tensors:
    if not delta:
        return delta
    lengths = norms_of(list(delta.values()))
    scales = [
        limit / length if length > limit else 1.0 for length, limit in zip(lengths, limits, strict=True)
    ]
    return dict(zip(delta, torch._foreach_mul(list(delta.values()), scales), strict=True))
