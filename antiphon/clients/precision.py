"""The precision of matrix products in training. Parameters, losses and updates always stay float32.

float32     exact to 23 bits
tf32        on a GPU: factors are rounded to 10 bits, sums have 23
bfloat16    on a GPU: factors and results are rounded to 7 bits; activations need half the memory

Each is deterministic: the same seed gives the same bits. Another precision gives other bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

PRECISIONS = ("float32", "tf32", "bfloat16")


def check_precision(precision: str, device: torch.device | None = None) -> None:
    """Refuse an unknown name. Refuse fewer bits on a CPU: not all CPUs can run LSTMs with them."""
    if precision not in PRECISIONS:
        raise ValueError(f"precision is one of {', '.join(PRECISIONS)}, not {precision!r}")
    if device is not None and device.type != "cuda" and precision != "float32":
        raise ValueError(f"{precision} needs a GPU, and the device is {device}: set precision=float32")


def from_bfloat16(value: object) -> dict[str, str]:
    """Return the setting that took the place of `bfloat16: true` or `false`.

    >>> from_bfloat16(True)
    {'precision': 'bfloat16'}
    """
    precisions = {"true": "bfloat16", "false": "float32"}
    name = str(value).lower()  # `--set` gives texts
    if name not in precisions:
        raise ValueError(f"bfloat16 is true or false, not {value!r}: set precision instead")
    return {"precision": precisions[name]}


@contextmanager
def tf32(enabled: bool) -> Iterator[None]:
    """Let products of a GPU round their factors to 10 bits, forward and backward; restore what was set."""
    products, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
    before = products.allow_tf32, convolutions.allow_tf32
    products.allow_tf32 = convolutions.allow_tf32 = enabled
    try:
        yield
    finally:
        products.allow_tf32, convolutions.allow_tf32 = before
