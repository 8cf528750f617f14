"""What can be removed from a model: its layers, as far as removing units is concerned.

A model's `structure` (`models.reduced.structure_of`) names its layers with their sizes, and which of them
have units in common. Nothing here knows a model, and nothing in `algorithms` needs to.
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
    """A weight [num_outputs, num_inputs]; `num_matrices` of equal size may lie in it, one below the other.

    `feeds` is a linear layer that alone reads the outputs: a hidden unit between the two leaves both.
    """

    name: str
    num_outputs: int
    num_inputs: int
    num_matrices: int = 1
    feeds: str = ""

    @property
    def weight(self) -> tuple[str, tuple[int, int]]:
        """How its parameter's name begins, and the shape of that."""
        return f"{self.name}.weight", (self.num_outputs, self.num_inputs)


@dataclass(frozen=True)
class RecurrentLayer:
    """An LSTM; `hears` are the LSTMs whose units, one after another, are its inputs: none if they are not."""

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
Region = tuple[Tensor, Tensor]  # of a linear layer's weight, a bool for each output and for each input


@dataclass(frozen=True)
class Left:
    """What is left of each layer that was cut: regions of a weight, or units of an LSTM or embedding."""

    regions: Mapping[str, Sequence[Region]]
    units: Mapping[str, Tensor]

    def submodel(self, structure: Sequence[Layer]) -> Submodel:
        """The same, with the units that layers have in common gone from all of them."""
        linear = {layer.name: layer for layer in structure if isinstance(layer, LinearLayer)}
        alive = {
            first.name: self._alive(first, linear[first.feeds])
            for first in linear.values()
            if first.feeds and not {first.name, first.feeds}.isdisjoint(self.regions)
        }
        before = {first.feeds: alive[first.name] for first in linear.values() if first.name in alive}
        kept: dict[str, SubmodelLayer] = {}
        for layer in structure:
            if isinstance(layer, LinearLayer):
                kept[layer.name] = self._linear(layer, alive.get(layer.name), before.get(layer.name))
            elif isinstance(layer, RecurrentLayer):
                kept[layer.name] = self._recurrent(layer, structure)
            elif layer.name in self.units:
                kept[layer.name] = SubmodelEmbedding(write_units(self.units[layer.name]))
        whole: tuple[SubmodelLayer, ...] = (SubmodelLinear(), SubmodelRecurrent(), SubmodelEmbedding())
        return Submodel({name: layer for name, layer in kept.items() if layer not in whole})

    def _regions(self, layer: LinearLayer) -> Sequence[Region]:
        everything = torch.ones(layer.num_outputs).bool(), torch.ones(layer.num_inputs).bool()
        return self.regions.get(layer.name, [everything])

    def _alive(self, first: LinearLayer, second: LinearLayer) -> Tensor:
        """Hidden units that still have something to come from and somewhere to go."""
        come = torch.stack([outputs for outputs, _ in self._regions(first)]).any(dim=0)
        go = torch.stack([inputs for _, inputs in self._regions(second)]).any(dim=0)
        return refuse_none(come & go, first.name)

    def _linear(self, layer: LinearLayer, outputs: Tensor | None, inputs: Tensor | None) -> SubmodelLinear:
        outputs = torch.ones(layer.num_outputs).bool() if outputs is None else outputs
        inputs = torch.ones(layer.num_inputs).bool() if inputs is None else inputs
        by_inputs: dict[str, Tensor] = {}  # regions with the same inputs are one product
        for region_outputs, region_inputs in self._regions(layer):
            key, own = write_units(region_inputs & inputs), region_outputs & outputs
            if bool((region_inputs & inputs).any()) and bool(own.any()):
                by_inputs[key] = by_inputs[key] | own if key in by_inputs else own
        blocks = tuple(Block(key, write_units(own)) for key, own in by_inputs.items())
        if not blocks:
            raise ValueError(f"{layer.name} would lose every unit: choose a lower sparsity")
        return SubmodelLinear(blocks, write_units(inputs), write_units(outputs))

    def _recurrent(self, layer: RecurrentLayer, structure: Sequence[Layer]) -> SubmodelRecurrent:
        sizes = {other.name: other.num_units for other in structure if isinstance(other, RecurrentLayer)}
        heard = [self.units.get(name, torch.ones(sizes[name]).bool()) for name in layer.hears]
        units = self.units.get(layer.name, torch.ones(layer.num_units).bool())
        return SubmodelRecurrent(write_units(units), write_units(torch.cat(heard)) if heard else "")


def check_structure(structure: Sequence[Layer], params: Tensors) -> None:
    """Refuses the layers of another model."""
    for layer in structure:
        beginning, shape = layer.weight
        found = [tuple(p.shape) for name, p in params.items() if name.startswith(beginning)]
        if found != [shape]:
            has = f"has {found[0]}" if found else "has none"
            raise ValueError(f"{layer.name}: a weight of {shape} was expected, but the model {has}")


def refuse_none(units: Tensor, layer: str) -> Tensor:
    if not bool(units.any()):
        raise ValueError(f"{layer} would lose every unit: choose a lower sparsity")
    return units
