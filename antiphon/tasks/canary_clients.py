"""Canary clients in a real run: updates that an auditor looks for in what the rounds release.

A canary has no speech. Its update is too long, in a direction of its own, and is clipped and added up as
those of other clients are. Half of the canaries, chosen by coins, are in the run. All have turns by the plan.
What an auditor sees of each canary in a round is written to the folder of the run (`privacy.canary_scores`).

The entries of each layer are shared out among the canaries at random, so every canary uses up the bound of
every layer. In a layer with fewer entries than canaries, several canaries have the same entry, with signs of
their own: what one shows of another has mean 0, and counts as noise. K canaries in a round have a sum of
about √K bounds. The noise is much longer: its deviation times the root of the number of entries.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

from antiphon.core import Tensors
from antiphon.privacy.canary_scores import CanaryRound, write_round
from antiphon.seeding import derive
from antiphon.tasks.round_release import RoundRelease
from antiphon.tasks.update_clipping import UpdateClipping

TOO_LONG = 3.0  # the length of a canary's update before clipping, in bounds
Layout = tuple[tuple[str, int], ...]  # the tensors of an update, with their numbers of entries


@dataclass(frozen=True)
class CanaryClients:
    """The canaries of a round, and what the run claims after it."""

    number: int
    seed: int
    epsilon: float
    delta: float
    rate: float  # of Poisson sampling; 0: turns are known

    @property
    def names(self) -> list[str]:
        return [f"canary/{number:06d}" for number in range(self.number)]

    @property
    def included(self) -> np.ndarray:
        """Whether each canary is in the run. [canaries]"""
        coins = np.random.default_rng(derive(self.seed, "canaries"))
        return coins.random(self.number) < 0.5

    def updates(self, drawn: Sequence[str], like: Tensors, clipping: UpdateClipping) -> Iterator[Tensors]:
        """Yield the updates of the canaries that are in the run and among those drawn, before clipping."""
        entries, values = _directions(self.number, self.seed, _layout(like), clipping)
        turns = set(drawn)
        for place, (name, is_in) in enumerate(zip(self.names, self.included, strict=True)):
            if is_in and name in turns:
                flat = torch.zeros(sum(tensor.numel() for tensor in like.values()), dtype=torch.float64)
                flat[entries[place]] = TOO_LONG * clipping.bound * values[place]
                parts = flat.split([tensor.numel() for tensor in like.values()])
                yield {
                    key: part.view(tensor.shape).to(tensor)
                    for (key, tensor), part in zip(like.items(), parts, strict=True)
                }

    def look_for(
        self, mean: Tensors, release: RoundRelease, drawn: Sequence[str], clipping: UpdateClipping
    ) -> None:
        """Write what the released mean has of each canary: 1 and noise if it is there, noise alone if not."""
        if not release.folder:
            return
        entries, values = _directions(self.number, self.seed, _layout(mean), clipping)
        flat = torch.cat([tensor.detach().double().cpu().flatten() for tensor in mean.values()])
        seen = (flat[entries] * values).sum(dim=1) * release.cohort / release.bound
        turns = set(drawn)
        found = CanaryRound(
            release.round + 1,
            self.epsilon,
            self.delta,
            self.rate,
            release.relative_deviation,
            tuple(release.plan.coefficients),
            tuple(self.included.tolist()),
            tuple(name in turns for name in self.names),
            tuple(seen.tolist()),
        )
        write_round(Path(release.folder), found)


def _layout(tensors: Tensors) -> Layout:
    return tuple((name, tensor.numel()) for name, tensor in tensors.items())


@lru_cache(maxsize=2)
def _directions(
    number: int, seed: int, layout: Layout, clipping: UpdateClipping
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the entries of each canary and its direction there, which uses up the bound of every layer.

    Both [canaries, entries of a canary]; directions have length 1.
    """
    size = sum(count for _, count in layout)
    if number > size:
        raise ValueError(f"private: {number} canaries need a model of as many parameters, and it has {size}")
    generator = np.random.default_rng(derive(seed, "directions of canaries"))
    entries, start = [], 0
    for _, count in layout:
        each = max(1, count // number)
        decks = (generator.permutation(count) for _ in range(math.ceil(number * each / count)))
        entries.append(start + np.concatenate(list(decks))[: number * each].reshape(number, each))
        start += count
    signs = torch.from_numpy(generator.choice([-1.0, 1.0], size=(number, sum(e.shape[1] for e in entries))))
    # One of the directions without its signs: clipping takes the norms of layers alone.
    ones = {name: signs.new_ones(e.shape[1]) for (name, _), e in zip(layout, entries, strict=True)}
    clipped = clipping({name: 1e6 * clipping.bound * part for name, part in ones.items()})
    lengths = torch.cat(list(clipped.values()))
    return torch.from_numpy(np.hstack(entries)), signs * lengths / torch.linalg.vector_norm(lengths)
