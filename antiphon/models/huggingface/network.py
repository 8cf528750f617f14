"""Networks of the package `transformers`, changed so that they behave like our own models, and their inputs.

- An utterance scores the same alone and in a padded batch. Attention and the statistics of group norms see
  real frames only; positional convolutions see zeros after the end of an utterance. All three read the
  lengths of the current batch from `padded`, so the code of the networks is unchanged.
- Many clients train at once. `vmap` can run the networks because they get no attention mask (their code would
  look at its values) and because weight norm is written out (torch's has no rule for `vmap`).
- Dropout is ours (`noise`) instead of `nn.Dropout`; everything else stays in evaluation mode. Deviation: all
  other randomness is off, whatever config.json says: dropped layers, dropout written as a function (of
  attention weights; all of Whisper's), wav2vec2's own SpecAugment.
- All state is parameters. Constant buffers are allowed; running statistics are refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.overrides import TorchFunctionMode

from antiphon.data.batches import Batch, repeated
from antiphon.data.huggingface_folder import WAVE_FRAME, library
from antiphon.models.layers import frame_mask
from antiphon.models.noise import Dropout

ATTENTION = "antiphon"  # the name of our attention in `transformers`
LOUDEST_TO_SILENCE = 2.0  # in Whisper's log-mel frames: 8 decades below the loudest, divided by 4 …
MIN_SILENCE = -1.5  # … but not below (log10(1e-10) + 4) / 4


@dataclass(frozen=True)
class Lengths:
    """Real frames of each utterance [B], at least 1: after the first convolution, and in the transformer."""

    convolved: Tensor
    frames: Tensor

    def repeated(self, times: int) -> Lengths:
        return Lengths(repeated(self.convolved, times), repeated(self.frames, times))


_current: ContextVar[Lengths] = ContextVar("lengths")


@contextmanager
def padded(lengths: Lengths) -> Iterator[None]:
    """In this context, networks know where the utterances of the batch end, and draw no random numbers."""
    token = _current.set(lengths)
    try:
        with NoRandomness():
            yield
    finally:
        _current.reset(token)


class NoRandomness(TorchFunctionMode):
    """`torch.rand` returns 1: wav2vec2 calls it for each layer, even if no layer is dropped."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return (torch.ones if function is torch.rand else function)(*args, **(kwargs or {}))


def attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, scaling: float | None = None, **_: Any
) -> tuple[Tensor, None]:
    """Attention to the real frames of the encoder, or to the tokens so far: [B, H, T, d] -> [B, T, H, d]."""
    num_queries, num_keys = query.shape[2], key.shape[2]
    if module.is_causal:
        visible = torch.ones(num_queries, num_keys, dtype=torch.bool, device=query.device)
        visible = visible.tril(diagonal=num_keys - num_queries)
    else:
        visible = frame_mask(_current.get().frames, num_keys)[:, None, None]
    heads = query.shape[1] // key.shape[1]
    if heads > 1:
        key, value = key.repeat_interleave(heads, dim=1), value.repeat_interleave(heads, dim=1)
    mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=visible, scale=scaling)
    return mixed.transpose(1, 2).contiguous(), None


class RealGroupNorm(nn.GroupNorm):
    """Group norm of [B, C, T] with statistics over the real frames only; zeros elsewhere."""

    def forward(self, input: Tensor) -> Tensor:
        lengths = _current.get().convolved
        real = frame_mask(lengths, input.shape[2])[:, None, None]
        groups = input.unflatten(1, (self.num_groups, -1)).masked_fill(~real, 0.0)
        count = lengths[:, None, None, None] * groups.shape[2]
        mean = groups.sum(dim=(2, 3), keepdim=True) / count
        centred = (groups - mean).masked_fill(~real, 0.0)
        variance = centred.square().sum(dim=(2, 3), keepdim=True) / count
        normal = (centred * (variance + self.eps).rsqrt()).flatten(1, 2)
        return normal * self.weight[:, None] + self.bias[:, None]


