"""Tensors as one block of bytes in the safetensors format, with one copy each way.

The functions of the package safetensors make two copies each way. For a large model, copies take most of the
time of a message: every one touches new memory.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

Buffer = bytes | memoryview
LENGTH = struct.Struct("<Q")  # of the header
TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
NAMES = {kind: name for name, kind in TYPES.items()}


def new_buffer(size: int) -> memoryview:
    """Return memory that nobody has written to yet."""
    return np.empty(size, dtype=np.uint8).data


def flatten(tensors: Mapping[str, Tensor]) -> memoryview:
    """Return tensors as safetensors; larger items come first, so that each is at a multiple of its size."""
    header: dict[str, dict[str, Any]] = {}
    end = 0
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))
    for name, tensor in ordered:
        begin, end = end, end + tensor.numel() * tensor.element_size()
        about = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
        header[name] = about
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    start = LENGTH.size + len(text)
    data = new_buffer(start + end)
    data[:start] = LENGTH.pack(len(text)) + text
    for name, tensor in ordered:
        begin, end = header[name]["data_offsets"]
        np.frombuffer(data, np.uint8)[start + begin : start + end] = _bytes_of(tensor.detach().cpu())
    return data


def unflatten(data: Buffer) -> dict[str, Tensor]:
    """Return the tensors in safetensors, each in memory of its own; ValueError if the bytes are not that."""
    if len(data) < LENGTH.size:
        raise ValueError("there is no header")
    (size,) = LENGTH.unpack_from(data)
    start = LENGTH.size + size
    if start > len(data):
        raise ValueError("the header is cut off")
    try:
        header = json.loads(bytes(data[LENGTH.size : start]))
    except RecursionError:
        raise ValueError("the header is nested too deeply") from None
    if not isinstance(header, dict):
        raise ValueError("the header is no mapping")
    header.pop("__metadata__", None)
    tensors, places = {}, []
    for name, about in header.items():
        kind, shape, begin, end = _described(name, about)
        tensor = torch.empty(0, dtype=kind)
        if math.prod(shape) * tensor.element_size() != end - begin or start + end > len(data):
            raise ValueError(f"the place of {name[:80]!r} does not fit its shape")
        tensor = torch.empty(shape, dtype=kind)
        _bytes_of(tensor)[:] = np.frombuffer(data, np.uint8, end - begin, start + begin)
        tensors[name] = tensor
        places.append((begin, end))
    ends = [0, *(end for _, end in sorted(places))]
    if [begin for begin, _ in sorted(places)] != ends[:-1] or start + ends[-1] != len(data):
        raise ValueError("tensors overlap, or there are bytes between them")
    return tensors


def _described(name: str, about: Any) -> tuple[torch.dtype, list[int], int, int]:
    """Return type, shape and place of a tensor; ValueError if a part is missing or makes no sense."""
    fields: dict[str, Any] = about if isinstance(about, dict) else {}
    kind, shape, place = fields.get("dtype"), fields.get("shape"), fields.get("data_offsets")
    if not (isinstance(kind, str) and isinstance(shape, list) and isinstance(place, list)):
        raise ValueError(f"the header does not describe {name[:80]!r}")
    is_plain = all(type(number) is int and 0 <= number < 2**63 for number in [*shape, *place])
    if kind not in TYPES or not is_plain or len(place) != 2 or place[0] > place[1]:
        raise ValueError(f"the header does not describe {name[:80]!r}")
    return TYPES[kind], shape, place[0], place[1]


def _bytes_of(tensor: Tensor) -> np.ndarray:
    """Return the memory of a tensor (a copy, if it is not in one piece)."""
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy()  # NumPy has no bfloat16
