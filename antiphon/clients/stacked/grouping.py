"""Which clients take a step together: the launches with the least padding and launching cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from antiphon.clients.client import Client, Step
from antiphon.clients.stacked.footprint import Footprint
from antiphon.tasks.local_training import LocalSteps

# The cost of a launch, in frames that could be computed in the same time: on an H200 a model of 3 M
# parameters takes about 1 µs for a frame, and the kernels of a step take about 15 ms to launch.
LAUNCH = 15_000


@dataclass(frozen=True)
class Plan:
    """A client and the batches of its steps in this round; `wanted` has parameters and settings."""

    client: Client
    steps: Sequence[Step]
    wanted: LocalSteps

    @cached_property
    def shapes(self) -> np.ndarray:
        """Rows and frames of each step's batch [steps, 2]; every text of an utterance counts as a row."""
        num_frames, texts = self.client.runtime.store.num_frames, self.client.labels.texts
        shapes = []
        for step in self.steps:
            num_texts = max(len(texts.get(index, (None,))) for index in step.indices.tolist())
            shapes.append((len(step.indices) * num_texts, int(num_frames[step.indices].max())))
        return np.array(shapes)


@dataclass(frozen=True)
class Launch:
    """Clients (by index of their plans) that take their step of this number at once."""

    number: int
    members: np.ndarray


def launches(plans: Sequence[Plan], footprint: Footprint, max_clients: int) -> Iterator[Launch]:
    """Yield launches for all steps of all clients, first steps first, that fit the memory and `max_clients`.

    At every step, clients whose batches are alike are grouped again.
    """
    for number in range(max((len(plan.steps) for plan in plans), default=0)):
        active = np.array([index for index, plan in enumerate(plans) if number < len(plan.steps)])
        shapes = np.stack([plans[index].shapes[number] for index in active])
        for members in cut(shapes, footprint, max_clients):
            yield Launch(number, np.sort(active[members]))


def cut(shapes: np.ndarray, footprint: Footprint, max_clients: int) -> list[np.ndarray]:
    """Group batches (rows and frames [n, 2]) that are computed together; the same for the same shapes.

    A launch of n batches costs LAUNCH, and n · rows · frames of the largest, padding included. Few large
    launches cost less launching, many small ones less padding. Dynamic programming finds the cheapest way to
    cut the batches, ordered by length. A batch that does not fit the memory has a launch of its own.
    """
    order = np.lexsort((shapes[:, 0], shapes[:, 1]))
    are_equal = 0 < len(shapes) <= max_clients and (shapes == shapes[0]).all()
    if are_equal and footprint.fits(np.array([len(shapes)]), shapes[:1])[0]:
        return [order]  # nothing is cheaper than one launch without padding
    least = np.full(len(order) + 1, np.inf)  # the least cost of the first n batches
    least[0], last_start = 0.0, np.zeros(len(order) + 1, dtype=np.int64)
    for start in range(len(order)):
        costs = least[start] + _costs(shapes[order[start : start + max_clients]], footprint)
        ends = start + 1 + np.flatnonzero(costs < least[start + 1 : start + 1 + len(costs)])
        least[ends], last_start[ends] = costs[ends - start - 1], start
    groups, end = [], len(order)
    while end > 0:
        groups.append(order[last_start[end] : end])
        end = int(last_start[end])
    return groups[::-1]


def _costs(shapes: np.ndarray, footprint: Footprint) -> np.ndarray:
    """Return the costs of launching the first batch, the first two, and so on; infinite without memory."""
    largest, counts = np.maximum.accumulate(shapes), np.arange(1, len(shapes) + 1)
    costs = LAUNCH + counts * largest.prod(axis=1).astype(float)
    fits = footprint.fits(counts, largest)
    costs[1:][~fits[1:]] = np.inf
    return costs
