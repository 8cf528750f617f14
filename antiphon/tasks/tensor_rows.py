"""Updates whose tensors lie in one: those of many clients add up in one operation each."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from antiphon.core import Tensors


class Row(dict[str, Tensor]):
    """Tensors that are parts of one tensor, `whole`. `parts` says which; rows that are alike share it.

    As soon as somebody puts another tensor into the dictionary, it is like any other.
    """

    def __init__(self, tensors: Tensors, whole: Tensor | None = None, parts: object = None) -> None:
        super().__init__(tensors)
        self.whole, self._parts = whole, parts
        self._tensors = list(tensors.values())  # kept, so that no other tensor gets the id of one of them
        self._ids = self._read_ids()

    def _read_ids(self) -> list[int]:
        return list(map(id, self.values()))

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)  # it travels as the tensors alone

    @property
    def parts(self) -> object:
        """What it consists of; None if it does not lie in one tensor."""
        return self._parts if self.whole is not None and self._read_ids() == self._ids else None

    def copy(self) -> Tensors:
        """Return a dictionary of the same tensors."""
        return dict(self) if self.parts is None else Row(self, self.whole, self._parts)

    def clones(self) -> Tensors:
        """Return copies of the tensors, which lie in one again."""
        if self.whole is None or self.parts is None:
            return {name: tensor.clone() for name, tensor in self.items()}
        whole, begin = self.whole.clone(), self.whole.storage_offset()
        tensors = {
            name: whole.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset() - begin)
            for name, tensor in self.items()
        }
        return Row(tensors, whole, self._parts)

    @torch.no_grad()
    def blend(self, other: Tensors, share: float) -> bool:
        """Move towards a row that is alike, in place; return whether it is."""
        if self.parts is None or not isinstance(other, Row) or other.parts is not self.parts:
            return False
        assert self.whole is not None
        assert other.whole is not None
        self.whole.lerp_(other.whole, share)
        return True


def parts_of(tensors: Tensors) -> object:
    """Return what tensors consist of that lie in one; None for others."""
    return tensors.parts if isinstance(tensors, Row) else None
