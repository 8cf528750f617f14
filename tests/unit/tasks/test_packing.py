"""Packed tensors: their bytes, and bytes that are damaged or lie."""

from __future__ import annotations

import json

import pytest
import torch
from torch import Tensor

from antiphon.core import Tensors, size_in_bytes
from antiphon.tasks.codecs.low_rank import LowRank
from antiphon.tasks.codecs.stochastic_rounding import StochasticRounding
from antiphon.tasks.codecs.top_k import TopK
from antiphon.tasks.packing import (
    HEADER,
    LZMA,
    MAX_TABLE,
    PLAIN,
    joined,
    pack,
    pack_table,
    read_table,
    shapes_of,
    shortened,
    unpack,
)

CODEC = StochasticRounding(bits=8)
TENSORS: Tensors = {"w": torch.linspace(-1, 1, 600).view(20, 30), "b": torch.ones(7), "s": torch.tensor(2.0)}
SHAPES = shapes_of(TENSORS)
PLAIN_SIZE = 4 * 4 + 608  # scales of two buckets and of two more tensors, and a byte for each entry


def as_tensor(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def packed(tensors: Tensors = TENSORS) -> bytes:
    return pack(CODEC, tensors, 1)[0].numpy().tobytes()


def header() -> bytes:
    """The header of bytes for these names and shapes, without the coding."""
    return packed()[1 : HEADER.size]


def reason_of(data: bytes) -> str:
    with pytest.raises(ValueError, match="compressed") as caught:
        unpack(CODEC, as_tensor(data), SHAPES, 1)
    return str(caught.value)


# --- There and back -------------------------------------------------------------------------------


def test_tensors_come_back_in_the_order_that_is_asked_for() -> None:
    data, _ = pack(CODEC, TENSORS, 1)
    arrived = unpack(CODEC, data, dict(reversed(SHAPES.items())), 1)
    assert list(arrived) == ["s", "b", "w"]
    for name, tensor in TENSORS.items():
        torch.testing.assert_close(arrived[name], tensor, rtol=0.0, atol=2 / 127)


def test_the_order_of_tensors_does_not_change_the_bytes() -> None:
    assert packed(dict(reversed(TENSORS.items()))) == packed()


def test_every_tensor_has_chances_of_its_own() -> None:
    values = torch.full((50,), 0.3)
    values[0] = 1.0
    data, _ = pack(CODEC, {"a": values, "b": values}, 1)
    arrived = unpack(CODEC, data, {"a": (50,), "b": (50,)}, 1)
    assert not torch.equal(arrived["a"], arrived["b"])


def test_bytes_of_one_significance_are_neighbours() -> None:
    parts = [(torch.tensor([1.0, 1.0]).numpy(),), (torch.tensor([1.0]).numpy(),)]  # 1.0 is 0x3f800000
    assert joined(parts) == bytes.fromhex("000000 000000 808080 3f3f3f")


def test_what_has_much_in_common_gets_shorter_and_what_has_nothing_stays_as_it_is() -> None:
    alike, _ = pack(CODEC, {"w": torch.ones(10_000)}, 1)
    assert (int(alike[0]), len(alike) < 200) == (LZMA, True)
    noise = torch.randint(-7, 8, (512,), generator=torch.Generator().manual_seed(0)).float()
    noise[0] = 7.0
    different, _ = pack(StochasticRounding(bits=4), {"w": noise}, 1)
    assert (int(different[0]), len(different)) == (PLAIN, HEADER.size + 4 + 256)


def test_a_codec_gets_what_it_kept_of_each_tensor() -> None:
    matrices = {"a": torch.randn(20, 20), "b": torch.randn(20, 20), "c": torch.randn(3)}
    _, keeps = pack(LowRank(2), matrices, 1)
    assert {name: tuple(keep.shape) for name, keep in keeps.items()} == {"a": (20, 2), "b": (20, 2)}
    again, _ = pack(LowRank(2), matrices, 1, keeps)
    fresh, _ = pack(LowRank(2), matrices, 1)
    assert not torch.equal(again, fresh)


# --- Bytes that are not what was asked for --------------------------------------------------------


def test_other_names_or_shapes_are_refused() -> None:
    for other in ({**SHAPES, "w": (30, 20)}, {"v" if n == "w" else n: s for n, s in SHAPES.items()}):
        with pytest.raises(ValueError, match="other names or shapes than the task asks for"):
            unpack(CODEC, as_tensor(packed()), other, 1)


@pytest.mark.parametrize("data", [torch.ones(80), torch.ones(8, 10, dtype=torch.uint8)])
def test_what_is_not_a_row_of_bytes_is_refused(data: Tensor) -> None:
    with pytest.raises(ValueError, match="are not at most 629 bytes"):
        unpack(CODEC, data, SHAPES, 1)


def test_more_bytes_than_the_shapes_can_need_are_refused_before_they_are_read() -> None:
    assert HEADER.size + PLAIN_SIZE == 629
    assert "are not at most 629 bytes" in reason_of(bytes(630))
    assert "are not at most 629 bytes" in reason_of(bytes(4))


def test_a_bomb_is_never_unpacked() -> None:
    """64 MiB of zeros are some 9 KiB after coding: too long. 64 KiB of them fit, and are cut off."""
    bomb = bytes([LZMA]) + header() + shortened(bytes(2**26))
    assert "are not at most 629 bytes" in reason_of(bomb)
    small = bytes([LZMA]) + header() + shortened(bytes(2**16))
    assert len(small) < 629
    assert "not the 624 bytes that the shapes need" in reason_of(small)


@pytest.mark.parametrize("size", [0, PLAIN_SIZE - 1, PLAIN_SIZE + 1])
def test_a_wrong_number_of_bytes_is_refused(size: int) -> None:
    data = bytes([LZMA]) + header() + shortened(bytes(size))
    assert "not the 624 bytes that the shapes need" in reason_of(data)


def test_bytes_as_they_are_must_be_all_of_them() -> None:
    assert "not the 624 bytes" in reason_of(bytes([PLAIN]) + header() + bytes(PLAIN_SIZE - 1))


def test_an_unknown_coding_is_refused() -> None:
    assert "not the 624 bytes" in reason_of(bytes([7]) + header() + bytes(PLAIN_SIZE))


def test_damage_anywhere_is_refused_or_gives_finite_shapes() -> None:
    """One byte changed: an error with a reason, or tensors of the shapes; nothing else is raised."""
    data, refused = packed(), 0
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 0x55
        try:
            arrived = unpack(CODEC, as_tensor(bytes(changed)), SHAPES, 1)
        except ValueError:
            refused += 1
        else:
            assert shapes_of(arrived) == SHAPES
    assert refused > 5


def test_bytes_that_were_cut_off_are_refused() -> None:
    data = packed()
    for size in range(1, len(data)):
        reason_of(data[:size])


def test_a_tensor_that_makes_no_sense_is_named() -> None:
    codec = TopK(share=0.5)
    parts, _ = codec.encode(TENSORS["b"], 0, None)
    parts[0][-1] = 1000
    data = HEADER.pack(PLAIN, HEADER.unpack(pack(codec, {"b": TENSORS["b"]}, 1)[0][:5].numpy().tobytes())[1])
    with pytest.raises(ValueError, match="its compressed 'b' makes no sense: an entry is named twice"):
        unpack(codec, as_tensor(data + joined([parts])), {"b": (7,)}, 1)


# --- Tables ---------------------------------------------------------------------------------------


def test_a_table_has_names_shapes_and_types_in_order() -> None:
    tensors = {"b": torch.zeros(2, 3), "a/b": torch.zeros((), dtype=torch.bfloat16)}
    table = read_table(pack_table(tensors))
    assert table == {"b": ((2, 3), torch.float32), "a/b": ((), torch.bfloat16)}
    assert list(table) == ["b", "a/b"]


def test_a_table_takes_a_few_bytes_of_each_name() -> None:
    names = [f"encoder.layers.{n}.{part}.weight" for n in range(12) for part in ("query", "key", "value")]
    table = pack_table({name: torch.zeros(64, 64) for name in names})
    assert len(table) < 8 * len(names) < len(json.dumps(names)) / 3


@pytest.mark.parametrize(
    "data",
    [
        b"abc",
        (MAX_TABLE + 1).to_bytes(4, "little") + shortened(bytes(MAX_TABLE + 1)),
        (10).to_bytes(4, "little") + shortened(bytes(11)),
        (10).to_bytes(4, "little") + b"damaged",
        (2).to_bytes(4, "little") + shortened(b"{["),
        (8).to_bytes(4, "little") + shortened(b"[[1, 2]]"),
        (13).to_bytes(4, "little") + shortened(b'[["w", [], 1]]'[:13]),
        (16).to_bytes(4, "little") + shortened(b'[["w",[],"int"]]'),
    ],
)
def test_a_table_that_makes_no_sense_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="compressed tensors"):
        read_table(as_tensor(data))


def test_a_packed_update_is_much_shorter_than_its_tensors() -> None:
    values: Tensors = {f"w{n}": torch.randn(100, 100) for n in range(3)}
    assert len(pack(StochasticRounding(bits=4), values, 1)[0]) < size_in_bytes(values) / 7.9
