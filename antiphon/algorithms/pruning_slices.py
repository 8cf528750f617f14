"""The slices of a model's weights that can be removed: patterns of rows and columns, whole or half.

R. Lin et al., "Federated Pruning", Interspeech 2022, §2.1.

| paper                        | here                                                                  |
| ---------------------------- | --------------------------------------------------------------------- |
| W, in × out                  | a layer's weight, stored as torch does: out × in                      |
| column, row of W             | all weights of an output, of an input                                 |
| [W_1, W_2]                   | the two halves of every column (or row), ranked each among its like   |

Deviations.
- Matrices stored in one tensor (queries, keys and values) are ranked and counted apart, as in Table 1.
- An LSTM has one kind of slice whatever the pattern: a unit, with all its gates, is scored by their weights
  from the input and from the units before. A removed gate alone would leave a unit that still costs as much.
- An embedding, where one is asked for, loses values in the column patterns; a row would be a token.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from antiphon.core import Tensors
from antiphon.tasks.prunable_layers import Layer, Left, LinearLayer, RecurrentLayer, Region
from antiphon.tasks.submodel import NUM_GATES

Span = tuple[int, int]


@dataclass(frozen=True)
class LinearSlices:
    """The slices of a part of a weight: along an output (a column of W), or along an input (a row)."""

    layer: str
    shape: tuple[int, int]  # of the whole weight: outputs, inputs
    outputs: Span
    inputs: Span
    along_input: bool

    @property
    def name(self) -> str:
        whole = self.outputs == (0, self.shape[0]) and self.inputs == (0, self.shape[1])
        return self.layer if whole else f"{self.layer}[{_span(self.outputs)}, {_span(self.inputs)}]"

    @property
    def size(self) -> int:
        """How many slices."""
        first, last = self.inputs if self.along_input else self.outputs
        return last - first

    @property
    def num_weights(self) -> int:
        return (self.outputs[1] - self.outputs[0]) * (self.inputs[1] - self.inputs[0])

    @property
    def drawn(self) -> float:
        """mean|w| before any training: torch draws weights evenly, up to 1/√inputs."""
        return 0.5 * self.shape[1] ** -0.5

    def of(self, params: Tensors) -> Tensor:
        """The slices one below the other: [size, weights of a slice]."""
        part = params[f"{self.layer}.weight"][slice(*self.outputs), slice(*self.inputs)]
        return part.T if self.along_input else part

    def region(self, kept: Tensor) -> Region:
        """Where in the weight the slices are that are kept."""
        outputs, inputs = (torch.zeros(size).bool() for size in self.shape)
        outputs[slice(*self.outputs)] = True if self.along_input else kept
        inputs[slice(*self.inputs)] = kept if self.along_input else True
        return outputs, inputs


@dataclass(frozen=True)
class RecurrentSlices:
    """The units of an LSTM."""

    layer: str
    size: int
    num_inputs: int

    @property
    def name(self) -> str:
        return self.layer

    @property
    def num_weights(self) -> int:
        return NUM_GATES * self.size * (self.num_inputs + self.size)

    @property
    def drawn(self) -> float:
        """Up to 1/√units."""
        return 0.5 * self.size**-0.5

    def of(self, params: Tensors) -> Tensor:
        weights = [
            p.view(NUM_GATES, self.size, -1)
            for name, p in params.items()
            if name.startswith((f"{self.layer}.weight_ih", f"{self.layer}.weight_hh"))
        ]
        return torch.cat(weights, dim=2).transpose(0, 1).flatten(1)


@dataclass(frozen=True)
class EmbeddingSlices:
    """The values of an embedding."""

    layer: str
    size: int
    num_tokens: int

    @property
    def name(self) -> str:
        return self.layer

    @property
    def num_weights(self) -> int:
        return self.size * self.num_tokens

    @property
    def drawn(self) -> float:
        """mean|x| of normal ones."""
        return (2 / math.pi) ** 0.5

    def of(self, params: Tensors) -> Tensor:
        return params[f"{self.layer}.weight"].T


Slices = LinearSlices | RecurrentSlices | EmbeddingSlices


# --- Patterns -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WholeColumn:
    """An output goes with all its weights."""

    def cut(self, layer: LinearLayer) -> list[LinearSlices]:
        return [_slices(layer, rows, (0, layer.num_inputs), False) for rows in _matrices(layer)]


@dataclass(frozen=True)
class HalfColumn:
    """An output loses its weights from the first half of the inputs, or those from the second."""

    def cut(self, layer: LinearLayer) -> list[LinearSlices]:
        halves = _halves((0, layer.num_inputs))
        return [_slices(layer, rows, half, False) for rows in _matrices(layer) for half in halves]


@dataclass(frozen=True)
class WholeRow:
    """An input goes with all its weights."""

    def cut(self, layer: LinearLayer) -> list[LinearSlices]:
        return [_slices(layer, rows, (0, layer.num_inputs), True) for rows in _matrices(layer)]


@dataclass(frozen=True)
class HalfRow:
    """An input loses its weights to the first half of the outputs, or those to the second."""

    def cut(self, layer: LinearLayer) -> list[LinearSlices]:
        halves = [half for rows in _matrices(layer) for half in _halves(rows)]
        return [_slices(layer, half, (0, layer.num_inputs), True) for half in halves]


Pattern = WholeColumn | HalfColumn | WholeRow | HalfRow


def cut(layers: Sequence[Layer], pattern: Pattern) -> list[Slices]:
    """All slices of these layers."""
    found: list[Slices] = []
    for layer in layers:
        if isinstance(layer, LinearLayer):
            found += pattern.cut(layer)
        elif isinstance(layer, RecurrentLayer):
            found.append(RecurrentSlices(layer.name, layer.num_units, layer.num_inputs))
        elif isinstance(pattern, WholeColumn | HalfColumn):
            found.append(EmbeddingSlices(layer.name, layer.dim, layer.num_tokens))
        else:
            raise ValueError(f"{layer.name}: a row of an embedding is a token, which cannot be removed")
    return found


def left(slices: Sequence[Slices], kept: Sequence[Tensor]) -> Left:
    """What is left of the layers when these slices are kept: a bool for each."""
    regions: dict[str, list[Region]] = {}
    units = {}
    for own, mask in zip(slices, kept, strict=True):
        if isinstance(own, LinearSlices):
            regions.setdefault(own.layer, []).append(own.region(mask))
        else:
            units[own.layer] = mask
    return Left(regions, units)


def _slices(layer: LinearLayer, outputs: Span, inputs: Span, along_input: bool) -> LinearSlices:
    return LinearSlices(layer.name, (layer.num_outputs, layer.num_inputs), outputs, inputs, along_input)


def _matrices(layer: LinearLayer) -> list[Span]:
    height = layer.num_outputs // layer.num_matrices
    return [(first, first + height) for first in range(0, layer.num_outputs, height)]


def _halves(span: Span) -> list[Span]:
    middle = (span[0] + span[1] + 1) // 2
    return [half for half in ((span[0], middle), (middle, span[1])) if half[0] < half[1]]


def _span(span: Span) -> str:
    return f"{span[0]}:{span[1]}"


def moving(params: Tensors, slices: Sequence[Slices]) -> Mapping[str, Tensor]:
    """The weights that slices are of."""
    layers = {own.layer for own in slices}
    return {n: p for n, p in params.items() if p.dim() == 2 and n.rpartition(".")[0] in layers}
