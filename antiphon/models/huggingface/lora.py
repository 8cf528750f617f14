"""Low-rank adapters: E. Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022.

| symbol | name here |
| --- | --- |
| W0, frozen | `base_layer.weight` of an adapted layer |
| B, A: the update is W0 + (α / r) B A | `lora_B.default.weight`, `lora_A.default.weight` |
| r, α | `rank`, `alpha` |

The layers are those of the package `peft`. Deviation: no dropout in front of A.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

from torch import nn


@dataclass(frozen=True)
class LoraAdapter:
    """Adapters of the linear layers whose names end in one of `targets`; all other weights are frozen."""

    rank: int = 8
    alpha: float = 16.0
    targets: tuple[str, ...] = ("q_proj", "v_proj")

    def __post_init__(self) -> None:
        if self.rank < 1 or not self.targets:
            raise ValueError(f"an adapter needs a rank of at least 1 and target layers: {self}")

    def inject(self, network: nn.Module) -> None:
        """Add the adapters. B is zero, so the outputs of the network do not change yet."""
        peft, targets = library(), list(self.targets)
        settings = peft.LoraConfig(
            r=self.rank, lora_alpha=self.alpha, target_modules=targets, lora_dropout=0.0
        )
        try:
            peft.inject_adapter_in_model(settings, network)
        except ValueError as error:
            raise ValueError(f"lora.targets {', '.join(self.targets)}: {error}") from error


def merged(network: nn.Module) -> nn.Module:
    """A copy of the network with W0 + (α / r) B A in place of each adapted layer."""
    adapted = library().tuners.tuners_utils.BaseTunerLayer
    copied = copy.deepcopy(network)
    for name, module in list(copied.named_modules()):
        if isinstance(module, adapted):
            module.merge()
            parent, _, last = name.rpartition(".")
            setattr(copied.get_submodule(parent), last, module.get_base_layer())
    return copied


def library() -> Any:
    try:
        import peft
    except ImportError as error:
        raise ValueError("LoRA needs the package peft: pip install 'antiphon[hf]'") from error
    return peft
