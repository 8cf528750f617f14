"""Who takes a step together: launches of stacked clients for which padding and launching cost least."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from antiphon.clients.client import Client, Step
from antiphon.clients.stacked.footprint import Footprint
from antiphon.tasks.local_training import LocalSteps

# What one more launch costs, as frames that could have been computed meanwhile: on an H200 a model of
# 3 M parameters takes about 1 µs a frame, and the kernels of a step take about 15 ms to launch.
LAUNCH = 15_000


@dataclass(frozen=True)
class Plan:
    """A client and the steps it will take in this round, from the parameters that `wanted` names."""

    client: Client
    steps: Sequence[Step]
    wanted: LocalSteps

    @cached_property
    def shapes(self) -> np.ndarray:
        """Rows and frames of each step's batch [steps, 2]; a text counts as much as an utterance."""
        num_frames, texts = self.client.runtime.store.num_frames, self.client.labels.texts
        found = []
        for step in self.steps:
            num_texts = max(len(texts.get(index, (None,))) for index in step.indices.tolist())
            found.append((len(step.indices) * num_texts, int(num_frames[step.indices].max())))
        return np.array(found)


@dataclass(frozen=True)
class Launch:
    """Clients (their places among the plans) that take their step of this number at once."""

    number: int
    members: np.ndarray


def launches(plans: Sequence[Plan], footprint: Footprint, max_clients: int) -> Iterator[Launch]:
    """All steps of all clients, first steps first; a launch fits the memory and has at most `most` clients.

    Who shares a launch is found anew at every step: those whose batches are alike then.
    """
    for number in range(max((len(plan.steps) for plan in plans), default=0)):
        at_work = np.array([place for place, plan in enumerate(plans) if number < len(plan.steps)])
        shapes = np.stack([plans[place].shapes[number] for place in at_work])
        for members in cut(shapes, footprint, max_clients):
            yield Launch(number, np.sort(at_work[members]))


def cut(shapes: np.ndarray, footprint: Footprint, max_clients: int) -> list[np.ndarray]:
    """Which of these batches (rows and frames [n, 2]) to compute together; the same for the same shapes.

    A launch of n batches costs LAUNCH, and n · rows · frames of the largest, padding included. Few large ones
    launch less, many small ones of similar batches pad less: of all ways to cut the batches, ordered by their
    length, dynamic programming finds the cheapest. One that does not fit the memory stands alone.
    """
    order = np.lexsort((shapes[:, 0], shapes[:, 1]))
    least = np.full(len(order) + 1, np.inf)  # of the first n batches
    least[0], last_start = 0.0, np.zeros(len(order) + 1, dtype=np.int64)
    for start in range(len(order)):
        costs = least[start] + _costs(shapes[order[start : start + max_clients]], footprint)
        ends = start + 1 + np.flatnonzero(costs < least[start + 1 : start + 1 + len(costs)])
        least[ends], last_start[ends] = costs[ends - start - 1], start
    found, end = [], len(order)
    while end > 0:
        found.append(order[last_start[end] : end])
        end = int(last_start[end])
    return found[::-1]


def _costs(shapes: np.ndarray, footprint: Footprint) -> np.ndarray:
    """Of launches of the first batch, the first two, and so on; infinite where more than one do not fit."""
    largest, counts = np.maximum.accumulate(shapes), np.arange(1, len(shapes) + 1)
    costs = LAUNCH + counts * largest.prod(axis=1).astype(float)
    fits = footprint.fits(counts, largest)
    costs[1:][~fits[1:]] = np.inf
    return costs
