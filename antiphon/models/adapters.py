"""Adapters: a few new parameters in a trained model, so that only they are trained and sent.

E. Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022 (`LowRank`);
N. Houlsby et al., "Parameter-Efficient Transfer Learning for NLP", ICML 2019 (`Bottleneck`).

| symbol | name here |
| --- | --- |
| W0 + (α / r) B A | `weight`, `alpha`, `rank`, `adapter_up`, `adapter_down` of an adapted matrix |
| bottleneck dimension m | `size` |

A model with adapters has the parameters of the full model under their own names, so a run with adapters can
start from a run without them. B, and the second matrix of a bottleneck, are zero at first: the adapted model
computes what the full one does. Set `trainable: ["*adapter_*"]` in the algorithm to train adapters only.

Deviations. LoRA without dropout in front of A. A bottleneck stands behind the LayerNorm that ends a layer of
the encoder, not behind every module of it, and its activation is SiLU.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from antiphon.models.blstm import BlstmLayer
from antiphon.models.conformer import ConformerLayer
from antiphon.models.model import MODELS, Model, ModelConfig


@dataclass(frozen=True)
class LowRank:
    """LoRA: a product of two narrow matrices beside every matrix whose name matches one of `targets`."""

    rank: int = 8
    alpha: float = 16.0
    targets: tuple[str, ...] = ("encoder.*",)  # patterns of names of linear layers

    def __post_init__(self) -> None:
        if self.rank < 1 or not self.targets:
            raise ValueError(f"low_rank needs a rank of at least 1 and targets: {self}")

    def adapt(self, model: nn.Module) -> None:
        layers = {name: layer for name, layer in model.named_modules() if type(layer) is nn.Linear}
        for pattern in self.targets:
            if not any(fnmatchcase(name, pattern) for name in layers):
                some = ", ".join(list(layers)[:3])
                raise ValueError(f"low_rank.targets: no linear layer matches {pattern!r}; some are {some}")
        for name, layer in layers.items():
            if any(fnmatchcase(name, pattern) for pattern in self.targets):
                _replace(model, name, LowRankLinear(layer, self))


@dataclass(frozen=True)
class Bottleneck:
    """A small network with a residual connection at the end of every layer of the encoder."""

    size: int = 32

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"bottleneck needs a size of at least 1, not {self.size}")

    def adapt(self, model: nn.Module) -> None:
        layers = [
            name for name, layer in model.named_modules() if isinstance(layer, ConformerLayer | BlstmLayer)
        ]
        if not layers:
            raise ValueError("bottleneck adapts layers of a Conformer or a bidirectional LSTM; there is none")
        for name in layers:
            norm = model.get_submodule(f"{name}.norm")
            assert isinstance(norm, nn.LayerNorm)
            _replace(model, f"{name}.norm", BottleneckNorm(norm, self.size))


Adapter = LowRank | Bottleneck


@MODELS.register
@dataclass(frozen=True)
class AdaptedConfig:
    """A model with adapters.

    >>> from antiphon.models.ctc import CtcConfig
    >>> model = AdaptedConfig(CtcConfig(), LowRank(rank=2)).build(input_dim=80, num_tokens=29)
    >>> sum(p.numel() for name, p in model.named_parameters() if "adapter_" in name)
    32416
    """

    full: ModelConfig | None = None  # the model that adapters are added to; null: the experiment's
    adapter: Adapter = LowRank()
    why_whole: ClassVar[str] = "a model with adapters cannot be pruned: prune the model without them"

    def added_to(self, model: ModelConfig) -> AdaptedConfig:
        """Return the settings with the model that the adapters are added to, if they do not name one."""
        return replace(self, full=model) if self.full is None else self

    def build(self, input_dim: int, num_tokens: int) -> Model:
        if self.full is None:
            raise ValueError("adapted: set full, the model that the adapters are added to")
        model: Any = self.full.build(input_dim, num_tokens)
        self.adapter.adapt(model)
        return model


def can_start_from(model: ModelConfig, other: ModelConfig) -> bool:
    """Return whether a model can start from the parameters of another one: the same, or without adapters."""
    return model == other or (isinstance(model, AdaptedConfig) and model.full == other)


def is_adapter(name: str) -> bool:
    """Return whether a parameter belongs to an adapter."""
    return name.rpartition(".")[2].startswith("adapter_")


def _replace(model: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, module)


class LowRankLinear(nn.Linear):
    """A linear layer with a low-rank change of its matrix."""

    def __init__(self, full: nn.Linear, adapter: LowRank) -> None:
        with torch.device("meta"):  # its parameters are those of the full layer
            super().__init__(full.in_features, full.out_features, full.bias is not None)
        self.weight, self.bias = full.weight, full.bias
        self.scale = adapter.alpha / adapter.rank
        self.adapter_down = nn.Parameter(torch.empty(adapter.rank, full.in_features))
        self.adapter_up = nn.Parameter(torch.zeros(full.out_features, adapter.rank))
        nn.init.kaiming_uniform_(self.adapter_down, a=5**0.5)  # as nn.Linear

    def forward(self, values: Tensor) -> Tensor:
        change = F.linear(F.linear(values, self.adapter_down), self.adapter_up)
        return super().forward(values) + self.scale * change


class BottleneckNorm(nn.LayerNorm):
    """A LayerNorm, and a bottleneck behind it."""

    def __init__(self, full: nn.LayerNorm, size: int) -> None:
        with torch.device("meta"):
            super().__init__(full.normalized_shape)
        self.weight, self.bias, self.eps = full.weight, full.bias, full.eps
        (dim,) = full.normalized_shape
        self.adapter_down = nn.Parameter(torch.empty(size, dim))
        self.adapter_bias = nn.Parameter(torch.zeros(size))
        self.adapter_up = nn.Parameter(torch.zeros(dim, size))
        nn.init.kaiming_uniform_(self.adapter_down, a=5**0.5)

    def forward(self, values: Tensor) -> Tensor:
        normed = super().forward(values)
        hidden = F.silu(F.linear(normed, self.adapter_down, self.adapter_bias))
        return normed + F.linear(hidden, self.adapter_up)
