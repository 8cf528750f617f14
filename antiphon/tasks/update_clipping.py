"""Clipping of client updates: no client moves the sum of a round by more than a bound.

A client clips its own update before it leaves. The server clips again when the update arrives, because a
client may not have clipped, and because other views may round on the way.

All bounds are l2 norms. Clipping by layer has a bound for each tensor; their squares add up to the square of
the bound of the whole update, so the sensitivity of the sum is the same. (H. B. McMahan et al., "Learning
Differentially Private Recurrent Language Models", ICLR 2018, §3: flat and per-layer clipping; M. Pelikan et
al., arXiv:2310.00098: by dimension, for speech recognition.)

>>> import torch
>>> EachLayer(bound=5.0)({"a": torch.tensor([3.0, 4.0]), "b": torch.tensor([0.3])})["b"]
tensor([0.3000])
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from antiphon.core import Task, Tensors, Unusable, Update
from antiphon.tasks.client_work import Answer
from antiphon.tasks.views import CLIENT_VIEWS, View

# How far below its bound a clipped update stays: rounding in sums must not make it longer than the bound.
ROOM = 2.0**-20
SUM_ROOM = 2.0**-10  # for updates that are rounded to the grid of secure aggregation
FEWEST_STEPS = 2**31  # of that grid, for a sum of values within its bound; see `fits_grid`


@dataclass(frozen=True)
class _Clipping:
    bound: float = 1.0  # the largest l2 norm of a client's update

    def __post_init__(self) -> None:
        if not 0 < self.bound < math.inf:
            raise ValueError(f"clipping of updates needs a bound above 0, not {self.bound}")

    def shares(self, sizes: Sequence[int]) -> list[float]:
        """Return the share of bound² of each tensor, from their numbers of entries."""
        raise NotImplementedError

    def __call__(self, update: Tensors, room: float = ROOM) -> Tensors:
        """Return the clipped update; raise `Unusable` if it is not finite."""
        tensors = list(update.values())
        if not tensors:
            return update
        norms = torch.stack([torch.linalg.vector_norm(tensor, dtype=torch.float64) for tensor in tensors])
        if not bool(norms.isfinite().all()):
            raise Unusable("NaN or infinity in its update")
        room = 1 - max(room, *(torch.finfo(tensor.dtype).eps for tensor in tensors))
        scales = self._scales(norms, [tensor.numel() for tensor in tensors], self.bound * room)
        return {name: _scaled(update[name], scale) for name, scale in zip(update, scales, strict=True)}

    def _scales(self, norms: Tensor, sizes: Sequence[int], bound: float) -> list[float]:
        shares = self.shares(sizes)
        total = sum(shares)
        limits = [bound * math.sqrt(share / total) for share in shares]
        return [_scale(norm, limit) for norm, limit in zip(norms.tolist(), limits, strict=True)]


@dataclass(frozen=True)
class WholeUpdate(_Clipping):
    """Scales all layers of an update together: its direction stays."""

    def _scales(self, norms: Tensor, sizes: Sequence[int], bound: float) -> list[float]:
        return [_scale(float(torch.linalg.vector_norm(norms)), bound)] * len(sizes)


@dataclass(frozen=True)
class EachLayer(_Clipping):
    """Scales each tensor to a bound of its own, the same for all."""

    def shares(self, sizes: Sequence[int]) -> list[float]:
        return [1.0] * len(sizes)


@dataclass(frozen=True)
class EachLayerByDimension(_Clipping):
    """Scales each tensor to a bound of its own, which grows with the root of its number of entries."""

    def shares(self, sizes: Sequence[int]) -> list[float]:
        return [float(size) for size in sizes]


UpdateClipping = WholeUpdate | EachLayer | EachLayerByDimension


def _scale(norm: float, limit: float) -> float:
    return 1.0 if norm <= limit else limit / norm


def _scaled(tensor: Tensor, scale: float) -> Tensor:
    return tensor if scale == 1.0 else (tensor.double() * scale).to(tensor.dtype)


def fits_grid(num_entries: int, num_clients: int) -> bool:
    """Return whether rounding to the grid of secure aggregation stays within `SUM_ROOM`.

    Its values are at most the bound of the clipping. A step is then num_clients · bound / `FEWEST_STEPS` or
    less, and rounding moves each entry by half a step.
    """
    return math.sqrt(num_entries) * num_clients / (2 * FEWEST_STEPS) <= SUM_ROOM - ROOM


@CLIENT_VIEWS.register
@dataclass(frozen=True)
class ClippedByClient(View):
    """The client clips its update; the server sees no single update and trusts it."""

    clipping: UpdateClipping
    room: ClassVar[float] = SUM_ROOM

    def after(self, task: Task, client: Any, answer: Answer) -> Answer:
        update, changes = answer
        return replace(update, mean=self.clipping(update.mean, self.room)), changes


@CLIENT_VIEWS.register
@dataclass(frozen=True)
class Clipped(ClippedByClient):
    """The client clips its update, and the server clips it again when it arrives."""

    room: ClassVar[float] = ROOM

    def arrive(self, update: Update) -> Update:
        return replace(update, mean=self.clipping(update.mean, self.room))
