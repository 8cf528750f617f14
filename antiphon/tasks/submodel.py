"""What is kept of a model: small tensors out of large ones (`shrink`), and back (`expand`).

A `Submodel` names layers and, for each, the units that are left. It is data only: it travels in a task, it is
saved in a checkpoint, and it is the part of a small model's configuration that says how small it is
(`models.reduced` builds a model of it). Weights are [outputs, inputs], as torch stores them.

Units are written as text, their number and a bit for each in hexadecimal: "6:b4" keeps 0, 2, 3 and 5 of 6.
"" keeps all, however many there are.
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
from antiphon.core import Collected, Failure, Pool, Report, Task, Tensors, Update, Weigh
from antiphon.tasks.client_work import Answer
from antiphon.tasks.views import CLIENT_VIEWS, View, through

NUM_GATES = 4  # of an LSTM, one below the other in its weights
Index = Tensor | None  # of the rows or columns that are left; None: all


def write_units(mask: Tensor) -> str:
    """A bool for each unit, as text.

    >>> write_units(torch.tensor([True, False, True, True, False, True])), write_units(torch.ones(3).bool())
    ('6:b4', '')
    """
    return "" if bool(mask.all()) else f"{len(mask)}:{np.packbits(mask.cpu().numpy()).tobytes().hex()}"


def read_units(text: str, size: int, layer: str = "a layer") -> Tensor:
    """A bool for each of `size` units; refuses text that is about another number of them.

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
    """A small tensor by its name, and which rows and columns of the large one it is."""

    name: str
    rows: Index
    columns: Index = None

    def of(self, full: Tensor) -> Tensor:
        """The small tensor."""
        for dim, index in enumerate((self.rows, self.columns)):
            full = full if index is None else full.index_select(dim, index.to(full.device))
        return full

    def put(self, small: Tensor, full: Tensor) -> None:
        """Writes the small tensor to its places in the large one."""
        rows = slice(None) if self.rows is None else self.rows.to(full.device)
        if full.dim() == 1 or self.columns is None:
            full[rows] = small
            return
        columns = self.columns.to(full.device)
        full[rows[:, None] if isinstance(rows, Tensor) else rows, columns] = small


@dataclass(frozen=True)
class Block:
    """Part of a weight: these inputs to these outputs."""

    inputs: str = ""
    outputs: str = ""


@dataclass(frozen=True)
class SubmodelLinear:
    """A linear layer whose weight is the sum of blocks; a bias is left whole.

    `inputs` and `outputs` are those that still exist between it and the layer before or after: a hidden unit
    that is gone leaves both layers. An output without a weight that is still there is the bias alone.
    """

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
    """An LSTM: a unit that is gone has no gate, no bias and no way back into the layer."""

    units: str = ""
    inputs: str = ""

    def pieces(self, layer: str, parameter: str, full: Tensor) -> Iterator[Piece]:
        size = len(full) // NUM_GATES
        units = indices(self.units, size, layer)
        gates = None
        if units is not None:
            gates = (torch.arange(NUM_GATES)[:, None] * size + units).flatten()
        columns = None
        if parameter.startswith("weight_hh"):
            columns = units
        elif parameter.startswith("weight_ih"):
            columns = indices(self.inputs, full.shape[1], layer)
        yield Piece(f"{layer}.{parameter}", gates, columns)


@dataclass(frozen=True)
class SubmodelEmbedding:
    """An embedding of fewer values; those that are gone are 0."""

    outputs: str = ""

    def pieces(self, layer: str, parameter: str, full: Tensor) -> Iterator[Piece]:
        yield Piece(f"{layer}.{parameter}", None, indices(self.outputs, full.shape[1], layer))


SubmodelLayer = SubmodelLinear | SubmodelRecurrent | SubmodelEmbedding


@dataclass(frozen=True)
class Submodel:
    """Layers by their names; those that are not named are whole."""

    layers: dict[str, SubmodelLinear | SubmodelRecurrent | SubmodelEmbedding] = field(default_factory=dict)

    def write(self) -> str:
        """As text that travels in a task; "" where everything is kept."""
        return json.dumps(config.to_dict(self), separators=(",", ":")) if self.layers else ""

    @classmethod
    def read(cls, text: str) -> Submodel:
        return config.from_dict(cls, json.loads(text)) if text else cls()

    def pieces(self, params: Tensors) -> dict[str, list[Piece]]:
        """Of every parameter of a layer that is named, the small tensors it becomes."""
        found = {}
        for name, full in params.items():
            part, slash, parameter_name = name.rpartition("/")
            layer, _, parameter = parameter_name.rpartition(".")
            if layer in self.layers:
                pieces = self.layers[layer].pieces(layer, parameter, full)
                found[name] = [replace(piece, name=f"{part}{slash}{piece.name}") for piece in pieces]
        return found

    def check(self, layers: set[str]) -> None:
        """Refuses to be laid over a model that does not have the layers."""
        if unknown := sorted(self.layers.keys() - layers):
            raise ValueError(f"{unknown[0]}: the mask is for a layer that the model does not have")


