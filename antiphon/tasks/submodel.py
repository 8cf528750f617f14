"""Submodels: small tensors from large ones (`shrink`), and back (`expand`).

A `Submodel` lists the remaining units of layers. It is data only: it travels in a task, is saved in a
checkpoint, and is part of a small model's configuration (`models.reduced` builds the model). Weights are
[outputs, inputs], as in torch.

Units are written as text, their number and a bit for each in hexadecimal: "6:b4" keeps 0, 2, 3 and 5 of 6. ""
keeps all, whatever their number.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from antiphon import config
from antiphon.core import Collected, Task, Tensors, Update, Weigh
from antiphon.tasks.client_work import Answer
from antiphon.tasks.pool_wrapper import PoolWrapper, WatchedUpdates
from antiphon.tasks.views import CLIENT_VIEWS, View, through

NUM_GATES = 4  # of an LSTM, one below the other in its weights
Index = Tensor | None  # the remaining rows or columns; None: all


def write_units(mask: Tensor) -> str:
    """Return a mask of units as text.

    >>> write_units(torch.tensor([True, False, True, True, False, True])), write_units(torch.ones(3).bool())
    ('6:b4', '')
    """
    return "" if bool(mask.all()) else f"{len(mask)}:{np.packbits(mask.cpu().numpy()).tobytes().hex()}"


def read_units(text: str, size: int, layer: str = "a layer") -> Tensor:
    """Return a mask of `size` units; ValueError if the text is for another number of units.

    >>> read_units("6:b4", 6).int().tolist()
    [1, 0, 1, 1, 0, 1]
    """
    if not text:
        return torch.ones(size, dtype=torch.bool)
    count, _, digits = text.partition(":")
    if count != str(size) or len(digits) != 2 * -(-size // 8):
        raise ValueError(f"{layer}: the mask is for {count} units, but the model has {size} there")
    return torch.from_numpy(np.unpackbits(np.frombuffer(bytes.fromhex(digits), np.uint8))[:size].astype(bool))


def indices(text: str, size: int, layer: str) -> Index:
    return read_units(text, size, layer).nonzero().squeeze(1) if text else None


@dataclass(frozen=True)
class Piece:
    """The name of a small tensor, and its rows and columns in the large one."""

    name: str
    rows: Index
    columns: Index = None

    def of(self, full: Tensor) -> Tensor:
        """Return the small tensor."""
        for dim, index in enumerate((self.rows, self.columns)):
            full = full if index is None else full.index_select(dim, index.to(full.device))
        return full

    def put(self, small: Tensor, full: Tensor) -> None:
        """Write the small tensor into the large one."""
        rows = slice(None) if self.rows is None else self.rows.to(full.device)
        if full.dim() == 1 or self.columns is None:
            full[rows] = small
            return
        columns = self.columns.to(full.device)
        full[rows[:, None] if isinstance(rows, Tensor) else rows, columns] = small


@dataclass(frozen=True)
class Block:
    """The part of a weight between some inputs and some outputs."""

    inputs: str = ""
    outputs: str = ""


@dataclass(frozen=True)
class SubmodelLinear:
    """A linear layer whose weight is the sum of blocks.

    `inputs` and `outputs` are the units that remain between it and the layers before and after. An output
    without remaining weights is its bias.
    """

    choice: ClassVar[str] = "kept_linear"
    blocks: tuple[Block, ...] = (Block(),)
    inputs: str = ""
    outputs: str = ""

    def pieces(self, layer: str, parameter: str, full: Tensor) -> Iterator[Piece]:
        if parameter == "bias":
            yield Piece(f"{layer}.bias", indices(self.outputs, len(full), layer))
            return
        for number, block in enumerate(self.blocks):
            name = f"{layer}.weight" if len(self.blocks) == 1 else f"{layer}.weights.{number}"
            yield Piece(
                name, indices(block.outputs, len(full), layer), indices(block.inputs, full.shape[1], layer)
            )


@dataclass(frozen=True)
class SubmodelRecurrent:
    """An LSTM. A removed unit loses its gates, its biases and its recurrent inputs."""

    choice: ClassVar[str] = "kept_recurrent"
    units: str = ""
    inputs: str = ""

    def pieces(self, layer: str, parameter: str, full: Tensor) -> Iterator[Piece]:
        size = len(full) // NUM_GATES
        units = indices(self.units, size, layer)
        gates = None if units is None else (torch.arange(NUM_GATES)[:, None] * size + units).flatten()
        columns = None
        if parameter.startswith("weight_hh"):
            columns = units
        elif parameter.startswith("weight_ih"):
            columns = indices(self.inputs, full.shape[1], layer)
        yield Piece(f"{layer}.{parameter}", gates, columns)


@dataclass(frozen=True)
class SubmodelEmbedding:
    """An embedding with fewer values; removed values are 0."""

    choice: ClassVar[str] = "kept_embedding"
    outputs: str = ""

    def pieces(self, layer: str, parameter: str, full: Tensor) -> Iterator[Piece]:
        yield Piece(f"{layer}.{parameter}", None, indices(self.outputs, full.shape[1], layer))


SubmodelLayer = SubmodelLinear | SubmodelRecurrent | SubmodelEmbedding


@dataclass(frozen=True)
class Submodel:
    """The layers that lost units, by name; other layers are whole."""

    layers: dict[str, SubmodelLayer] = field(default_factory=dict)

    def write(self) -> str:
        """Return the submodel as text; "" if the model is whole."""
        return json.dumps(config.to_dict(self), separators=(",", ":")) if self.layers else ""

    @classmethod
    def read(cls, text: str) -> Submodel:
        return config.from_dict(cls, json.loads(text)) if text else cls()

    def pieces(self, params: Tensors) -> dict[str, list[Piece]]:
        """Return the small tensors of every parameter of the listed layers."""
        all_pieces = {}
        for name, full in params.items():
            part, slash, parameter_name = name.rpartition("/")
            layer, _, parameter = parameter_name.rpartition(".")
            if layer in self.layers:
                pieces = self.layers[layer].pieces(layer, parameter, full)
                all_pieces[name] = [replace(piece, name=f"{part}{slash}{piece.name}") for piece in pieces]
        return all_pieces

    def check(self, layers: set[str]) -> None:
        """Refuse a model that does not have the layers."""
        if unknown := sorted(self.layers.keys() - layers):
            raise ValueError(f"{unknown[0]}: the mask is for a layer that the model does not have")


def shrink(params: Tensors, submodel: Submodel) -> Tensors:
    """Return the small tensors; parameters of whole layers are not copied."""
    pieces, small = submodel.pieces(params), {}
    for name, full in params.items():
        small.update({p.name: p.of(full) for p in pieces[name]} if name in pieces else {name: full})
    return small


def expand(small: Tensors, submodel: Submodel, onto: Tensors) -> Tensors:
    """Return copies of the large tensors `onto` with the small ones in them."""
    pieces, large = submodel.pieces(onto), {}
    for name, full in onto.items():
        if name not in pieces:
            large[name] = small.get(name, full)
            continue
        present = [piece for piece in pieces[name] if piece.name in small]
        large[name] = full.clone() if present else full
        for piece in present:
            piece.put(small[piece.name], large[name])
    return large


def expand_parts(
    small: Mapping[str, Tensor], submodel: Submodel, model: Tensors, before: Mapping[str, Tensor]
) -> Tensors:
    """Expand small tensors that are shaped like a model's parameters ("name" or "part/name").

    Removed entries are those of `before`, or 0 if `before` has none. Tensors of other names stay as they are.
    """
    onto: Tensors = {}
    expanded: set[str] = set()
    for part in dict.fromkeys(name.rpartition("/")[0] for name in small):
        prefix = f"{part}/" if part else ""
        full = {f"{prefix}{name}": parameter for name, parameter in model.items()}
        pieces = submodel.pieces(full)
        for name in full:
            names = {piece.name for piece in pieces.get(name, [Piece(name, None)])}
            if names & small.keys():
                onto[name] = before.get(name, torch.zeros_like(full[name]))
                expanded |= names
    others = {name: tensor for name, tensor in small.items() if name not in expanded}
    return {**expand(dict(small), submodel, onto), **others}


def masked(params: Tensors, submodel: Submodel) -> Tensors:
    """Return the large tensors with zeros for removed entries."""
    zeros = {name: torch.zeros_like(p) for name, p in params.items()}
    return expand(shrink(params, submodel), submodel, zeros)


# --- What is handed to clients --------------------------------------------------------------------


@CLIENT_VIEWS.register
@dataclass(frozen=True)
class SubmodelView(View):
    """The client works on a smaller model. Its state for later rounds is stored in full size."""

    submodel: str  # as `Submodel.write` writes it
    effect: ClassVar[str] = "reshapes"

    def before(self, task: Task, client: Any) -> tuple[Task, Any]:
        return task, client.reduced_to(self.submodel)

    def after(self, task: Task, client: Any, answer: Answer) -> Answer:
        update, changes = answer
        return update, expand_parts(changes, Submodel.read(self.submodel), client.base, client.state)


@dataclass
class SubmodelPool(PoolWrapper):
    """A pool whose clients work on a smaller model. `aggregate` is the sum of the round's first updates."""

    submodel: str
    aggregate: Tensors = field(default_factory=dict)  # the first of `reduce`, or the last of `combine`

    def outgoing(self, task: Task, cohort: Sequence[str]) -> Task:
        return through(task, SubmodelView(self.submodel)) if self.submodel else task

    def reduce(self, task: Task, cohort: Sequence[str], weigh: Weigh) -> Update:
        update = super().reduce(task, cohort, weigh)
        self.aggregate = self.aggregate or update.mean
        return update

    def collect(self, task: Task, cohort: Sequence[str]) -> Collected:
        def remember(log_weights: Sequence[float], update: Update) -> None:
            self.aggregate = update.mean

        collected = super().collect(task, cohort)
        return WatchedUpdates(collected, collected.failures, remember)
