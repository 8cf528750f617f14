"""Weights beside the model's own score, found by searching: a trial is a beam search of held-out speech.

R. Hooke and T. Jeeves, "'Direct Search' Solution of Numerical and Statistical Problems", 1961: one weight
after another is moved up or down by its step if that leaves fewer errors, and when no move helps, steps are
halved. Weights found on N-best lists (`rescoring`) are no substitute: a list holds what a search with other
weights has left, and says nothing of what it threw away.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from antiphon.decoding.beams.attention_beam import Penalties
from antiphon.decoding.fusion import Fusion
from antiphon.models.las import Las
from antiphon.models.model import Model

Point = tuple[float, ...]


@dataclass(frozen=True)
class Ranking:
    """What hypotheses are ranked by beside the model's own score."""

    fusion: Fusion | None = None
    penalties: Penalties = Penalties()

    @property
    def weights(self) -> dict[str, float]:
        """Those that a search looks for, by name, as far as they are used."""
        coverage = self.penalties.coverage_weight
        found = {"coverage": coverage} if coverage else {}
        if self.fusion is None:
            return found
        return {"lm": self.fusion.weight, "word bonus": self.fusion.word_bonus, **found}


@dataclass(frozen=True)
class RankingSearch:
    """Where a search for weights begins, and its first steps: a language model's, a word's, coverage's."""

    starts: tuple[float, float, float] = (0.75, 1.0, 0.1)
    steps: tuple[float, float, float] = (0.5, 1.0, 0.1)
    halvings: int = 2

    def run(self, model: Model, ranking: Ranking, count_errors: Callable[[Ranking], int]) -> Ranking:
        """The weights with the fewest errors: of the language model if there is one, of coverage for LAS.

        Neither is ever negative; penalties that are not searched for stay as they are.
        """
        fusion = ranking.fusion
        used = [fusion is not None, fusion is not None, isinstance(model, Las)]
        places = [place for place in range(3) if used[place]]

        def weighed(point: Point) -> Ranking:
            weights = dict(zip(places, point, strict=True))
            mixed = fusion and replace(fusion, weight=weights[0], word_bonus=weights[1])
            return Ranking(mixed, replace(ranking.penalties, coverage_weight=weights.get(2, 0.0)))

        def cost(point: Point) -> float:
            allowed = all(value >= 0 or place == 1 for place, value in zip(places, point, strict=True))
            return count_errors(weighed(point)) if allowed else math.inf

        start, steps = ([values[place] for place in places] for values in (self.starts, self.steps))
        return weighed(pattern_search(cost, tuple(start), steps, self.halvings) if places else ())


def pattern_search(
    cost: Callable[[Point], float], start: Point, steps: Sequence[float], halvings: int
) -> Point:
    """The cheapest point found; no point is tried twice, and of equals the first holds.

    >>> pattern_search(lambda p: (p[0] - 1.25) ** 2 + (p[1] + 2) ** 2, (0.0, 0.0), (1.0, 1.0), halvings=2)
    (1.25, -2.0)
    """
    known = {start: cost(start)}
    best, moves = start, list(steps)
    for _ in range(halvings + 1):
        while (better := _neighbour(cost, best, moves, known)) != best:
            best = better
        moves = [move / 2 for move in moves]
    return best


def _neighbour(
    cost: Callable[[Point], float], best: Point, moves: Sequence[float], known: dict[Point, float]
) -> Point:
    """The point itself, or one that is cheaper, each coordinate moved at most once."""
    for place, move in enumerate(moves):
        for signed in (move, -move):
            tried = (*best[:place], best[place] + signed, *best[place + 1 :])
            if tried not in known:
                known[tried] = cost(tried)
            if known[tried] < known[best]:
                best = tried
                break
    return best
