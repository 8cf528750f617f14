"""Which library computes the matrix products of a training step on a CPU: MKL or oneDNN.

PyTorch's products on an x86 CPU are those of MKL. On AMD's processors, MKL runs at less than half of the
speed of oneDNN, which is in PyTorch, too. PyTorch's only switch that lets oneDNN compute products in float32
also allows it to round factors to bfloat16. On these processors oneDNN does not, and a test product makes
sure of that; otherwise the switch stays as it was. Products are in float32 with both, but differ in rounding.

oneDNN compiles code for each size of a product, and new batches have new sizes. In steps with little work,
compiling takes longer than oneDNN saves. So the work of a step decides: the same seed gives the same bits.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch

AMD = "AuthenticAMD"
ENOUGH_WORK = 1.5e9  # frames of a batch times parameters of the model, from which oneDNN is faster
PROBE = 256  # rows and columns of the test product
# Code for as many sizes is kept. 1,024, oneDNN's default, is a gigabyte of code that is hardly used again.
CACHE_VARIABLE, CACHE_SIZE = "ONEDNN_PRIMITIVE_CACHE_CAPACITY", "32"
_PRODUCTS = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
_UNCHANGED, _ONE_DNN = "none", "bf16"  # values of PyTorch's switch


@contextmanager
def faster_products() -> Iterator[None]:
    """Let oneDNN compute products where MKL is slow, if they stay exact and nobody has chosen otherwise."""
    chosen = _PRODUCTS.fp32_precision
    if chosen != _UNCHANGED or not _one_dnn_is_better():
        yield
        return
    _PRODUCTS.fp32_precision = _ONE_DNN
    try:
        yield
    finally:
        _PRODUCTS.fp32_precision = chosen


@cache
def _one_dnn_is_better() -> bool:
    if not torch.backends.mkldnn.is_available() or processor_vendor() != AMD:
        return False
    os.environ.setdefault(CACHE_VARIABLE, CACHE_SIZE)  # oneDNN reads it at its first product
    _PRODUCTS.fp32_precision = _ONE_DNN
    try:
        return is_exact()
    finally:
        _PRODUCTS.fp32_precision = _UNCHANGED


@cache
def processor_vendor() -> str:
    """Return the vendor of the processor; "" if the system does not tell."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("vendor_id")), "")


def is_exact() -> bool:
    """Whether a product keeps all bits of its factors. bfloat16 would lose those of 1 + 2⁻¹²."""
    ones = torch.ones(PROBE, PROBE)
    product = (ones + 2.0**-12) @ ones
    return bool((product.double() == PROBE * (1 + 2.0**-12)).all())
