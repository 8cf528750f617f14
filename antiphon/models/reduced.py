"""Models of which only some units are left: small dense tensors, read and spread between whole widths.

The units that R. Lin et al., "Federated Pruning", Interspeech 2022, remove are of three kinds, and each saves
memory and time in its own way:

- A hidden unit of a feed-forward module is gone from both its matrices: they are ordinary smaller ones, and
  so is the activation between them.
- An output into the residual stream, or into an attention head, has neighbours that stay. The product is of a
  smaller matrix; its result is spread over the whole width, where the bias stands for what is gone.
  That moves one number where the product it saves multiplies hundreds.
- A unit of an LSTM is gone with its four gates and its way back; its output is 0. The LSTM is an ordinary
  smaller one, and the next layer of a bidirectional encoder no longer reads the unit.

There are no masks and no hooks. Parameters have the names they have in the large model, but for a weight that
is in several blocks (half rows and columns): `weights.0`, `weights.1`.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from antiphon.models.blstm import Blstm, BlstmLayer
from antiphon.models.conformer import ConformerLayer
from antiphon.models.ctc import CtcConfig
from antiphon.models.layers import open_forget_gates
from antiphon.models.lstm import LstmCell, bidirectional
from antiphon.models.model import MODELS, Model, ModelConfig
from antiphon.models.units import Units
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
# Linear layers that are never called: their weights are used otherwise. And those whose outputs are tokens.
NOT_CALLED = ("attention.location", "attention.location_output", "attention.energy")
OF_TOKENS = ("output", "ctc")


@MODELS.register
@dataclass(frozen=True)
class ReducedConfig:
    """A model that was made smaller: what it was, and what is kept of it."""

    full: ModelConfig = field(default_factory=CtcConfig)
    submodel: Submodel = field(default_factory=Submodel)
    renamed: ClassVar = {"kept": "submodel"}
    why_whole: ClassVar[str] = "this model was pruned already: prune the one it was made from"

    def build(self, input_dim: int, num_tokens: int) -> Model:
        """Without the large model ever being in memory: it is built of shapes alone."""
        with torch.device("meta"):
            full: Any = self.full.build(input_dim, num_tokens)
        small = reduced(full, self.submodel)
        for module in small.modules():
            if any(p.is_meta for p in module.parameters(recurse=False)):
                module.to_empty(device="cpu", recurse=False)
                module.reset_parameters()
            if isinstance(module, nn.LSTM | nn.LSTMCell):
                open_forget_gates(module)
        model: Model = small
        return model


def structure_of(model: Model | nn.Module) -> tuple[Layer, ...]:
    """The layers of a model that units can be removed from."""
    feeds: dict[str, str] = {}
    matrices: dict[str, int] = {}
    hears: dict[str, tuple[str, ...]] = {}
    for name, module in model.named_modules():
        if isinstance(module, ConformerLayer):
            for part in ("feed_forward_before", "feed_forward_after"):
                feeds[f"{name}.{part}.1"] = f"{name}.{part}.4"
            matrices[f"{name}.attention.query_key_value"] = 3
        if isinstance(module, Blstm):
            for number in range(1, len(module.layers)):
                before = tuple(f"{name}.layers.{number - 1}.{way}" for way in ("forwards", "backwards"))
                hears |= {f"{name}.layers.{number}.{way}": before for way in ("forwards", "backwards")}
    found: list[Layer] = []
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and name not in (*NOT_CALLED, *OF_TOKENS):
            sizes = module.out_features, module.in_features
            found.append(LinearLayer(name, *sizes, matrices.get(name, 1), feeds.get(name, "")))
        elif isinstance(module, nn.LSTM | nn.LSTMCell):
            sizes = module.hidden_size, module.input_size
            found.append(RecurrentLayer(name, *sizes, hears.get(name, ())))
        elif isinstance(module, nn.Embedding):
            found.append(EmbeddingLayer(name, module.num_embeddings, module.embedding_dim))
    return tuple(found)


def reduced(model: AnyModule, submodel: Submodel) -> AnyModule:
    """A small copy of a model with what is kept of its parameters; refuses what does not fit it."""
    params = {name: p.detach() for name, p in model.named_parameters()}
    submodel.check({name for name, _ in model.named_modules()})
    layers: dict[str, nn.Module] = {}
    for name, layer in submodel.layers.items():
        parent = name.rpartition(".")[0]
        owner = model.get_submodule(parent)
        if isinstance(owner, BlstmLayer):  # its two directions share what they hear, and a norm
            layers[parent] = _reduced_blstm(owner, parent, submodel)
        else:
            layers[name] = _reduced_layer(model.get_submodule(name), layer, name)
    # The copy meets the new layers where the old ones were: there are never two large models.
    small = copy.deepcopy(model, {id(model.get_submodule(name)): new for name, new in layers.items()})
    like = next(iter(params.values()))
    if like.is_meta:  # there are no values to be kept
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


# --- Layers ---------------------------------------------------------------------------------------


class ReducedLinear(nn.Module):
    """Values [..., inputs that exist] -> [..., outputs that exist]: a product a block, and the bias."""

    @classmethod
    def of(cls, full: nn.Linear, kept: SubmodelLinear, name: str) -> nn.Module:
        """An ordinary layer where one product makes all there is out of all there is."""
        inputs = read_units(kept.inputs, full.in_features, name)
        outputs = read_units(kept.outputs, full.out_features, name)
        blocks = []
        for block in kept.blocks:
            own_inputs = read_units(block.inputs, full.in_features, name)[inputs]
            own_outputs = read_units(block.outputs, full.out_features, name)[outputs]
            blocks.append((own_inputs, own_outputs))
        if len(blocks) == 1 and all(bool(own.all()) for own in blocks[0]):
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
            part = outputs.scatter(F.linear(inputs.take_more(values), _padded(weight, inputs, outputs)))
            total = part if total is None else total + part
        assert total is not None
        return total if self.bias is None else total + self.bias.to(total.dtype)


def _padded(weight: Tensor, inputs: Units, outputs: Units) -> Tensor:
    """With zeros for what is taken and made beyond the units."""
    if inputs.num_more == outputs.num_more == 0:
        return weight
    return F.pad(weight, (0, inputs.num_more, 0, outputs.num_more))


class ReducedEmbedding(nn.Module):
    def __init__(self, full: nn.Embedding, kept: SubmodelEmbedding, name: str) -> None:
        super().__init__()
        self.outputs = Units(read_units(kept.outputs, full.embedding_dim, name))
        self.weight = nn.Parameter(torch.randn(full.num_embeddings, self.outputs.num))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.outputs.scatter(F.embedding(tokens, self.weight))


class ReducedBlstmLayer(nn.Module):
    """A `BlstmLayer` of narrower LSTMs; its norm is as wide as ever, with zeros for units that are gone."""

    def __init__(
        self, full: BlstmLayer, forwards: SubmodelRecurrent, backwards: SubmodelRecurrent, name: str
    ) -> None:
        super().__init__()
        num_inputs, num_units = full.forwards.input_size, full.forwards.hidden_size
        self.inputs = Units(read_units(forwards.inputs, num_inputs, name))
        ways = [read_units(way.units, num_units, name) for way in (forwards, backwards)]
        self.units = Units(torch.cat(ways))
        self.forwards, self.backwards = (
            nn.LSTM(self.inputs.num, int(way.sum()), batch_first=True) for way in ways
        )
        self.norm, self.dropout = copy.deepcopy((full.norm, full.dropout))

    def forward(self, frames: Tensor, lengths: Tensor) -> Tensor:
        narrow = bidirectional(self.forwards, self.backwards, self.inputs.take(frames), lengths)
        normed: Tensor = self.norm(self.units.scatter(narrow))
        dropped: Tensor = self.dropout(normed)
        return dropped


def _reduced_blstm(full: BlstmLayer, name: str, submodel: Submodel) -> ReducedBlstmLayer:
    ways = [submodel.layers.get(f"{name}.{way}", SubmodelRecurrent()) for way in ("forwards", "backwards")]
    forwards, backwards = ways
    if not isinstance(forwards, SubmodelRecurrent) or not isinstance(backwards, SubmodelRecurrent):
        raise ValueError(f"{name}: the mask is for another kind of layer than the model's BlstmLayer")
    if forwards.inputs != backwards.inputs:
        raise ValueError(f"{name}: the mask has two directions that hear different inputs")
    return ReducedBlstmLayer(full, forwards, backwards, name)


class ReducedCell(LstmCell):
    """An LSTM cell whose state is as wide as ever, with zeros for units that are gone."""

    def __init__(self, full: nn.LSTMCell, kept: SubmodelRecurrent, name: str) -> None:
        inputs = Units(read_units(kept.inputs, full.input_size, name))
        units = Units(read_units(kept.units, full.hidden_size, name))
        super().__init__(inputs.num, units.num)
        self.inputs, self.units = inputs, units

    def forward(  # type: ignore[override]
        self, values: Tensor, state: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        narrow = self.units.take(state[0]), self.units.take(state[1])
        hidden, carry = super().forward(self.inputs.take(values), narrow)
        return self.units.scatter(hidden), self.units.scatter(carry)
