"""The slices of a model's weights that can be removed: rows and columns, whole or half.

R. Lin et al., "Federated Pruning", Interspeech 2022, §2.1.

| paper                        | here                                                                  |
| ---------------------------- | --------------------------------------------------------------------- |
| W, in × out                  | a layer's weight, stored as torch does: out × in                      |
| column, row of W             | all weights of an output, of an input                                 |
| [W_1, W_2]                   | the halves of all columns (or rows); each half is ranked by itself    |

Deviations.
- Matrices stored in one tensor (queries, keys and values) are ranked and counted separately, as in Table 1.
- An LSTM has one kind of slice for all patterns: a unit with all its gates. Its score is that of its weights
  from the inputs and from the units. A unit that only lost a gate would still cost as much.
- An embedding loses values in the column patterns; a row would be a token.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from antiphon.algorithms.fedavg import matches
from antiphon.core import Tensors
from antiphon.tasks.prunable_layers import (
    EmbeddingLayer,
    Layer,
    LinearLayer,
    RecurrentLayer,
    Region,
    RemainingUnits,
)
from antiphon.tasks.submodel import NUM_GATES

Span = tuple[int, int]


@dataclass(frozen=True)
class Slices:
    """Slices of one layer that are ranked against each other."""

    layer: str
    name: str  # of the layer, and of the part of its weight
    size: int  # number of slices
    num_weights: int
    drawn: float  # mean|w| before any training, as torch draws the weights
    of: Callable[[Tensors], Tensor]  # parameters -> slices [size, weights of a slice]
    region: Callable[[Tensor], Region] | None = None  # linear layers: mask of slices -> part of the weight

    @property
    def block(self) -> str:
        """The layer's name up to its first number (`encoder.layers.3`), or the whole name without one."""
        parts = self.layer.split(".")
        return ".".join(parts[: next((i + 1 for i, part in enumerate(parts) if part.isdigit()), None)])


def linear_slices(layer: LinearLayer, outputs: Span, inputs: Span, along_input: bool) -> Slices:
    """Return the slices of a part of a weight: one for each output (a column of W) or input (a row)."""
    shape = (layer.num_outputs, layer.num_inputs)

    def of(params: Tensors) -> Tensor:
        part = params[f"{layer.name}.weight"][slice(*outputs), slice(*inputs)]
        return part.T if along_input else part

    def region(mask: Tensor) -> Region:
        rows, columns = (torch.zeros(size).bool() for size in shape)
        rows[slice(*outputs)] = True if along_input else mask
        columns[slice(*inputs)] = mask if along_input else True
        return rows, columns

    height, width = outputs[1] - outputs[0], inputs[1] - inputs[0]
    part = "" if (height, width) == shape else "[{}:{}, {}:{}]".format(*outputs, *inputs)
    size = width if along_input else height
    drawn = 0.5 * layer.num_inputs**-0.5  # uniform, up to 1/√inputs
    return Slices(layer.name, layer.name + part, size, height * width, drawn, of, region)


def recurrent_slices(layer: RecurrentLayer) -> Slices:
    """Return the units of an LSTM as slices."""
    size = layer.num_units

    def of(params: Tensors) -> Tensor:
        beginnings = (f"{layer.name}.weight_ih", f"{layer.name}.weight_hh")
        weights = [p.view(NUM_GATES, size, -1) for name, p in params.items() if name.startswith(beginnings)]
        return torch.cat(weights, dim=2).transpose(0, 1).flatten(1)

    num_weights = NUM_GATES * size * (layer.num_inputs + size)
    return Slices(layer.name, layer.name, size, num_weights, 0.5 * size**-0.5, of)  # uniform, up to 1/√units


def embedding_slices(layer: EmbeddingLayer) -> Slices:
    """Return the values of an embedding as slices."""
    drawn = (2 / math.pi) ** 0.5  # normal
    return Slices(
        layer.name, layer.name, layer.dim, layer.dim * layer.num_tokens, drawn, lambda p: p[layer.weight[0]].T
    )


