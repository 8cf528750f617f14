"""Tensors as one block of bytes: what safetensors writes is read, and what we write it reads."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load, save

from antiphon.pools.flat_tensors import LENGTH, TYPES, flatten, unflatten

TENSORS = {
    "b/matrix": torch.arange(6.0).reshape(2, 3),
    "a/number": torch.tensor(3, dtype=torch.int64),
    "none": torch.zeros(0, 4),
    "flags": torch.tensor([True, False, True]),
    "half": torch.tensor([1.5, float("nan")], dtype=torch.bfloat16),
    "turned": torch.arange(6, dtype=torch.int16).reshape(2, 3).T,
}


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    assert left.keys() == right.keys()
    pairs = [(left[name].contiguous(), right[name].contiguous()) for name in left]
    return all(
        one.dtype == other.dtype
        and one.shape == other.shape
        and torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))
        for one, other in pairs
    )


def test_safetensors_reads_what_we_write_and_we_read_what_safetensors_writes() -> None:
    assert same(load(bytes(flatten(TENSORS))), TENSORS)
    assert same(unflatten(save({name: tensor.contiguous() for name, tensor in TENSORS.items()})), TENSORS)


@pytest.mark.parametrize("kind", TYPES.values(), ids=TYPES)
def test_every_type_comes_back_as_it_was(kind: torch.dtype) -> None:
    tensors = {"x": torch.arange(10).to(kind)}
    assert same(unflatten(flatten(tensors)), tensors)


def test_tensors_that_share_memory_are_read_into_memory_of_their_own() -> None:
    base = torch.arange(8.0)
    read = unflatten(flatten({"whole": base, "part": base[1:4]}))
    read["whole"].zero_()
    assert read["part"].tolist() == [1.0, 2.0, 3.0]
    assert all(tensor.data_ptr() % 64 == 0 for tensor in read.values())


def written(header: object, num_bytes: int) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return LENGTH.pack(len(text)) + text + bytes(num_bytes)


def about(
    begin: object = 0, end: object = 8, shape: object = (2,), dtype: object = "F32"
) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        LENGTH.pack(2**63) + b"{}",
        written(b"{", 0),
        written(b"[" * 100_000, 0),
        written([1], 0),
        written({"x": 1}, 8),
        written({"x": about(dtype="F31")}, 8),
        written({"x": about(dtype=[])}, 8),
        written({"x": about(shape=[-2])}, 8),
        written({"x": about(shape=[True, 2])}, 8),
        written({"x": about(shape=[2**62, 2**62])}, 8),
        written({"x": about(shape=[3])}, 8),
        written({"x": about(8, 0)}, 8),
        written({"x": about()}, 7),
        written({"x": about()}, 9),
        written({"x": about(), "y": about()}, 8),
        written({"x": about(), "y": about(12, 20)}, 20),
        written({"x": about(4, 12)}, 12),
    ],
)
def test_bytes_that_are_not_in_the_format_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        unflatten(data)
