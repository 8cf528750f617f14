"""How a client stores the parameters that it trains, between its local steps: exact, or in fewer bits.

T.-J. Yang, Y. Xiao, G. Motta, F. Beaufays, R. Mathews, M. Chen, "Online Model Compression for Federated
Learning with Large Models", ICASSP 2023, arXiv:2205.03494. The format of numbers and the transform of a
variable are in `tasks.codecs.small_floats`, which also sends them.

| paper                              | here                                                            |
| ---------------------------------- | --------------------------------------------------------------- |
| compress, decompress               | `Quantised.restored`: what is read again of what was stored     |
| weight matrices only quantization  | `is_short`: tensors of two or more dimensions                   |
| partial parameter quantization     | `share` of these tensors, another choice for each client, round |

A client stores the parameters when they arrive, and after each step. A step reads what was stored, computes
in full precision, and stores the result.

Deviations. Δ = (w as stored) − (w_k as stored): the server's copy is exact, and the error of storing w
does not move it. In this simulation the steps run on restored parameters, so the process itself needs no less
memory; `parameter_bytes` in the journal is what a device would keep. Moments of `local.optimizer` are exact.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from antiphon.core import Tensors, size_in_bytes
from antiphon.registry import Registry
from antiphon.tasks.codecs.small_floats import SmallFloats, is_short, restored


class ClientStorage(Protocol):
    """A frozen dataclass: which tensors a client stores in fewer bits, and what is left of them."""

    def chosen(self, shapes: Mapping[str, Sequence[int]], seed: int) -> frozenset[str]:
        """Return the names of tensors of matrices that are not exact; the seed is a client's in a round."""

    def restored(self, rows: Tensor) -> Tensor:
        """Return what is read of tensors [n, size] after they were stored; each row is one client's."""

    def num_bytes(self, shape: Sequence[int]) -> int:
        """Return the bytes that a chosen tensor takes."""


# Settings of tasks come over a network, so only registered names and entry points are accepted.
CLIENT_STORAGE = Registry("antiphon.client_storage", kind=ClientStorage, default="exact", takes_paths=False)


@CLIENT_STORAGE.register
@dataclass(frozen=True)
class Exact:
    """Parameters are stored as they are."""

    def chosen(self, shapes: Mapping[str, Sequence[int]], seed: int) -> frozenset[str]:
        return frozenset()

    def restored(self, rows: Tensor) -> Tensor:
        return rows

    def num_bytes(self, shape: Sequence[int]) -> int:
        raise ValueError("exact storage chooses no tensor")


@CLIENT_STORAGE.register
@dataclass(frozen=True)
class Quantised:
    """Weight matrices are stored as floats of 1 + exponent + mantissa bits, after a linear transform."""

    exponent: int = 3  # bits; 3 and 4: 8 bits in all, 2 and 3: 6 bits
    mantissa: int = 4  # bits
    share: float = 0.9  # of the matrices; the others are exact on this client in this round
    choice: ClassVar[str] = "quantised"

    def __post_init__(self) -> None:
        self._codec()  # ValueError for a format that does not exist
        if not 0 < self.share <= 1:
            raise ValueError(f"quantised: share must be above 0 and at most 1, not {self.share}")

    def chosen(self, shapes: Mapping[str, Sequence[int]], seed: int) -> frozenset[str]:
        names = sorted(name for name, shape in shapes.items() if is_short(shape))
        return frozenset(random.Random(seed).sample(names, round(self.share * len(names))))

    def restored(self, rows: Tensor) -> Tensor:
        return restored(rows, self.exponent, self.mantissa)

    def num_bytes(self, shape: Sequence[int]) -> int:
        return self._codec().num_bytes(shape)

    def _codec(self) -> SmallFloats:
        return SmallFloats(self.exponent, self.mantissa)


@torch.no_grad()
def store(tensors: Tensors, chosen: frozenset[str], storage: ClientStorage) -> None:
    """Replace the chosen tensors of a client, in place, by what is read of them after they were stored."""
    for name in chosen:
        rows = tensors[name].view(1, -1)
        rows.copy_(storage.restored(rows))


def stored_bytes(tensors: Tensors, chosen: frozenset[str], storage: ClientStorage) -> int:
    """Return the bytes of a client's parameters between its steps."""
    exact = {name: tensor for name, tensor in tensors.items() if name not in chosen}
    return size_in_bytes(exact) + sum(storage.num_bytes(tensors[name].shape) for name in chosen)