class WeightNorm(nn.Module):
    """`torch.nn.utils.parametrizations.weight_norm` written out: lengths along `dim`, and directions."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, lengths: Tensor, directions: Tensor) -> Tensor:
        others = [dim for dim in range(directions.dim()) if dim != self.dim]
        return directions * (lengths / torch.linalg.vector_norm(directions, dim=others, keepdim=True))


def _zeros_after_the_end(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The input of a positional convolution [B, T, D], with zeros where no frame is real."""
    real = frame_mask(_current.get().frames, inputs[0].shape[1])
    return inputs[0].masked_fill(~real[:, :, None], 0.0), *inputs[1:]


def open_network(kind: Any, folder: str, config: Any, fresh: str | None = None) -> Any:
    """A network with the folder's weights (safetensors), or drawn ones if it has none, in float32.

    Parameters whose names begin with `fresh` may be missing among the weights.
    """
    library().AttentionInterface.register(ATTENTION, attention)
    settings = {"config": config, "attn_implementation": ATTENTION, "dtype": torch.float32}
    if any(Path(folder).glob("*.safetensors")):
        safety = {"local_files_only": True, "use_safetensors": True, "trust_remote_code": False}
        try:
            network, info = kind.from_pretrained(folder, output_loading_info=True, **settings, **safety)
        except Exception as error:  # of many kinds: damaged files, classes without such a head
            raise ValueError(f"cannot open the weights in {folder}: {error}") from error
        if missing := sorted(n for n in info["missing_keys"] if fresh is None or not n.startswith(fresh)):
            raise ValueError(
                f"the weights in {folder} lack {missing[0]} ({len(missing)} missing): if it is the output "
                "layer of a CTC model, set model.fresh_output=true"
            )
        return network
    if any(Path(folder).glob("*.bin")):
        raise ValueError(
            f"the weights in {folder} are pickled (.bin), and nothing here runs code from files: save them "
            "as safetensors, with save_pretrained of a recent transformers"
        )
    return kind.from_config(**settings)


def make_batch_invariant(network: nn.Module, folder: str) -> None:
    """Change a network as the top of this file says."""
    for name, module in list(network.named_modules()):
        if getattr(module, "running_mean", None) is not None:
            raise ValueError(
                f"the model in {folder} keeps running statistics ({name}), which mix speakers and padding: "
                "choose one without batch normalisation"
            )
        parent, _, last = name.rpartition(".")
        if isinstance(module, nn.Dropout):
            setattr(network.get_submodule(parent), last, Dropout(module.p))
        elif isinstance(module, nn.GroupNorm):
            real = RealGroupNorm(module.num_groups, module.num_channels, module.eps)
            real.load_state_dict(module.state_dict())
            setattr(network.get_submodule(parent), last, real)
        elif isinstance(module, parametrizations._WeightNorm):
            setattr(network.get_submodule(parent), last, WeightNorm(module.dim))
        elif last == "pos_conv_embed":
            module.register_forward_pre_hook(_zeros_after_the_end)


class WithNetwork(nn.Module):
    """A model around a network whose dropout alone is switched to training; all else stays in evaluation."""

    def __init__(self, network: Any, inputs: Inputs, boundary: int) -> None:
        super().__init__()
        self.network, self.inputs, self.boundary = network, inputs, boundary

    def train(self, mode: bool = True) -> Self:
        self.training = mode
        self.network.eval()
        for module in self.network.modules():
            if isinstance(module, Dropout):
                module.train(mode)
        return self


