"""What networks of `transformers` are given: waveforms, or log-mel frames with Whisper's silence behind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from antiphon.data.batches import Batch
from antiphon.data.huggingface_folder import WAVE_FRAME
from antiphon.models.huggingface.network import Lengths
from antiphon.models.layers import frame_mask

LOUDEST_TO_SILENCE = 2.0  # in Whisper's log-mel frames: 8 decades below the loudest, divided by 4 …
LEAST_SILENCE = -1.5  # … but not below (log10(1e-10) + 4) / 4


@dataclass(frozen=True)
class Convolutions:
    """The convolutions that turn samples into frames, first to last: kernel, stride and padding of each."""

    shapes: tuple[tuple[int, int, int], ...]

    @classmethod
    def of(cls, encoder: nn.Module) -> Convolutions:
        layers = [module for module in encoder.modules() if isinstance(module, nn.Conv1d)]
        return cls(tuple((c.kernel_size[0], c.stride[0], int(c.padding[0])) for c in layers))

    def first(self, lengths: Tensor) -> Tensor:
        """Frames [B] after the first of them."""
        return Convolutions(self.shapes[:1]).num_frames(lengths)

    def num_frames(self, lengths: Any) -> Any:
        """Frames after all of them; an int or a tensor [B]. Below 1 where there are too few samples.

        >>> Convolutions(((10, 5, 0), (3, 2, 0))).num_frames(100)
        9
        """
        for kernel, stride, padding in self.shapes:
            lengths = (lengths + 2 * padding - kernel) // stride + 1
        return lengths

    @property
    def receptive_field(self) -> int:
        """The fewest samples that give a frame (without padding)."""
        samples = 1
        for kernel, stride, _ in reversed(self.shapes):
            samples = (samples - 1) * stride + kernel
        return samples


class Inputs(Protocol):
    """Turns frames of the feature store into what a network takes."""

    def __call__(self, batch: Batch) -> tuple[Tensor, Lengths]: ...
    def num_output_frames(self, num_frames: int) -> int: ...


@dataclass(frozen=True)
class Waveform:
    """Frames of samples [B, T, WAVE_FRAME] joined to waveforms [B, samples], zero after their end."""

    convolutions: Convolutions

    @classmethod
    def of(cls, encoder: nn.Module, input_dim: int) -> Waveform:
        if input_dim != WAVE_FRAME:
            raise ValueError(
                f"this model takes waveforms, not features of {input_dim} dimensions: set "
                "frontend=hugging_face_features with the model's folder"
            )
        return cls(Convolutions.of(encoder))

    def __call__(self, batch: Batch) -> tuple[Tensor, Lengths]:
        real = frame_mask(batch.feature_lengths, batch.features.shape[1])
        samples = batch.features.masked_fill(~real[:, :, None], 0.0).flatten(1)
        samples = F.pad(samples, (0, max(0, self.convolutions.receptive_field - samples.shape[1])))
        lengths = batch.feature_lengths * WAVE_FRAME
        convolved = self.convolutions.first(lengths).clamp(min=1)
        return samples, Lengths(convolved, self.convolutions.num_frames(lengths).clamp(min=1))

    def num_output_frames(self, num_frames: int) -> int:
        return int(self.convolutions.num_frames(num_frames * WAVE_FRAME))


@dataclass(frozen=True)
class LogMel:
    """Log-mel frames [B, T, D] with silence after them, as many as the network was made for: [B, D, size].

    The silence is that of Whisper's extractor, which follows from the loudest value (under SpecAugment, from
    the loudest that is left). The network hears it: all its frames are real.
    """

    size: int
    convolutions: Convolutions

    @classmethod
    def of(cls, encoder: nn.Module, config: Any, input_dim: int) -> LogMel:
        if input_dim != config.num_mel_bins:
            raise ValueError(
                f"this model takes log-mel frames of {config.num_mel_bins} bins, not features of {input_dim} "
                "dimensions: set frontend=hugging_face_features with the model's folder"
            )
        convolutions = Convolutions.of(encoder)
        size = config.max_source_positions
        for _, stride, _ in convolutions.shapes:
            size *= stride
        return cls(size, convolutions)

    def __call__(self, batch: Batch) -> tuple[Tensor, Lengths]:
        features, lengths = batch.features, batch.feature_lengths
        if features.shape[1] > self.size:
            raise ValueError(f"{features.shape[1]} frames, and this model takes at most {self.size}")
        features = F.pad(features, (0, 0, 0, self.size - features.shape[1]))
        real = frame_mask(lengths, self.size)[:, :, None]
        loudest = features.masked_fill(~real, -torch.inf).amax(dim=(1, 2), keepdim=True)
        silence = (loudest - LOUDEST_TO_SILENCE).clamp(min=LEAST_SILENCE)
        frames = torch.full_like(lengths, self.convolutions.num_frames(self.size))
        return torch.where(real, features, silence).transpose(1, 2), Lengths(frames, frames)

    def num_output_frames(self, num_frames: int) -> int:
        return int(self.convolutions.num_frames(num_frames)) if num_frames <= self.size else 0
