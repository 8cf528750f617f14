"""Many clients in one tensor: a row of parameters for each of them, and their batches side by side."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from antiphon.core import Tensors
from antiphon.data.batches import Batch

ALIGNED = 32  # numbers: tensors that begin at multiples of 128 bytes are multiplied fastest


@dataclass(frozen=True)
class Layout:
    """Tensors one after another in a row, each at a multiple of ALIGNED, with zeros between them."""

    shapes: dict[str, torch.Size]

    @classmethod
    def of(cls, tensors: Tensors) -> Layout:
        dtypes = sorted({str(tensor.dtype) for tensor in tensors.values()})
        if len(dtypes) > 1:
            raise ValueError(f"parameters of {' and '.join(dtypes)} do not share a row")
        return cls({name: tensor.shape for name, tensor in tensors.items()})

    def join(self, tensors: Iterable[Tensor]) -> Tensor:
        """Return rows [n, width] of the tensors of n clients, each [n, ...], in the order of the shapes."""
        pieces = []
        for tensor, shape in zip(tensors, self.shapes.values(), strict=True):
            pieces.append(tensor.reshape(len(tensor), -1))
            if gap := -shape.numel() % ALIGNED:
                pieces.append(tensor.new_zeros(len(tensor), gap))
        return torch.cat(pieces, dim=1)

    def put(self, tensors: Iterable[Tensor], rows: Tensor) -> Tensor:
        """Write into rows [n, width] what `join` would return; tensors that lie there already stay."""
        for tensor, (place, gap) in zip(tensors, self._places(rows), strict=True):
            if tensor.data_ptr() != place.data_ptr():
                place.copy_(tensor)
            if gap.shape[1]:
                gap.zero_()
        return rows

    def split(self, rows: Tensor) -> Tensors:
        """Return views of the tensors in rows [n, width], each [n, ...]."""
        return {name: place for name, (place, _) in zip(self.shapes, self._places(rows), strict=True)}

    def _places(self, rows: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield views of each tensor [n, ...] in rows, and of the zeros behind it."""
        begin = 0
        for shape in self.shapes.values():
            end, after = begin + shape.numel(), begin + shape.numel() + -shape.numel() % ALIGNED
            yield rows[:, begin:end].view(len(rows), *shape), rows[:, end:after]
            begin = after


@dataclass(frozen=True)
class StackedBatch:
    """The batches of n clients, padded to B rows each: `batch` and `keys` hold n · B utterances.

    share [n, B] is 1 / (utterances of the client) on real rows and 0 on placeholders; members [n] are the
    rows of the clients in the stack, ascending.
    """

    batch: Batch
    keys: Tensor
    share: Tensor
    members: Tensor

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return *self.batch.tensors, self.keys, self.share, self.members

    def per_client(self) -> Iterator[Tensor]:
        """Yield keys and the batch's tensors, each [n, B, ...]; those of texts [n, B · N, ...]."""
        for tensor in (self.keys, *self.batch.tensors):
            yield tensor.unflatten(0, (len(self.share), -1))