@dataclass(frozen=True)
class Convolutions:
    """The convolutions from samples to frames, first to last: kernel, stride and padding of each."""

    shapes: tuple[tuple[int, int, int], ...]

    @classmethod
    def of(cls, encoder: nn.Module, dim: int, expected: int, what: str) -> Convolutions:
        """The convolutions of an encoder; refuses features of another dimension than the expected one."""
        if dim != expected:
            hint = "set frontend=hugging_face_features with the model's folder"
            raise ValueError(f"this model takes {what}, not features of {dim} dimensions: {hint}")
        layers = [module for module in encoder.modules() if isinstance(module, nn.Conv1d)]
        return cls(tuple((c.kernel_size[0], c.stride[0], int(c.padding[0])) for c in layers))

    def num_frames(self, lengths: Any) -> Any:
        """The number of frames after all convolutions, an int or a tensor [B]; below 1 for too few samples.

        >>> Convolutions(((10, 5, 0), (3, 2, 0))).num_frames(100)
        9
        """
        for kernel, stride, padding in self.shapes:
            lengths = (lengths + 2 * padding - kernel) // stride + 1
        return lengths

    @property
    def receptive_field(self) -> int:
        """The smallest number of samples that gives a frame (without padding)."""
        samples = 1
        for kernel, stride, _ in reversed(self.shapes):
            samples = (samples - 1) * stride + kernel
        return samples


@dataclass(frozen=True)
class Waveform:
    """Join frames of samples [B, T, WAVE_FRAME] to waveforms [B, samples], zero after their end."""

    convolutions: Convolutions

    @classmethod
    def of(cls, encoder: nn.Module, input_dim: int) -> Waveform:
        return cls(Convolutions.of(encoder, input_dim, WAVE_FRAME, "waveforms"))

    def __call__(self, batch: Batch) -> tuple[Tensor, Lengths]:
        real = frame_mask(batch.feature_lengths, batch.features.shape[1])
        samples = batch.features.masked_fill(~real[:, :, None], 0.0).flatten(1)
        samples = F.pad(samples, (0, max(0, self.convolutions.receptive_field - samples.shape[1])))
        lengths = batch.feature_lengths * WAVE_FRAME
        convolved = Convolutions(self.convolutions.shapes[:1]).num_frames(lengths).clamp(min=1)
        return samples, Lengths(convolved, self.convolutions.num_frames(lengths).clamp(min=1))

    def num_output_frames(self, num_frames: int) -> int:
        return int(self.convolutions.num_frames(num_frames * WAVE_FRAME))


@dataclass(frozen=True)
class LogMel:
    """Pad log-mel frames [B, T, D] with silence up to the size that the network needs: [B, D, size].

    As in Whisper's extractor, the silence depends on the loudest value (after SpecAugment). For the network,
    the frames of silence are real.
    """

    size: int
    convolutions: Convolutions

    @classmethod
    def of(cls, encoder: nn.Module, config: Any, input_dim: int) -> LogMel:
        bins = config.num_mel_bins
        convolutions = Convolutions.of(encoder, input_dim, bins, f"log-mel frames of {bins} bins")
        strides = math.prod(stride for _, stride, _ in convolutions.shapes)
        return cls(config.max_source_positions * strides, convolutions)

    def __call__(self, batch: Batch) -> tuple[Tensor, Lengths]:
        features, lengths = batch.features, batch.feature_lengths
        if features.shape[1] > self.size:
            raise ValueError(f"{features.shape[1]} frames, and this model takes at most {self.size}")
        features = F.pad(features, (0, 0, 0, self.size - features.shape[1]))
        real = frame_mask(lengths, self.size)[:, :, None]
        loudest = features.masked_fill(~real, -torch.inf).amax(dim=(1, 2), keepdim=True)
        silence = (loudest - LOUDEST_TO_SILENCE).clamp(min=MIN_SILENCE)
        frames = torch.full_like(lengths, self.convolutions.num_frames(self.size))
        return torch.where(real, features, silence).transpose(1, 2), Lengths(frames, frames)

    def num_output_frames(self, num_frames: int) -> int:
        return int(self.convolutions.num_frames(num_frames)) if num_frames <= self.size else 0


Inputs = Waveform | LogMel
