"""Clipping of the server's aggregate, layer by layer: a limit on the step of every tensor of the model.

Bad clients often make one layer's part of Δ many times longer than usual. Clipping Δ as a whole would shorten
the good parts too. Every tensor is one layer here, as in LAMB and LARS (`optimizers`). The relative limit is
adaptive gradient clipping (Brock et al. 2021, arXiv:2102.06171, eq. 3) on whole tensors instead of rows.

Clipping comes before the server's optimiser, as in central training. An optimiser that divides by the size of
past deltas (Adam, LAMB) undoes a clipping that is the same in every round, but not that of an unusual round.

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
from antiphon.registry import Registry


class Clipping(Protocol):
    """A frozen dataclass: (params, delta) -> clipped delta. It changes none of its arguments."""

    def __call__(self, params: Tensors, delta: Tensors) -> Tensors: ...


CLIPPINGS = Registry("antiphon.clippings", kind=Clipping, default="unclipped")


def norms_of(tensors: list[Tensor] | tuple[Tensor, ...]) -> list[float]:
    """Return the l2 norm of each tensor, in one transfer: an `.item()` for each would stop a GPU often."""
    norms: list[float] = torch.stack(torch._foreach_norm(tensors)).tolist()
    return norms


@CLIPPINGS.register
@dataclass(frozen=True)
class Unclipped:
    """No clipping."""

    def __call__(self, params: Tensors, delta: Tensors) -> Tensors:
        return delta


@CLIPPINGS.register
@dataclass(frozen=True)
class ClipLayers:
    """Clips the delta of each tensor to an l2 norm of at most `limit`."""

    limit: float = 1.0

    def __post_init__(self) -> None:
        _check(self.limit)

    def __call__(self, params: Tensors, delta: Tensors) -> Tensors:
        return _clipped(delta, [self.limit] * len(delta))


@CLIPPINGS.register
@dataclass(frozen=True)
class ClipLayersRelative:
    """Clips the delta of each tensor to at most `limit` times the norm of the tensor.

    A norm below `floor` counts as `floor`: otherwise a bias of zero would stay zero.
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
