"""A server optimiser: step n has the learning rate lr / n."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from antiphon.core import Tensors


@dataclass(frozen=True)
class ShrinkingSteps:
    lr: float = 1.0

    def __call__(
        self, params: Tensors, delta: Tensors, opt: Any, scale: float = 1.0
    ) -> tuple[Tensors, dict[str, Any]]:
        step = 1 if opt is None else opt["step"] + 1
        changed = {name: params[name] - self.lr * scale / step * change for name, change in delta.items()}
        return {**params, **changed}, {"step": step}
