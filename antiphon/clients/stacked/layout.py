"""Where the parameters of stacked clients lie: in a row of numbers each, so that one kernel serves all."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from antiphon.core import Tensors

ALIGNED = 32  # numbers: tensors that begin at 128 bytes are multiplied fastest


@dataclass(frozen=True)
class Layout:
    """Tensors laid one after another into a row, each at a multiple of ALIGNED, with zeros between them."""

    shapes: dict[str, torch.Size]

    @classmethod
    def of(cls, tensors: Tensors) -> Layout:
        kinds = sorted({str(tensor.dtype) for tensor in tensors.values()})
        if len(kinds) > 1:
            raise ValueError(f"parameters of {' and '.join(kinds)} do not share a row")
        return cls({name: tensor.shape for name, tensor in tensors.items()})

    def joined(self, tensors: Iterable[Tensor]) -> Tensor:
        """Tensors of n clients, each [n, ...], in the order of the shapes -> rows [n, width]."""
        pieces = []
        for tensor, shape in zip(tensors, self.shapes.values(), strict=True):
            pieces.append(tensor.reshape(len(tensor), -1))
            if gap := _gap_after(shape):
                pieces.append(tensor.new_zeros(len(tensor), gap))
        return torch.cat(pieces, dim=1)

    def parted(self, rows: Tensor) -> Tensors:
        """Rows [n, width] -> the tensors in them, [n, ...] each: views."""
        tensors, begin = {}, 0
        for name, shape in self.shapes.items():
            tensors[name] = rows[:, begin : begin + shape.numel()].view(len(rows), *shape)
            begin += shape.numel() + _gap_after(shape)
        return tensors


def _gap_after(shape: torch.Size) -> int:
    return -shape.numel() % ALIGNED
