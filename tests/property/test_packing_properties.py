"""Packed tensors, for any shapes: the layout is the size, and what comes back is what was encoded."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.tasks.codec import Codec
from antiphon.tasks.codecs.low_rank import LowRank
from antiphon.tasks.codecs.random_projection import RandomProjection
from antiphon.tasks.codecs.stochastic_rounding import StochasticRounding
from antiphon.tasks.codecs.top_k import TopK
from antiphon.tasks.packing import HEADER, pack, shapes_of, unpack

SHARES = st.sampled_from([0.01, 0.25, 0.5, 1.0])
CODECS = st.one_of(
    st.builds(StochasticRounding, st.sampled_from([2, 4, 8]), st.integers(1, 40)),
    st.builds(TopK, SHARES),
    st.builds(LowRank, st.integers(1, 3)),
    st.builds(RandomProjection, SHARES),
)
SHAPES = st.dictionaries(
    st.text("ab./é", min_size=1, max_size=4), st.lists(st.integers(0, 6), max_size=3), min_size=1, max_size=4
)


@settings(max_examples=150, deadline=None)
@given(
    codec=CODECS, shapes=SHAPES, seed=st.integers(0, 2**62), scale=st.sampled_from([0.0, 1e-30, 1.0, 1e30])
)
def test_what_is_packed_comes_back_as_the_codec_alone_gives_it(
    codec: Codec, shapes: dict[str, list[int]], seed: int, scale: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    tensors = {name: scale * torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    data, _ = pack(codec, tensors, seed)
    again, _ = pack(codec, tensors, seed)
    assert torch.equal(data, again)
    arrived = unpack(codec, data, shapes_of(tensors), seed)
    assert shapes_of(arrived) == shapes_of(tensors)
    assert all(bool(tensor.isfinite().all()) for tensor in arrived.values())
    sizes = [
        number * int(kind[-1]) for name in shapes for kind, number in codec.layout(tuple(tensors[name].shape))
    ]
    assert len(data) <= HEADER.size + sum(sizes)
    if scale == 0.0:
        assert not any(bool(tensor.any()) for tensor in arrived.values())
