"""SpecAugment: D. Park et al., Interspeech 2019, time and frequency masking (no time warping)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from antiphon.models.noise import uniform

SITE = -1  # apart from the sites within a model, which count from 1


@dataclass(frozen=True)
class SpecAugment:
    """Fills stretches of time and bands of frequency with zeros, drawn for each utterance.

    Widths are uniform from 0 to the largest, positions uniform over the utterance's own frames. Time
    masks together cover at most `max_time_fraction` of an utterance: short ones get narrower masks.

    >>> augment = SpecAugment(num_time_masks=1, time_width=2, num_frequency_masks=0)
    >>> augment(torch.ones(1, 6, 2), torch.tensor([6]), keys=torch.tensor([4], dtype=torch.int32))[0, :, 0]
    tensor([1., 0., 0., 1., 1., 1.])
    """

    num_time_masks: int = 2
    time_width: int = 40
    max_time_fraction: float = 0.4
    num_frequency_masks: int = 2
    frequency_width: int = 27

    def __post_init__(self) -> None:
        if min(self.num_time_masks, self.time_width, self.num_frequency_masks, self.frequency_width) < 0:
            raise ValueError(f"numbers and widths of masks cannot be negative: {self}")
        if not 0.0 <= self.max_time_fraction <= 1.0:
            raise ValueError(f"max_time_fraction must lie between 0 and 1, not {self.max_time_fraction}")

    def __call__(self, features: Tensor, lengths: Tensor, keys: Tensor) -> Tensor:
        """Features [B, T, D], lengths [B], the utterances' keys [B] (see `noise`) -> features [B, T, D]."""
        num_frames, dim = features.shape[1:]
        num_masks = self.num_time_masks + self.num_frequency_masks
        draws = uniform(keys, SITE, 2 * num_masks).unflatten(1, (num_masks, 2))
        lengths = lengths.to(features.device)[:, None]
        share = self.max_time_fraction / max(self.num_time_masks, 1)
        widest = (lengths * share).long().clamp(max=self.time_width)
        time = covered(draws[:, : self.num_time_masks], lengths, widest, num_frames)
        every = torch.full_like(lengths, dim)
        frequency = covered(
            draws[:, self.num_time_masks :], every, every.clamp(max=self.frequency_width), dim
        )
        return features.masked_fill(time[:, :, None] | frequency[:, None, :], 0.0)


def covered(draws: Tensor, lengths: Tensor, widest: Tensor, size: int) -> Tensor:
    """Which of `size` places the masks cover: [B, size].

    Draws [B, masks, 2] in [0, 1) decide width and start; lengths and widest are [B, 1].
    """
    width = (draws[:, :, 0] * (widest + 1)).long()
    start = (draws[:, :, 1] * (lengths - width + 1)).long()
    place = torch.arange(size, device=draws.device)
    return ((place >= start[:, :, None]) & (place < (start + width)[:, :, None])).any(dim=1)
