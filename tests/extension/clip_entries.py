"""A clipping: no entry of the aggregate is larger than `limit`."""

from __future__ import annotations

from dataclasses import dataclass

from antiphon.core import Tensors


@dataclass(frozen=True)
class ClipEntries:
    limit: float = 0.1

    def __call__(self, params: Tensors, delta: Tensors) -> Tensors:
        return {name: tensor.clamp(-self.limit, self.limit) for name, tensor in delta.items()}
