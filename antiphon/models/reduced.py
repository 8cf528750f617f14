"""Pruned models: small dense tensors between layers of full width.

R. Lin et al., "Federated Pruning", Interspeech 2022, removes three kinds of units. Each saves memory and time
in its own way:

- A hidden unit of a feed-forward module is removed from both matrices: these are ordinary smaller ones.
- An output into the residual stream or into an attention head has neighbours that stay. A smaller matrix is
  multiplied, and its result is scattered over the full width; a removed output is the bias alone.
- A unit of an LSTM is removed with its four gates and its recurrent weights. The LSTM is an ordinary smaller
  one. The next layer of a bidirectional encoder no longer reads the unit; elsewhere its output is 0.

There are no masks and no hooks. Parameters have the names they have in the large model. A weight of several
blocks (half rows and columns) is `weights.0`, `weights.1`, ...
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from antiphon.models.blstm import Blstm, BlstmLayer, LstmCell, bidirectional, open_forget_gates
from antiphon.models.conformer import ConformerLayer
from antiphon.models.ctc import CtcConfig
from antiphon.models.model import MODELS, Model, ModelConfig
from antiphon.tasks.prunable_layers import EmbeddingLayer, Layer, LinearLayer, RecurrentLayer
from antiphon.tasks.submodel import (
    Submodel,
    SubmodelEmbedding,
    SubmodelLinear,
    SubmodelRecurrent,
    read_units,
    shrink,
)

AnyModule = TypeVar("AnyModule", bound=nn.Module)
# Linear layers of LAS attention that are never called (only their weights are used), and output layers.
NOT_PRUNED = ("attention.location", "attention.location_output", "attention.energy", "output", "ctc")
DIRECTIONS = ("forwards", "backwards")
ALIGNMENT = 8  # a product whose width is a multiple of this is faster on a CPU


@MODELS.register
@dataclass(frozen=True)
class ReducedConfig:
    """A pruned model: the configuration of the full model, and the units that are left."""

    full: ModelConfig = field(default_factory=CtcConfig)
    submodel: Submodel = field(default_factory=Submodel)
    renamed: ClassVar = {"kept": "submodel"}
    why_whole: ClassVar[str] = "this model was pruned already: prune the one it was made from"

    def build(self, input_dim: int, num_tokens: int) -> Model:
        """Build the small model without the large one in memory: that one has shapes only."""
        with torch.device("meta"):
            full: Any = self.full.build(input_dim, num_tokens)
        small = reduced(full, self.submodel)
        for module in small.modules():
            if any(p.is_meta for p in module.parameters(recurse=False)):
                module.to_empty(device="cpu", recurse=False)
                module.reset_parameters()
            if isinstance(module, nn.LSTM | nn.LSTMCell):
                open_forget_gates(module)
        return small


def structure_of(model: Model | nn.Module) -> tuple[Layer, ...]:
    """The layers of a model that units can be removed from."""
    feeds: dict[str, str] = {}
    matrices: dict[str, int] = {}
    sources: dict[str, tuple[str, ...]] = {}
    for name, module in model.named_modules():
        if isinstance(module, ConformerLayer):
            for part in ("feed_forward_before", "feed_forward_after"):
                feeds[f"{name}.{part}.1"] = f"{name}.{part}.4"
            matrices[f"{name}.attention.query_key_value"] = 3
        if isinstance(module, Blstm):
            for number in range(1, len(module.layers)):
                before = tuple(f"{name}.layers.{number - 1}.{direction}" for direction in DIRECTIONS)
                sources |= {f"{name}.layers.{number}.{direction}": before for direction in DIRECTIONS}
    layers: list[Layer] = []
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and name not in NOT_PRUNED:
            sizes = module.out_features, module.in_features
            layers.append(LinearLayer(name, *sizes, matrices.get(name, 1), feeds.get(name, "")))
        elif isinstance(module, nn.LSTM | nn.LSTMCell):
            layers.append(RecurrentLayer(name, module.hidden_size, module.input_size, sources.get(name, ())))
        elif isinstance(module, nn.Embedding):
            layers.append(EmbeddingLayer(name, module.num_embeddings, module.embedding_dim))
    return tuple(layers)


def reduced(model: AnyModule, submodel: Submodel) -> AnyModule:
    """A small copy of a model with the remaining parameters; refuses a submodel that does not fit it."""
    params = {name: p.detach() for name, p in model.named_parameters()}
    submodel.check({name for name, _ in model.named_modules()})
    layers: dict[str, nn.Module] = {}
    for name, layer in submodel.layers.items():
        parent = name.rpartition(".")[0]
        owner = model.get_submodule(parent)
        if isinstance(owner, BlstmLayer):  # its two directions share their inputs and a norm
            layers[parent] = ReducedBlstmLayer(owner, parent, submodel)
        else:
            layers[name] = _reduced_layer(model.get_submodule(name), layer, name)
    # deepcopy finds the new layers in its memo instead of the old ones: there are never two large models.
    small = copy.deepcopy(model, {id(model.get_submodule(name)): new for name, new in layers.items()})
    like = next(iter(params.values()))
    if like.is_meta:  # there are no values to copy
        return small
    small.to(like.device, like.dtype)
    with torch.no_grad():
        values = shrink(params, submodel)
        for name, parameter in small.named_parameters():
            parameter.copy_(values[name])
    return small


def _reduced_layer(module: nn.Module, layer: object, name: str) -> nn.Module:
    if isinstance(module, nn.Linear) and isinstance(layer, SubmodelLinear):
        return ReducedLinear.of(module, layer, name)
    if isinstance(module, nn.LSTMCell) and isinstance(layer, SubmodelRecurrent):
        return ReducedCell(module, layer, name)
    if isinstance(module, nn.Embedding) and isinstance(layer, SubmodelEmbedding):
        return ReducedEmbedding(module, layer, name)
    raise ValueError(f"{name}: the mask is for another kind of layer than a {type(module).__name__}")


class ReducedLinear(nn.Module):
    """Values [..., inputs that exist] -> [..., outputs that exist]: a product per block, and the bias."""

    @classmethod
    def of(cls, full: nn.Linear, submodel: SubmodelLinear, name: str) -> nn.Module:
        """The reduced layer; an ordinary `nn.Linear` if one block has all inputs and outputs."""
        inputs = read_units(submodel.inputs, full.in_features, name)
        outputs = read_units(submodel.outputs, full.out_features, name)
        blocks = []
        for block in submodel.blocks:
            block_inputs = read_units(block.inputs, full.in_features, name)[inputs]
            blocks.append((block_inputs, read_units(block.outputs, full.out_features, name)[outputs]))
        if len(blocks) == 1 and all(bool(mask.all()) for mask in blocks[0]):
            return nn.Linear(int(inputs.sum()), int(outputs.sum()), full.bias is not None)
        return cls(blocks, full.bias is not None)

    def __init__(self, blocks: list[tuple[Tensor, Tensor]], has_bias: bool) -> None:
        super().__init__()
        self.inputs = nn.ModuleList(Units(inputs) for inputs, _ in blocks)
        self.outputs = nn.ModuleList(Units(outputs) for _, outputs in blocks)
        weights = [nn.Parameter(torch.empty(int(outs.sum()), int(ins.sum()))) for ins, outs in blocks]
        if len(weights) == 1:
            self.weight = weights[0]
        else:
            self.weights = nn.ParameterList(weights)
        for weight in weights:
            nn.init.kaiming_uniform_(weight, a=5**0.5)  # as nn.Linear
        self.bias = nn.Parameter(torch.zeros(len(blocks[0][1]))) if has_bias else None

    def forward(self, values: Tensor) -> Tensor:
        weights = [self.weight] if len(self.inputs) == 1 else self.weights
        total: Tensor | None = None
        for weight, inputs, outputs in zip(weights, self.inputs, self.outputs, strict=True):
            assert isinstance(inputs, Units)
            assert isinstance(outputs, Units)
            if inputs.num_padding or outputs.num_padding:
                weight = F.pad(weight, (0, inputs.num_padding, 0, outputs.num_padding))
            part = outputs.scatter(F.linear(inputs.take_padded(values), weight))
            total = part if total is None else total + part
        assert total is not None
        return total if self.bias is None else total + self.bias.to(total.dtype)


class ReducedEmbedding(nn.Module):
    def __init__(self, full: nn.Embedding, submodel: SubmodelEmbedding, name: str) -> None:
        super().__init__()
        self.outputs = Units(read_units(submodel.outputs, full.embedding_dim, name))
        self.weight = nn.Parameter(torch.randn(full.num_embeddings, self.outputs.num))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.outputs.scatter(F.embedding(tokens, self.weight))


class ReducedBlstmLayer(nn.Module):
    """A `BlstmLayer` of narrower LSTMs; the norm keeps its width, with zeros for removed units."""

    def __init__(self, full: BlstmLayer, name: str, submodel: Submodel) -> None:
        super().__init__()
        layers = (submodel.layers.get(f"{name}.{direction}", SubmodelRecurrent()) for direction in DIRECTIONS)
        forwards, backwards = layers
        if not isinstance(forwards, SubmodelRecurrent) or not isinstance(backwards, SubmodelRecurrent):
            raise ValueError(f"{name}: the mask is for another kind of layer than the model's BlstmLayer")
        if forwards.inputs != backwards.inputs:
            raise ValueError(f"{name}: the mask has two directions that read different inputs")
        self.inputs = Units(read_units(forwards.inputs, full.forwards.input_size, name))
        masks = [read_units(way.units, full.forwards.hidden_size, name) for way in (forwards, backwards)]
        self.units = Units(torch.cat(masks))
        self.forwards, self.backwards = (
            nn.LSTM(self.inputs.num, int(mask.sum()), batch_first=True) for mask in masks
        )
        self.norm, self.dropout = copy.deepcopy((full.norm, full.dropout))

    def forward(self, frames: Tensor, lengths: Tensor) -> Tensor:
        narrow = bidirectional(self.forwards, self.backwards, self.inputs.take(frames), lengths)
        return self.dropout(self.norm(self.units.scatter(narrow)))


class ReducedCell(LstmCell):
    """An LSTM cell whose state keeps its width, with zeros for removed units."""

    def __init__(self, full: nn.LSTMCell, submodel: SubmodelRecurrent, name: str) -> None:
        inputs = Units(read_units(submodel.inputs, full.input_size, name))
        units = Units(read_units(submodel.units, full.hidden_size, name))
        super().__init__(inputs.num, units.num)
        self.inputs, self.units = inputs, units

    def forward(self, values: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        narrow = self.units.take(state[0]), self.units.take(state[1])
        hidden, carry = super().forward(self.inputs.take(values), narrow)
        return self.units.scatter(hidden), self.units.scatter(carry)


class Units(nn.Module):
    """Some of a layer's units: `take` selects them, `scatter` puts them among zeros.

    Removed units are 0. `num_padding` values for ALIGNMENT follow the last unit; they meet zero weights.
    """

    index: Tensor
    position: Tensor
    exists: Tensor

    def __init__(self, mask: Tensor) -> None:
        super().__init__()
        self.num, self.is_all = int(mask.sum()), bool(mask.all())
        self.num_padding = 0 if self.is_all else -self.num % ALIGNMENT
        # Constants, not state: they are never saved, and move to a device with the model.
        index = F.pad(mask.nonzero().squeeze(1), (0, self.num_padding))
        self.register_buffer("index", index, persistent=False)
        self.register_buffer("position", (mask.cumsum(0) - 1).clamp(min=0), persistent=False)
        self.register_buffer("exists", mask.to(torch.get_default_dtype()), persistent=False)

    def take(self, values: Tensor) -> Tensor:
        """[..., all] -> [..., some]."""
        return self.take_padded(values)[..., : self.num]

    def take_padded(self, values: Tensor) -> Tensor:
        """[..., all] -> [..., some and padding]."""
        return (
            values if self.is_all else MoveUnits.apply(values, True, self.index, self.position, self.exists)
        )

    def scatter(self, values: Tensor) -> Tensor:
        """[..., some] or [..., some and padding] -> [..., all]."""
        if self.is_all:
            return values
        return MoveUnits.apply(values, False, self.index[: values.shape[-1]], self.position, self.exists)


class MoveUnits(torch.autograd.Function):
    """Taking and scattering are each other's gradient; that of `gather` would add into memory."""

    generate_vmap_rule = True

    @staticmethod
    def forward(values: Tensor, is_taking: bool, index: Tensor, position: Tensor, exists: Tensor) -> Tensor:
        source = index if is_taking else position
        moved = values.gather(-1, source.expand(*values.shape[:-1], len(source)))
        return moved if is_taking else moved * exists.to(values.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, ctx.is_taking, *constants = inputs
        ctx.save_for_backward(*constants)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        return MoveUnits.apply(upstream[0], not ctx.is_taking, *ctx.saved_tensors), None, None, None, None
