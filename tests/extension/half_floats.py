"""A codec: every entry as a 16-bit float."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from antiphon.tasks.codec import CODECS, Layout, Parts


@CODECS.register
@dataclass(frozen=True)
class HalfFloats:
    """Sends 16 bits of each entry."""

    needs_memory: ClassVar[bool] = False
    suits_models: ClassVar[bool] = True

    def layout(self, shape: Sequence[int]) -> Layout:
        return (("<f2", math.prod(shape)),)

    def encode(self, tensor: Tensor, seed: int, kept: Tensor | None) -> tuple[Parts, Tensor | None]:
        return (tensor.flatten().half().numpy(),), None

    def decode(self, parts: Parts, shape: Sequence[int], seed: int) -> Tensor:
        return torch.from_numpy(parts[0]).float().view(tuple(shape))
