"""Codecs: how a tensor becomes fewer or shorter numbers, and a tensor again.

A codec is a frozen dataclass of settings. It turns one tensor into parts: flat arrays whose types and sizes
follow from the shape of the tensor alone. So the receiver knows the size of a message before it reads it, and
names and shapes do not travel. `tasks.packing` makes bytes of the parts.

A codec travels in a task by its registered name, so `package.module:Class` is not accepted: a codec of
another package needs an entry point.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from antiphon.registry import Registry

Parts = tuple[np.ndarray, ...]
Layout = tuple[tuple[str, int], ...]  # NumPy type and number of items of each part


class Codec(Protocol):
    """Encodes and decodes one tensor; both sides know its shape and the seed."""

    needs_memory: ClassVar[bool]  # what a client did not send is kept, and added to its next update
    suits_models: ClassVar[bool]  # exact enough for parameters, which are sent without a memory

    def layout(self, shape: Sequence[int]) -> Layout:
        """Return the types and sizes of the parts."""

    def encode(self, tensor: Tensor, seed: int, kept: Tensor | None) -> tuple[Parts, Tensor | None]:
        """Return the parts of a finite tensor on the CPU, and what the client keeps for the next time.

        kept: what it kept the last time; None: nothing.
        """

    def decode(self, parts: Parts, shape: Sequence[int], seed: int) -> Tensor:
        """Return the tensor in parts that fit the layout; ValueError if they make no sense."""


CODECS = Registry(
    "antiphon.codecs",
    kind=Codec,
    homes=["antiphon.tasks.codecs"],
    default="stochastic_rounding",
    takes_paths=False,
)


def random_numbers(seed: int) -> torch.Generator:
    """Return a generator whose numbers are the same on every machine and device of the run."""
    return torch.Generator().manual_seed(seed)


def share_of(share: float, size: int) -> int:
    """Return how many of `size` entries a share is: at least one, if there is any.

    >>> share_of(0.1, 25), share_of(0.1, 3), share_of(0.1, 0)
    (2, 1, 0)
    """
    return min(size, max(1, round(share * size)))


def check_share(share: float, name: str) -> None:
    if not 0 < share <= 1:
        raise ValueError(f"{name} needs a share above 0 and at most 1, not {share}")
