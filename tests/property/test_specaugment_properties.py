from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.models.noise import SpecAugment, utterance_keys

configs = st.builds(
    SpecAugment,
    num_time_masks=st.integers(0, 4),
    time_width=st.integers(0, 30),
    max_time_fraction=st.floats(0.0, 1.0),
    num_frequency_masks=st.integers(0, 3),
    frequency_width=st.integers(0, 12),
)


def keys_of(seed, count):
    return utterance_keys(torch.tensor(seed), torch.arange(count))


@settings(max_examples=200, deadline=None)
@given(
    configs,
    st.lists(st.integers(1, 60), min_size=1, max_size=5),
    st.integers(0, 2**31 - 1),
    st.integers(0, 9),
)
def test_masks_zero_or_keep_and_stay_within_their_bounds(config, lengths, seed, padding):
    features = torch.ones(len(lengths), max(lengths) + padding, 8)
    masked = config(features, torch.tensor(lengths), keys_of(seed, len(lengths)))
    assert set(masked.unique().tolist()) <= {0.0, 1.0}
    for row, length in zip(masked, lengths, strict=True):
        bands = int((row == 0).all(dim=0).sum())
        times = int((row == 0).all(dim=1).sum())
        if bands < 8:  # else every frame looks masked
            assert times <= config.max_time_fraction * length + 1e-6
            assert times <= config.num_time_masks * config.time_width
            assert torch.equal(row[length:], row[-1].expand_as(row[length:]))
        if times < len(row):
            assert bands <= config.num_frequency_masks * config.frequency_width


@settings(max_examples=50, deadline=None)
@given(configs, st.integers(0, 2**31 - 1), st.integers(0, 9))
def test_an_utterance_s_masks_depend_on_its_key_and_its_length_alone(config, seed, padding):
    lengths, keys = torch.tensor([12, 30, 7]), keys_of(seed, 3)
    together = config(torch.ones(3, 30 + padding, 5), lengths, keys)
    alone = config(torch.ones(1, 12, 5), lengths[:1], keys[:1])
    assert torch.equal(together[:1, :12], alone)
