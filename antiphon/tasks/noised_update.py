"""Updates with noise of their clients: clipped, rounded to a grid, and noised there, in whole steps.

The mechanism is that of `privacy.distributed_noise`. From the rounding on, all numbers are integers: the norm
is checked after the rounding, and the noise has exactly the stated probabilities (`privacy.samplers`). So the
guarantee has no gap of floating-point numbers.

>>> import torch
>>> from antiphon.tasks.update_clipping import WholeUpdate
>>> noised = NoisedByClient(WholeUpdate(bound=1.0), steps=5, multiplier=1.0)
>>> noised.on_grid({"w": torch.tensor([0.6, 0.8])})
array([3, 4])
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from antiphon.core import Task, Tensors, Unusable
from antiphon.privacy.distributed_noise import check_share, scale_of_share
from antiphon.privacy.samplers import Words, discrete_gaussian
from antiphon.tasks.update_clipping import UpdateClipping
from antiphon.tasks.views import CLIENT_VIEWS, VIEWS, View, views_of

BLOCK = 2**16  # entries whose noise is drawn at once


@CLIENT_VIEWS.register
@dataclass(frozen=True)
class NoisedByClient(View):
    """The client clips its update and adds its share of the noise, before a sum under masks.

    A member of secure aggregation does both itself, because only it knows whose shares are in a sum. Without
    secure aggregation the task is refused, before any work.
    """

    clipping: UpdateClipping
    steps: int  # of the grid, in the bound of the clipping
    multiplier: float  # the deviation of the shares in every sum together, over the bound
    colluding: int = 0  # clients whose shares are not counted

    def __post_init__(self) -> None:
        if self.steps < 1 or self.colluding < 0 or not 0 < self.multiplier < math.inf:
            raise ValueError(f"noise of clients needs steps and a multiplier above 0: {self}")

    @property
    def step(self) -> float:
        """The distance of two neighbours on the grid, in an entry of an update."""
        return self.clipping.bound / self.steps

    def before(self, task: Task, client: Any) -> tuple[Task, Any]:
        raise Unusable("its update leaves with noise, under secure aggregation only, and this task has none")

    def on_grid(self, update: Tensors) -> np.ndarray:
        """Return an update in steps, in the order of names; no longer than `steps`. [entries], int64"""
        clipped = self.clipping(update)
        parts = [clipped[name].detach().cpu().double().numpy().ravel() for name in sorted(clipped)]
        scaled = np.concatenate([np.empty(0), *parts]) / self.step
        whole, less = np.rint(scaled).astype(np.int64), 1.0
        while int(np.sum(whole * whole)) > self.steps**2:  # rounding has made it longer than the bound
            whole = np.rint(max(0.0, 1 - less / self.steps) * scaled).astype(np.int64)
            less *= 2
        return whole

    def noised(self, whole: np.ndarray, threshold: int, words: Words) -> np.ndarray:
        """Return an update on the grid with this client's share; a sum has at least `threshold` shares."""
        carriers = threshold - self.colluding
        if carriers < 1:
            raise Unusable(
                f"a sum of {threshold} clients, of which {self.colluding} may collude, has no sure noise"
            )
        scale, noised = scale_of_share(self.multiplier, self.steps, carriers), whole.copy()
        check_share(scale, carriers, len(whole))
        for start in range(0, len(whole), BLOCK):
            part = noised[start : start + BLOCK]
            part += discrete_gaussian(words, scale, len(part))
        return noised


def without_noise(task: Task) -> tuple[Task, NoisedByClient | None]:
    """Return a task without its last view, if that one adds noise, and this view."""
    views = views_of(task) if VIEWS in task.config else []
    if not views or not isinstance(views[-1], NoisedByClient):
        return task, None
    written = json.loads(str(task.config[VIEWS]))[:-1]
    return replace(task, config={**task.config, VIEWS: json.dumps(written, separators=(",", ":"))}), views[-1]
