"""The layers of a model that can lose units, and what remains of them.

A model's `structure` (`models.reduced.structure_of`) lists its layers with their sizes, and which of them
share units. This module knows no model, and algorithms need none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from antiphon.core import Tensors
from antiphon.tasks.submodel import (
    NUM_GATES,
    Block,
    Submodel,
    SubmodelEmbedding,
    SubmodelLayer,
    SubmodelLinear,
    SubmodelRecurrent,
    write_units,
)


@dataclass(frozen=True)
class LinearLayer:
    """A weight [num_outputs, num_inputs]; it may hold `num_matrices` of equal size, one below the other.

    `feeds` is the linear layer that alone reads the outputs: a unit between them is removed from both.
    """

    name: str
    num_outputs: int
    num_inputs: int
    num_matrices: int = 1
    feeds: str = ""

    @property
    def weight(self) -> tuple[str, tuple[int, int]]:
        """The beginning of the name of its parameter, and the shape."""
        return f"{self.name}.weight", (self.num_outputs, self.num_inputs)


@dataclass(frozen=True)
class RecurrentLayer:
    """An LSTM; `hears` names the LSTMs whose units, concatenated, are its inputs, if they are."""

    name: str
    num_units: int
    num_inputs: int
    hears: tuple[str, ...] = ()

    @property
    def weight(self) -> tuple[str, tuple[int, int]]:
        return f"{self.name}.weight_ih", (NUM_GATES * self.num_units, self.num_inputs)


@dataclass(frozen=True)
class EmbeddingLayer:
    """A vector of `dim` values for each token."""

    name: str
    num_tokens: int
    dim: int

    @property
    def weight(self) -> tuple[str, tuple[int, int]]:
        return f"{self.name}.weight", (self.num_tokens, self.dim)


Layer = LinearLayer | RecurrentLayer | EmbeddingLayer
Region = tuple[Tensor, Tensor]  # a part of a linear layer's weight: masks of its outputs and inputs


@dataclass(frozen=True)
class RemainingUnits:
    """What remains of each layer that loses units: regions of a weight, or units of an LSTM or embedding."""

    regions: Mapping[str, Sequence[Region]]
    units: Mapping[str, Tensor]

    def submodel(self, structure: Sequence[Layer]) -> Submodel:
        """Return the submodel: a unit that layers share is removed from all of them."""
        linear = {layer.name: layer for layer in structure if isinstance(layer, LinearLayer)}
        alive = {
            first.name: self._alive(first, linear[first.feeds])
            for first in linear.values()
            if first.feeds and not {first.name, first.feeds}.isdisjoint(self.regions)
        }
        before = {first.feeds: alive[first.name] for first in linear.values() if first.name in alive}
        layers: dict[str, SubmodelLayer] = {}
        for layer in structure:
            if isinstance(layer, LinearLayer):
                layers[layer.name] = self._linear(layer, alive.get(layer.name), before.get(layer.name))
            elif isinstance(layer, RecurrentLayer):
                layers[layer.name] = self._recurrent(layer, structure)
            elif layer.name in self.units:
                layers[layer.name] = SubmodelEmbedding(write_units(self.units[layer.name]))
        whole: tuple[SubmodelLayer, ...] = (SubmodelLinear(), SubmodelRecurrent(), SubmodelEmbedding())
        return Submodel({name: layer for name, layer in layers.items() if layer not in whole})

    def _regions(self, layer: LinearLayer) -> Sequence[Region]:
        everything = torch.ones(layer.num_outputs).bool(), torch.ones(layer.num_inputs).bool()
        return self.regions.get(layer.name, [everything])

    def _alive(self, first: LinearLayer, second: LinearLayer) -> Tensor:
        """Return the units between two layers that both layers still use."""
        written = torch.stack([outputs for outputs, _ in self._regions(first)]).any(dim=0)
        read = torch.stack([inputs for _, inputs in self._regions(second)]).any(dim=0)
        if not bool((written & read).any()):
            raise ValueError(f"{first.name} would lose every unit: choose a lower sparsity")
        return written & read

    def _linear(self, layer: LinearLayer, outputs: Tensor | None, inputs: Tensor | None) -> SubmodelLinear:
        outputs = torch.ones(layer.num_outputs).bool() if outputs is None else outputs
        inputs = torch.ones(layer.num_inputs).bool() if inputs is None else inputs
        by_inputs: dict[str, Tensor] = {}  # regions with the same inputs become one block
        for region_outputs, region_inputs in self._regions(layer):
            key, rows = write_units(region_inputs & inputs), region_outputs & outputs
            if bool((region_inputs & inputs).any()) and bool(rows.any()):
                by_inputs[key] = by_inputs[key] | rows if key in by_inputs else rows
        blocks = tuple(Block(key, write_units(rows)) for key, rows in by_inputs.items())
        if not blocks:
            raise ValueError(f"{layer.name} would lose every unit: choose a lower sparsity")
        return SubmodelLinear(blocks, write_units(inputs), write_units(outputs))

    def _recurrent(self, layer: RecurrentLayer, structure: Sequence[Layer]) -> SubmodelRecurrent:
        sizes = {other.name: other.num_units for other in structure if isinstance(other, RecurrentLayer)}
        heard = [self.units.get(name, torch.ones(sizes[name]).bool()) for name in layer.hears]
        units = self.units.get(layer.name, torch.ones(layer.num_units).bool())
        return SubmodelRecurrent(write_units(units), write_units(torch.cat(heard)) if heard else "")


def check_structure(structure: Sequence[Layer], params: Tensors) -> None:
    """Refuse the layers of another model."""
    for layer in structure:
        beginning, shape = layer.weight
        shapes = [tuple(p.shape) for name, p in params.items() if name.startswith(beginning)]
        if shapes != [shape]:
            has = f"has {shapes[0]}" if shapes else "has none"
            raise ValueError(f"{layer.name}: a weight of {shape} was expected, but the model {has}")