def shrink(params: Tensors, submodel: Submodel) -> Tensors:
    """The small tensors; a parameter that is whole is the same tensor, not a copy."""
    pieces, small = submodel.pieces(params), {}
    for name, full in params.items():
        small.update({p.name: p.of(full) for p in pieces[name]} if name in pieces else {name: full})
    return small


def expand(small: Tensors, submodel: Submodel, onto: Tensors) -> Tensors:
    """The large tensors `onto`, with the small ones in their places; nothing that was given changes."""
    pieces, large = submodel.pieces(onto), {}
    for name, full in onto.items():
        found = [piece for piece in pieces.get(name, [Piece(name, None)]) if piece.name in small]
        if name not in pieces and found:
            large[name] = small[name]
            continue
        large[name] = full.clone() if found else full
        for piece in found:
            piece.put(small[piece.name], large[name])
    return large


def small_names(params: Tensors, submodel: Submodel, small: Mapping[str, Tensor]) -> list[str]:
    """The large tensors of which there is anything among the small ones."""
    pieces = submodel.pieces(params)
    return [n for n in params if any(p.name in small for p in pieces.get(n, [Piece(n, None)]))]


def expand_parts(
    small: Mapping[str, Tensor], submodel: Submodel, model: Tensors, before: Mapping[str, Tensor]
) -> Tensors:
    """The large tensors of small ones that are shaped like a model's parameters ("name" or "part/name").

    Entries that were removed are as they are in `before`, or 0 where that does not have them. Tensors of
    other names stay as they are.
    """
    onto: Tensors = {}
    taken: set[str] = set()
    for part in dict.fromkeys(name.rpartition("/")[0] for name in small):
        prefix = f"{part}/" if part else ""
        full = {f"{prefix}{name}": parameter for name, parameter in model.items()}
        pieces = submodel.pieces(full)
        for name in small_names(full, submodel, small):
            onto[name] = before.get(name, torch.zeros_like(full[name]))
            taken |= {piece.name for piece in pieces.get(name, [Piece(name, None)])}
    others = {name: tensor for name, tensor in small.items() if name not in taken}
    return {**expand(dict(small), submodel, onto), **others}


def masked(params: Tensors, submodel: Submodel) -> Tensors:
    """The model as large as ever, with zeros where the small one has nothing."""
    return expand(
        shrink(params, submodel), submodel, {name: torch.zeros_like(p) for name, p in params.items()}
    )


# --- What is handed to clients --------------------------------------------------------------------


@CLIENT_VIEWS.register
@dataclass(frozen=True)
class SubmodelView(View):
    """The client works on a smaller model. What it keeps for later rounds is kept in full size."""

    submodel: str  # as `Submodel.write` writes it
    effect: ClassVar[str] = "reshapes"

    def before(self, task: Task, client: Any) -> tuple[Task, Any]:
        return task, client.reduced_to(self.submodel)

    def after(self, task: Task, client: Any, answer: Answer) -> Answer:
        update, changes = answer
        return update, expand_parts(changes, Submodel.read(self.submodel), client.base, client.state)


class SubmodelPool:
    """A pool whose clients work on a smaller model; remembers the aggregate that a round began with."""

    def __init__(self, pool: Pool, submodel: str) -> None:
        self.pool, self.submodel = pool, submodel
        self.aggregate: Update | None = None  # what was added up first, or combined last

    def reduce(self, task: Task, cohort: Sequence[str], weigh: Weigh) -> Update:
        update = self.pool.reduce(self._reduced(task), cohort, weigh)
        if self.aggregate is None and update.mean:
            self.aggregate = update
        return update

    def collect(self, task: Task, cohort: Sequence[str]) -> Collected:
        return CombinedUpdates(self, self.pool.collect(self._reduced(task), cohort))

    def _reduced(self, task: Task) -> Task:
        return through(task, SubmodelView(self.submodel)) if self.submodel else task


@dataclass(frozen=True)
class CombinedUpdates:
    """Collected updates; a pool remembers what they were combined to."""

    pool: SubmodelPool
    collected: Collected

    @property
    def reports(self) -> Sequence[Report]:
        return self.collected.reports

    @property
    def failures(self) -> Sequence[Failure]:
        return self.collected.failures

    def combine(self, log_weights: Sequence[float]) -> Update:
        self.pool.aggregate = self.collected.combine(log_weights)
        return self.pool.aggregate

    def distances(self, point: Tensors) -> Sequence[float]:
        return self.collected.distances(point)
