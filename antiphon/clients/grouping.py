"""Who is trained together: groups of stacked clients for which padding and launches cost least."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from antiphon.clients.client import Client, Step
from antiphon.clients.footprint import Footprint

# What launching one more step costs, as frames that could have been computed meanwhile: on an H200 a model of
# 3 M parameters takes about 1 µs a frame, and the kernels of a step take about 15 ms to launch.
LAUNCH = 15_000


@dataclass(frozen=True)
class Plan:
    """A client and the steps it will take in this round."""

    client: Client
    steps: Sequence[Step]

    @cached_property
    def shapes(self) -> np.ndarray:
        """Rows and frames of each step's batch [steps, 2]; a text counts as much as an utterance."""
        num_frames, texts = self.client.bench.store.num_frames, self.client.labels.texts
        found = []
        for step in self.steps:
            num_texts = max(len(texts.get(index, (None,))) for index in step.indices.tolist())
            found.append((len(step.indices) * num_texts, int(num_frames[step.indices].max())))
        return np.array(found)


def grouped(plans: Sequence[Plan], footprint: Footprint, most: int) -> list[list[Plan]]:
    """Groups that fit the memory, clients with the most steps first; the same for the same plans.

    A step of n clients costs LAUNCH, and n · rows · frames of its largest batch, padding included. Few large
    groups launch less, many small ones of similar clients pad less: of all ways to cut the ordered clients
    into groups, dynamic programming finds the cheapest. A client that does not fit is a group all the same.
    """
    ordered = sorted(plans, key=lambda plan: (-len(plan.steps), *plan.shapes[0, ::-1], plan.client.id))
    shapes = np.zeros((len(ordered), len(ordered[0].steps) if ordered else 0, 2), dtype=np.int64)
    for place, plan in enumerate(ordered):
        shapes[place, : len(plan.steps)] = plan.shapes
    least = np.full(len(ordered) + 1, np.inf)  # of the first n clients
    least[0], last_start = 0.0, np.zeros(len(ordered) + 1, dtype=np.int64)
    for start, plan in enumerate(ordered):
        costs = least[start] + _costs(shapes[start : start + most, : len(plan.steps)], footprint)
        ends = start + 1 + np.flatnonzero(costs < least[start + 1 : start + 1 + len(costs)])
        least[ends], last_start[ends] = costs[ends - start - 1], start
    groups, end = [], len(ordered)
    while end > 0:
        groups.append(ordered[last_start[end] : end])
        end = int(last_start[end])
    return groups[::-1]


def _costs(shapes: np.ndarray, footprint: Footprint) -> np.ndarray:
    """Of groups of the first client, the first two, and so on; infinite where more than one do not fit."""
    largest = np.maximum.accumulate(shapes)
    at_work = np.cumsum(shapes[:, :, 0] > 0, axis=0)
    costs = (LAUNCH + at_work * largest.prod(axis=2)).sum(axis=1).astype(float)
    fits = footprint.fits(np.arange(1, len(shapes) + 1), largest)
    costs[1:][~fits[1:]] = np.inf
    return costs
