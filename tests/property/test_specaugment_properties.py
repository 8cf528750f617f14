from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.models.specaugment import SpecAugment

configs = st.builds(
    SpecAugment,
    num_time_masks=st.integers(0, 4),
    time_width=st.integers(0, 30),
    max_time_fraction=st.floats(0.0, 1.0),
    num_frequency_masks=st.integers(0, 3),
    frequency_width=st.integers(0, 12),
)


@settings(max_examples=200, deadline=None)
@given(
    configs, st.lists(st.integers(1, 60), min_size=1, max_size=5), st.integers(0, 2**32), st.integers(0, 9)
)
def test_masks_zero_or_keep_and_stay_within_their_bounds(config, lengths, seed, padding):
    generator = torch.Generator().manual_seed(seed)
    features = torch.ones(len(lengths), max(lengths) + padding, 8)
    masked = config(features, torch.tensor(lengths), generator)
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
@given(configs, st.integers(0, 2**32))
def test_the_generator_moves_by_a_fixed_number_of_draws_an_utterance(config, seed):
    def state_after(num_frames):
        generator = torch.Generator().manual_seed(seed)
        config(torch.ones(2, num_frames, 5), torch.tensor([num_frames, 1]), generator)
        return generator.get_state()

    assert torch.equal(state_after(3), state_after(40))
