from __future__ import annotations

import pytest
import torch

from antiphon.models.noise import SpecAugment, utterance_keys


def keys(count: int) -> torch.Tensor:
    """A key for each of some utterances."""
    return utterance_keys(torch.tensor(5), torch.arange(count))


def zero_runs(row) -> list[tuple[int, int]]:
    """Start and end of every stretch of True."""
    padded = torch.nn.functional.pad(row.int(), (1, 1)).diff()
    return list(
        zip((padded == 1).nonzero()[:, 0].tolist(), (padded == -1).nonzero()[:, 0].tolist(), strict=True)
    )


def test_an_utterances_masks_do_not_depend_on_the_padding_of_its_batch():
    features = torch.rand(3, 50, 8) + 1
    lengths = torch.tensor([50, 20, 35])
    augment = SpecAugment(time_width=10, frequency_width=3)
    wide = torch.cat([features, torch.zeros(3, 30, 8)], dim=1)
    assert torch.equal(
        augment(features, lengths, keys(len(lengths))), augment(wide, lengths, keys(len(lengths)))[:, :50]
    )


def test_an_utterance_s_masks_do_not_depend_on_its_batch():
    features, lengths = torch.rand(3, 50, 8) + 1, torch.tensor([50, 20, 35])
    augment = SpecAugment(time_width=10, frequency_width=3)
    together = augment(features, lengths, keys(len(lengths)))
    assert torch.equal(together[1:2], augment(features[1:2], lengths[1:2], keys(3)[1:2]))


def test_time_masks_lie_in_the_utterance_and_cover_no_more_than_their_fraction():
    lengths = torch.arange(1, 301)
    augment = SpecAugment(num_time_masks=3, time_width=25, max_time_fraction=0.3, num_frequency_masks=0)
    masked = (augment(torch.ones(300, 320, 1), lengths, keys(300)) == 0)[:, :, 0]
    assert not (masked & (torch.arange(320) >= lengths[:, None])).any()
    assert (masked.sum(dim=1) <= 0.3 * lengths).all()
    assert masked.sum(dim=1).max() <= 3 * 25
    assert masked[200:].any(dim=1).float().mean() > 0.9


def test_one_time_mask_reaches_every_place_and_every_width():
    augment = SpecAugment(num_time_masks=1, time_width=3, max_time_fraction=1.0, num_frequency_masks=0)
    masked = (augment(torch.ones(2000, 6, 1), torch.full((2000,), 5), keys(2000)) == 0)[:, :, 0]
    seen = {run for row in masked for run in zero_runs(row)}
    assert seen == {(start, start + width) for width in (1, 2, 3) for start in range(5 - width + 1)}
    assert abs((~masked.any(dim=1)).float().mean() - 0.25) < 0.03


def test_frequency_masks_are_bands_over_the_whole_utterance():
    augment = SpecAugment(num_time_masks=0, num_frequency_masks=1, frequency_width=4)
    masked = augment(torch.ones(200, 7, 10), torch.full((200,), 7), keys(200)) == 0
    assert torch.equal(masked, masked[:, :1].expand_as(masked))
    runs = [zero_runs(row) for row in masked[:, 0]]
    assert {len(found) for found in runs} == {0, 1}
    assert {end - start for found in runs for start, end in found} == {1, 2, 3, 4}


def test_bands_wider_than_the_features_are_cut_to_them():
    augment = SpecAugment(num_time_masks=0, num_frequency_masks=1, frequency_width=50)
    assert augment(torch.ones(50, 3, 4), torch.full((50,), 3), keys(50)).isfinite().all()


def test_no_masks_change_nothing_and_the_input_is_left_alone():
    features, lengths = torch.rand(2, 9, 4), torch.tensor([9, 4])
    assert torch.equal(SpecAugment(0, 5, 0.5, 0, 5)(features, lengths, keys(len(lengths))), features)
    before = features.clone()
    SpecAugment(max_time_fraction=1.0)(features, lengths, keys(len(lengths)))
    assert torch.equal(features, before)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_masks_on_a_gpu_are_those_on_the_cpu():
    features, lengths = torch.rand(3, 50, 8) + 1, torch.tensor([50, 20, 35])
    augment = SpecAugment(time_width=10, frequency_width=3)
    moved = augment(features.cuda(), lengths.cuda(), keys(len(lengths)).cuda())
    assert torch.equal(moved.cpu(), augment(features, lengths, keys(len(lengths))))


def test_settings_without_meaning_are_refused():
    with pytest.raises(ValueError, match="between 0 and 1"):
        SpecAugment(max_time_fraction=1.5)
    with pytest.raises(ValueError, match="negative"):
        SpecAugment(num_time_masks=-1)
