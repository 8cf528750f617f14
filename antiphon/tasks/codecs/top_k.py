"""Top-k: the largest entries of a tensor are sent, the others wait in the client's memory.

S. U. Stich, J.-B. Cordonnier, M. Jaggi, "Sparsified SGD with Memory", NeurIPS 2018, arXiv:1809.07599:
Definition 2.1 and Algorithm 1. The memory itself is in `algorithms.compressed`.

| paper         | here                                                                              |
| ------------- | --------------------------------------------------------------------------------- |
| k, d          | `share` of the entries of a tensor, its number of entries                         |
| comp_k        | `encode`, then `decode`                                                           |

Deviations. Each tensor has its own k. Values are sent as 16-bit floats, in units of the largest one; what is
rounded away waits in the memory, too. Places are sent as distances, most of which fit a byte.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from antiphon.tasks.codec import CODECS, Layout, Parts, check_share, share_of


@CODECS.register
@dataclass(frozen=True)
class TopK:
    """Sends the largest entries of each tensor, and where they are."""

    share: float = 0.05  # of the entries
    needs_memory: ClassVar[bool] = True
    suits_models: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_share(self.share, "top_k")

    def layout(self, shape: Sequence[int]) -> Layout:
        number = share_of(self.share, math.prod(shape))
        return ("<u4", number), ("<f2", number), ("<f4", int(number > 0))

    def encode(self, tensor: Tensor, seed: int, kept: Tensor | None) -> tuple[Parts, Tensor | None]:
        flat = tensor.flatten()
        places = torch.topk(flat.abs(), share_of(self.share, len(flat))).indices.sort().values
        values = flat[places]
        scale = values.abs().amax(dim=0, keepdim=True).float() if len(values) else values.float()
        units = values / scale if scale.any() else values
        distances = np.diff(places.numpy(), prepend=0).astype("<u4")
        return (distances, units.numpy().astype("<f2"), scale.numpy()), None

    def decode(self, parts: Parts, shape: Sequence[int], seed: int) -> Tensor:
        places = np.cumsum(parts[0], dtype=np.int64)
        flat = torch.zeros(math.prod(shape))
        if (np.diff(places) < 1).any() or (len(places) and places[-1] >= len(flat)):
            raise ValueError("an entry is named twice, or is outside the tensor")
        flat[torch.from_numpy(places)] = torch.from_numpy(parts[1].astype(np.float32) * parts[2])
        return flat.view(tuple(shape))
