"""Clipping of client updates: no client moves the sum of a round by more than a bound.

A client clips its own update before it leaves. The server clips again when the update arrives, because a
client may not have clipped, and because other views may round on the way.

All bounds are l2 norms. Clipping by layer has a bound for each tensor; their squares add up to the square of
the bound of the whole update, so the sensitivity of the sum is the same. (H. B. McMahan et al., "Learning
Differentially Private Recurrent Language Models", ICLR 2018, §3: flat and per-layer clipping; M. Pelikan et
al., arXiv:2310.00098: by dimension, for speech recognition. By norm: a layer with long updates gets a large
bound; the norms are those of an update on data that are not private.)

>>> import torch
>>> EachLayer(bound=5.0)({"a": torch.tensor([3.0, 4.0]), "b": torch.tensor([0.3])})["b"]
tensor([0.3000])
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from antiphon.core import Task, Tensors, Unusable, Update
from antiphon.tasks.client_work import Answer
from antiphon.tasks.views import CLIENT_VIEWS, View

# How far below its bound a clipped update stays: rounding must not make it longer than the bound. The server
# leaves half of that room, so it does not scale again what a client has clipped.
ROOM = 2.0**-20
WITHIN = "within_bound"  # in a report: whether the update was within an adaptive bound, as the server finds
SUM_ROOM = 2.0**-10  # for updates that are rounded to the grid of secure aggregation
LEAST_SHARE = 0.01  # of a layer in bound², times the number of layers, if the norms of layers decide
FEWEST_STEPS = 2**31  # of that grid, for a sum of values within its bound; see `fits_grid`


@dataclass(frozen=True)
class _Clipping:
    bound: float = 1.0  # the largest l2 norm of a client's update

    def __post_init__(self) -> None:
        if not 0 < self.bound < math.inf:
            raise ValueError(f"clipping of updates needs a bound above 0, not {self.bound}")

    def shares(self, sizes: Mapping[str, int]) -> list[float]:
        """Return the share of bound² of each tensor, from their numbers of entries by name."""
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
        sizes = {name: tensor.numel() for name, tensor in update.items()}
        scales = self._scales(norms, sizes, self.bound * room)
        return {name: _scaled(update[name], scale) for name, scale in zip(update, scales, strict=True)}

    def _scales(self, norms: Tensor, sizes: Mapping[str, int], bound: float) -> list[float]:
        shares = self.shares(sizes)
        total = sum(shares)
        limits = [bound * math.sqrt(share / total) for share in shares]
        return [_scale(norm, limit) for norm, limit in zip(norms.tolist(), limits, strict=True)]


@dataclass(frozen=True)
class WholeUpdate(_Clipping):
    """Scales all layers of an update together: its direction stays."""

    def _scales(self, norms: Tensor, sizes: Mapping[str, int], bound: float) -> list[float]:
        return [_scale(float(torch.linalg.vector_norm(norms)), bound)] * len(sizes)


@dataclass(frozen=True)
class EachLayer(_Clipping):
    """Scales each tensor to a bound of its own, the same for all."""

    def shares(self, sizes: Mapping[str, int]) -> list[float]:
        return [1.0] * len(sizes)


@dataclass(frozen=True)
class EachLayerByDimension(_Clipping):
    """Scales each tensor to a bound of its own, which grows with the root of its number of entries."""

    def shares(self, sizes: Mapping[str, int]) -> list[float]:
        return [float(size) for size in sizes.values()]


@dataclass(frozen=True)
class EachLayerByNorm(_Clipping):
    """Scales each tensor to a bound of its own, in proportion to the norm of its update on public data.

    C_l = C n_l / √(Σ n_j²). A layer whose norm is tiny could not learn at all (the first factor of LoRA does
    not move in the first step), so no layer gets less than about a tenth of the bound that `EachLayer` gives
    it. This makes the other bounds smaller by 0.5 % at most.
    """

    # n, for the tensors in the order of their names; (): of an update on the server's speech, in round 1
    norms: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.norms and not (min(self.norms) >= 0 and 0 < sum(self.norms) < math.inf):
            raise ValueError("each_layer_by_norm needs finite norms of at least 0, and one above 0")

    def shares(self, sizes: Mapping[str, int]) -> list[float]:
        if len(sizes) != len(self.norms):
            raise ValueError(
                f"each_layer_by_norm has norms of {len(self.norms)} tensors, and an update has {len(sizes)}"
            )
        squares = {name: norm**2 for name, norm in zip(sorted(sizes), self.norms, strict=True)}
        least = LEAST_SHARE * sum(squares.values()) / len(squares)
        return [max(least, squares[name]) for name in sizes]

    def learnt_from(self, update: Tensors) -> EachLayerByNorm:
        """Return the clipping with the norms of an update on data that are not private."""
        norms = (torch.linalg.vector_norm(update[name], dtype=torch.float64) for name in sorted(update))
        return replace(self, norms=tuple(map(float, norms)))


@dataclass(frozen=True)
class AdaptiveUpdate(WholeUpdate):
    """Scales all layers together, to a bound that follows a quantile of the norms of the updates.

    G. Andrew et al., "Differentially Private Learning with Adaptive Clipping", NeurIPS 2021,
    arXiv:1905.03410. A client within the bound C counts b = 1, another one b = 0. The sum of b − ½ gets noise
    of its own, and C ← C exp(−rate (b̃ − quantile)) for b̃, the noised share of clients within the bound.

    C follows from earlier releases alone, so a round divided by its C is a release of updates of at most 1.
    The accounting, also that of correlated noise, is the one of a fixed bound.
    """

    # `bound` is the one of the first round.
    quantile: float = 0.5  # the share of the updates that are to be within the bound
    rate: float = 0.2  # how fast the bound follows: η_C of the paper
    count_deviation: float = (
        0.0  # σ_b of the paper: noise on the count; 0: cohort / 20, or more if that needs
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.quantile < 1 or not self.rate > 0 or self.count_deviation < 0:
            raise ValueError(
                "adaptive_update needs a quantile between 0 and 1, a rate above 0, and a count_deviation of "
                "at least 0"
            )

    def deviation_of_count(self, deviation: float, cohort: float) -> float:
        """Return σ_b, for the deviation of the plan and the planned cohort; refuse one that is too small."""
        chosen = self.count_deviation or max(cohort / 20, deviation)
        if 2 * chosen <= deviation:
            raise ValueError(
                f"adaptive_update: a count_deviation of {chosen:g} spends the whole privacy budget on the "
                f"count: it must be above {deviation / 2:.4g}, half the deviation of the plan"
            )
        return chosen

    def is_within(self, update: Tensors) -> bool:
        """Return whether an update that arrives was within the bound before its client clipped it."""
        tensors = list(update.values())
        norms = [float(torch.linalg.vector_norm(tensor, dtype=torch.float64)) for tensor in tensors]
        room = max(ROOM, *(torch.finfo(tensor.dtype).eps for tensor in tensors))
        return math.hypot(*norms) < self.bound * (1 - 4 * room)

    def moved(self, share: float) -> AdaptiveUpdate:
        """Return the clipping of the next round, from the noised share of clients within the bound."""
        return replace(self, bound=self.bound * math.exp(-self.rate * (share - self.quantile)))


UpdateClipping = AdaptiveUpdate | WholeUpdate | EachLayer | EachLayerByDimension | EachLayerByNorm


def _scale(norm: float, limit: float) -> float:
    return 1.0 if norm <= limit else limit / norm


def _scaled(tensor: Tensor, scale: float) -> Tensor:
    return tensor if scale == 1.0 else tensor * scale  # `room` is larger than what this rounds


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
        clipped = replace(update, mean=self.clipping(update.mean, self.room / 2))
        if not isinstance(self.clipping, AdaptiveUpdate):
            return clipped
        within = {WITHIN: float(self.clipping.is_within(update.mean))}
        reports = tuple(replace(report, stats={**report.stats, **within}) for report in update.reports)
        return replace(clipped, reports=reports)
