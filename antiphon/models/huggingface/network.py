"""Networks of the package `transformers`, made to keep the promises of our own models.

- An utterance gives the same alone and in a padded batch. Attention sees real frames only; group norms take
  their statistics over real frames only; positional convolutions find zeros where an utterance has ended.
  All three learn the lengths of the batch at hand from `padded`, so the networks' own code stays as it is.
- Many clients train at once. `vmap` runs the networks, because they are given no attention mask (what their
  code does with one looks at values) and because weight norm is written out (torch's has no rule for it).
- Randomness is ours (`noise`): `nn.Dropout` is replaced by our own, and everything else stays in evaluation
  mode. Deviation: what a network draws by itself is off, whatever its config.json says. That is dropped
  layers, dropout written as a function (of attention weights; all of Whisper's), wav2vec2's own SpecAugment.
- State is parameters. Constant buffers may be; running statistics are refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.overrides import TorchFunctionMode

from antiphon.data.batches import repeated
from antiphon.data.huggingface_folder import library
from antiphon.models.layers import frame_mask
from antiphon.models.noise import Dropout

ATTENTION = "antiphon"  # the name under which `transformers` knows our attention


# --- Lengths --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Lengths:
    """Real frames of each utterance [B], at least 1: after the first convolution, and in the transformer."""

    convolved: Tensor
    frames: Tensor

    def repeated(self, times: int) -> Lengths:
        """Every utterance so many times, for as many texts."""
        return Lengths(repeated(self.convolved, times), repeated(self.frames, times))


_current: ContextVar[Lengths] = ContextVar("lengths")


@contextmanager
def padded(lengths: Lengths) -> Iterator[None]:
    """Within: networks know where the utterances of their batch end, and draw nothing."""
    token = _current.set(lengths)
    try:
        with NothingDrawn():
            yield
    finally:
        _current.reset(token)


class NothingDrawn(TorchFunctionMode):
    """Answers 1 to a network that draws: wav2vec2 does for each layer, also where no layer is dropped."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return (torch.ones if function is torch.rand else function)(*args, **(kwargs or {}))


def attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Any,
    scaling: float | None = None,
    **unused: Any,
) -> tuple[Tensor, None]:
    """Over the real frames of the encoder, or over the tokens so far: [B, H, T, d] -> [B, T, H, d]."""
    num_queries, num_keys = query.shape[2], key.shape[2]
    if module.is_causal:
        sees = torch.ones(num_queries, num_keys, dtype=torch.bool, device=query.device)
        sees = sees.tril(diagonal=num_keys - num_queries)
    else:
        sees = frame_mask(_current.get().frames, num_keys)[:, None, None]
    heads = query.shape[1] // key.shape[1]
    if heads > 1:
        key, value = key.repeat_interleave(heads, dim=1), value.repeat_interleave(heads, dim=1)
    mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=sees, scale=scaling)
    return mixed.transpose(1, 2).contiguous(), None


class RealGroupNorm(nn.GroupNorm):
    """Group norm of [B, C, T] with statistics over the real frames alone; zeros elsewhere."""

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
    """What `torch.nn.utils.parametrizations.weight_norm` computes: lengths along `dim`, and directions."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, lengths: Tensor, directions: Tensor) -> Tensor:
        others = [dim for dim in range(directions.dim()) if dim != self.dim]
        return directions * (lengths / torch.linalg.vector_norm(directions, dim=others, keepdim=True))


def _zeros_after_the_end(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """What a positional convolution is given, [B, T, D]: zero where no frame is real."""
    real = frame_mask(_current.get().frames, inputs[0].shape[1])
    return inputs[0].masked_fill(~real[:, :, None], 0.0), *inputs[1:]


# --- Networks -------------------------------------------------------------------------------------


def open_network(kind: Any, folder: str, config: Any, fresh: str | None = None) -> Any:
    """The folder's weights, or drawn ones if it has none, in float32; only safetensors are read.

    Where there are weights, only parameters whose names begin with `fresh` may be missing among them.
    """
    library().AttentionInterface.register(ATTENTION, attention)
    if any(Path(folder).glob("*.safetensors")):
        try:
            network, found = kind.from_pretrained(
                folder,
                output_loading_info=True,
                config=config,
                attn_implementation=ATTENTION,
                dtype=torch.float32,
                local_files_only=True,
                use_safetensors=True,
                trust_remote_code=False,
            )
        except Exception as error:  # of many kinds: damaged files, classes without such a head
            raise ValueError(f"cannot open the weights in {folder}: {error}") from error
        if missing := sorted(n for n in found["missing_keys"] if fresh is None or not n.startswith(fresh)):
            raise ValueError(
                f"the weights in {folder} lack {missing[0]} ({len(missing)} missing): where it is the output "
                "layer of a CTC model that is missing, set model.fresh_output=true"
            )
        return network
    if any(Path(folder).glob("*.bin")):
        raise ValueError(
            f"the weights in {folder} are pickled (.bin), and nothing here runs code from files: save them "
            "as safetensors, with save_pretrained of a recent transformers"
        )
    return kind.from_config(config, attn_implementation=ATTENTION, dtype=torch.float32)


def make_batch_invariant(network: nn.Module, folder: str) -> None:
    """Makes a network keep the promises at the top of this file."""
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


def train_dropout(network: nn.Module, mode: bool) -> None:
    """Our dropout draws while training; all that a network would draw by itself never does."""
    network.eval()
    for module in network.modules():
        if isinstance(module, Dropout):
            module.train(mode)
