"""Some units of a layer among all of them: what reduced models read and write in place of whole widths."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ALIGNED = 8  # a product whose width is a multiple of this is faster on a CPU


class Units(nn.Module):
    """Some of a layer's units: `take` picks them out of all, `place` puts them among zeros.

    Both by reading: units that are gone read another's value, and 0 times that is theirs. Nothing is written
    twice, or in turn. Behind the last unit there may be `num_more` values, for a product to be ALIGNED; they
    are of weights that are 0, or are read by nobody.
    """

    index: Tensor
    position: Tensor
    is_there: Tensor

    def __init__(self, mask: Tensor) -> None:
        super().__init__()
        self.num, self.is_all = int(mask.sum()), bool(mask.all())
        self.num_more = 0 if self.is_all else -self.num % ALIGNED
        # Constants, not state: they are never saved, and go to the model's device with it.
        index = F.pad(mask.nonzero().squeeze(1), (0, self.num_more))
        self.register_buffer("index", index, persistent=False)
        self.register_buffer("position", (mask.cumsum(0) - 1).clamp(min=0), persistent=False)
        self.register_buffer("is_there", mask.to(torch.get_default_dtype()), persistent=False)

    def take(self, values: Tensor) -> Tensor:
        """[..., all] -> [..., some]."""
        return self.take_more(values)[..., : self.num]

    def take_more(self, values: Tensor) -> Tensor:
        """[..., all] -> [..., some and more]."""
        return values if self.is_all else Moved.apply(values, True, self.index, self.position, self.is_there)

    def scatter(self, values: Tensor) -> Tensor:
        """[..., some] or [..., some and more] -> [..., all]."""
        if self.is_all:
            return values
        return Moved.apply(values, False, self.index[: values.shape[-1]], self.position, self.is_there)


class Moved(torch.autograd.Function):
    """Units taken out of all, or placed among zeros: the gradient of one is the other.

    That of `gather` would add into places; `index_select` is slow along the last dimension on a CPU.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(values: Tensor, is_taking: bool, index: Tensor, position: Tensor, is_there: Tensor) -> Tensor:
        places = index if is_taking else position
        moved = values.gather(-1, places.expand(*values.shape[:-1], len(places)))
        return moved if is_taking else moved * is_there.to(values.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, ctx.is_taking, *constants = inputs
        ctx.save_for_backward(*constants)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        return Moved.apply(upstream[0], not ctx.is_taking, *ctx.saved_tensors), None, None, None, None
