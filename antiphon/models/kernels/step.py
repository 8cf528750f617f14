"""A GPU kernel (Triton): some clients take a step, in the rows of all clients.

Without it, their rows would be copied out and back. Kernel arguments have no annotations: Triton would read
them.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from antiphon.models.kernels.rows import ceil_div

COLUMNS = 2048  # of a program


@triton.jit
def _descend(table, members, directions, rates, width, columns: tl.constexpr):  # type: ignore[no-untyped-def]
    place = tl.program_id(1).to(tl.int64)
    row, rate = tl.load(members + place), tl.load(rates + place)
    column = tl.program_id(0) * columns + tl.arange(0, columns)
    own = table + row * width + column
    value = tl.load(own, mask=column < width, other=0.0)
    change = tl.load(directions + place * width + column, mask=column < width, other=0.0)
    tl.store(own, value - rate * change, mask=column < width)


def descend(table: Tensor, members: Tensor, directions: Tensor, rate: Tensor) -> None:
    """Subtract rate · directions [n, width] from the members' rows of a table; rate: one, or [n, 1]."""
    rates = rate.expand(members.shape[0], 1).contiguous()
    width = table.shape[1]
    _descend[ceil_div(width, COLUMNS), members.shape[0]](table, members, directions, rates, width, COLUMNS)
