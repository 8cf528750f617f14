"""The wire format: what is sent arrives, and nothing else is taken for it."""

from __future__ import annotations

import hashlib
import json
import math
import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.pools.remote_messages import (
    PREFIX,
    VERSION,
    Message,
    MissingBody,
    OtherVersion,
    WireError,
    head_of,
    pack,
    unpack,
)

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int8, torch.bool)
names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12).filter(
    lambda name: name != "__metadata__"
)
scalars = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=20)
heads = st.dictionaries(
    names.filter(lambda name: name != "body"),
    scalars | st.floats(allow_nan=False, allow_infinity=False) | st.lists(scalars, max_size=3),
    max_size=5,
)


@st.composite
def tensors(draw: st.DrawFn) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    shapes = st.lists(st.integers(0, 4), max_size=3)
    parts = draw(st.lists(st.tuples(names, st.sampled_from(DTYPES), shapes), max_size=5))
    return {n: torch.randn(shape, generator=generator).mul(3).to(dtype) for n, dtype, shape in parts}


@given(heads, tensors())
@settings(max_examples=60, deadline=None)
def test_a_message_arrives_as_it_was_sent(head: dict, sent: dict[str, torch.Tensor]) -> None:
    there, arrived = unpack(Message.split(bytes(pack(head, sent))))
    assert {key: value for key, value in there.items() if key != "body"} == head
    assert list(arrived) == list(sent)
    for name, tensor in sent.items():
        assert arrived[name].dtype == tensor.dtype
        assert arrived[name].shape == tensor.shape
        assert torch.equal(arrived[name], tensor)


@given(heads, tensors(), st.data())
@settings(max_examples=120, deadline=None)
def test_a_message_with_one_changed_byte_is_refused(
    head: dict, sent: dict[str, torch.Tensor], data: st.DataObject
) -> None:
    whole = bytearray(bytes(pack(head, sent)))
    place = data.draw(st.integers(0, len(whole) - 1))
    whole[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(WireError):
        unpack(Message.split(bytes(whole)))


@given(heads, tensors(), st.data())
@settings(max_examples=60, deadline=None)
def test_a_message_that_is_cut_off_or_too_long_is_refused(
    head: dict, sent: dict[str, torch.Tensor], data: st.DataObject
) -> None:
    whole = bytes(pack(head, sent))
    with pytest.raises(WireError):
        unpack(Message.split(whole[: data.draw(st.integers(0, len(whole) - 1))]))
    with pytest.raises(WireError):
        unpack(Message.split(whole + b"x"))


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        unpack(Message.split(data))


def test_another_version_is_refused_by_its_number_whatever_follows() -> None:
    message = bytes(pack({"verb": "hello"}))
    other = message[:8] + struct.pack("!H", VERSION + 1) + b"whatever a later version writes here" * 9
    with pytest.raises(OtherVersion, match=rf"version {VERSION + 1} .*this side has version {VERSION}"):
        Message.split(other)


def test_a_head_that_declares_a_huge_size_is_refused_before_it_is_read() -> None:
    with pytest.raises(WireError, match="too large"):
        Message.split(PREFIX.pack(b"antiphon", VERSION, 2**32 - 1, bytes(32)))


def test_a_body_that_is_known_may_be_left_out() -> None:
    message = pack({"a": 1}, {"w": torch.arange(3.0)})
    digest = head_of(message)["body"]["sha256"]
    with pytest.raises(MissingBody) as error:
        unpack(message.without_body())
    assert error.value.digest == digest
    _, tensors = unpack(message.without_body(), {digest: message.body})
    assert torch.equal(tensors["w"], torch.arange(3.0))
    with pytest.raises(WireError, match="damaged"):  # its bytes were compared when it arrived
        unpack(message.without_body(), {digest: bytes(message.body[:-1])})


def test_what_json_cannot_say_is_not_sent_and_not_read() -> None:
    with pytest.raises(ValueError):
        pack({"loss": math.nan})
    text = json.dumps({"loss": math.inf, "body": {"sha256": "", "bytes": 0, "names": []}}).encode()
    prefix = PREFIX.pack(b"antiphon", VERSION, len(text), hashlib.sha256(text).digest())
    with pytest.raises(WireError, match="Infinity is not a number"):
        head_of(Message(prefix + text))


def test_tensors_are_sent_by_value_whatever_memory_they_share() -> None:
    matrix = torch.arange(6.0).view(2, 3).T
    same = torch.arange(2.0)
    _, tensors = unpack(pack({}, {"w": matrix, "a": same, "b": same, "scalar": torch.tensor(2.5)}))
    assert torch.equal(tensors["a"], same)
    assert torch.equal(tensors["b"], same)
    assert torch.equal(tensors["w"], matrix)
    assert tensors["scalar"].shape == ()