# --- Patterns -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WholeColumn:
    """Removes an output with all its weights."""

    is_half: ClassVar[bool] = False

    def cut(self, layer: LinearLayer) -> list[Slices]:
        return [linear_slices(layer, rows, (0, layer.num_inputs), False) for rows in _matrices(layer)]


@dataclass(frozen=True)
class HalfColumn:
    """Removes the weights of an output from the first or from the second half of the inputs."""

    is_half: ClassVar[bool] = True

    def cut(self, layer: LinearLayer) -> list[Slices]:
        halves = _halves((0, layer.num_inputs))
        return [linear_slices(layer, rows, half, False) for rows in _matrices(layer) for half in halves]


@dataclass(frozen=True)
class WholeRow:
    """Removes an input with all its weights."""

    is_half: ClassVar[bool] = False

    def cut(self, layer: LinearLayer) -> list[Slices]:
        return [linear_slices(layer, rows, (0, layer.num_inputs), True) for rows in _matrices(layer)]


@dataclass(frozen=True)
class HalfRow:
    """Removes the weights of an input to the first or to the second half of the outputs."""

    is_half: ClassVar[bool] = True

    def cut(self, layer: LinearLayer) -> list[Slices]:
        halves = [half for rows in _matrices(layer) for half in _halves(rows)]
        return [linear_slices(layer, half, (0, layer.num_inputs), True) for half in halves]


Pattern = WholeColumn | HalfColumn | WholeRow | HalfRow


def cut(layers: Sequence[Layer], pattern: Pattern) -> list[Slices]:
    """Return all slices of these layers."""
    slices: list[Slices] = []
    for layer in layers:
        if isinstance(layer, LinearLayer):
            slices += pattern.cut(layer)
        elif isinstance(layer, RecurrentLayer):
            slices.append(recurrent_slices(layer))
        elif isinstance(pattern, WholeColumn | HalfColumn):
            slices.append(embedding_slices(layer))
        else:
            raise ValueError(f"{layer.name}: a row of an embedding is a token, which cannot be removed")
    return slices


def slices_of(
    structure: Sequence[Layer], layers: Sequence[str], exclude: Sequence[str], pattern: Pattern
) -> list[Slices]:
    """Return the slices of all layers of a model that `layers` names and `exclude` does not."""
    names = [layer.name for layer in structure]
    for name in layers:
        if not any(matches(known, [name]) for known in names):
            known = ", ".join(names[:5])
            raise ValueError(f"layers: {name!r} matches no layer that can be pruned: {known} …")
    named = [layer for layer in structure if matches(layer.name, layers)]
    chosen = [layer for layer in named if not matches(layer.name, exclude)]
    if not chosen:
        raise ValueError(f"layers {', '.join(layers)} are all excluded: there is nothing to prune")
    return cut(chosen, pattern)


def remaining(slices: Sequence[Slices], masks: Sequence[Tensor]) -> RemainingUnits:
    """Return what remains of the layers, given a mask for each group of slices."""
    regions: dict[str, list[Region]] = {}
    units = {}
    for group, mask in zip(slices, masks, strict=True):
        if group.region is not None:
            regions.setdefault(group.layer, []).append(group.region(mask))
        else:
            units[group.layer] = mask
    return RemainingUnits(regions, units)


def _matrices(layer: LinearLayer) -> list[Span]:
    height = layer.num_outputs // layer.num_matrices
    return [(first, first + height) for first in range(0, layer.num_outputs, height)]


def _halves(span: Span) -> list[Span]:
    middle = (span[0] + span[1] + 1) // 2
    return [half for half in ((span[0], middle), (middle, span[1])) if half[0] < half[1]]


def weights_of(params: Tensors, slices: Sequence[Slices]) -> Mapping[str, Tensor]:
    """Return the weights that the slices are parts of."""
    layers = {group.layer for group in slices}
    return {n: p for n, p in params.items() if p.dim() == 2 and n.rpartition(".")[0] in layers}
