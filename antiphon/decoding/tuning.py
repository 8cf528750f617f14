"""Tuning of the weights beside the model's own score; each trial is a beam search of held-out speech.

R. Hooke and T. Jeeves, "'Direct Search' Solution of Numerical and Statistical Problems", 1961: one weight
after another moves up or down by its step if that gives fewer errors. When no move helps, the steps are
halved. Tuning on N-best lists (`rescoring`) is no substitute: a list lacks the hypotheses that a search with
other weights discarded.
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
Cost = Callable[[Point], float]


@dataclass(frozen=True)
class Ranking:
    """The terms of a hypothesis's score beside the model's own."""

    fusion: Fusion | None = None
    penalties: Penalties = Penalties()

    @property
    def weights(self) -> dict[str, float]:
        """The weights that are tuned, by name, if they are used."""
        fusion, coverage = self.fusion, self.penalties.coverage_weight
        words = {} if fusion is None else {"lm": fusion.weight, "word bonus": fusion.word_bonus}
        return {**words, **({"coverage": coverage} if coverage else {})}


@dataclass(frozen=True)
class RankingSearch:
    """Start and first steps of a search for three weights: language model, word bonus, coverage."""

    starts: tuple[float, float, float] = (0.75, 1.0, 0.1)
    steps: tuple[float, float, float] = (0.5, 1.0, 0.1)
    halvings: int = 2

    def run(self, model: Model, ranking: Ranking, count_errors: Callable[[Ranking], int]) -> Ranking:
        """The weights with the fewest errors: of a language model and, for LAS, of coverage; at least 0."""
        fusion = ranking.fusion
        numbers = ([] if fusion is None else [0, 1]) + ([2] if isinstance(model, Las) else [])

        def ranking_at(point: Point) -> Ranking:
            weights = dict(zip(numbers, point, strict=True))
            weighted = fusion and replace(fusion, weight=weights[0], word_bonus=weights[1])
            return Ranking(weighted, replace(ranking.penalties, coverage_weight=weights.get(2, 0.0)))

        def cost(point: Point) -> float:
            allowed = all(value >= 0 or number == 1 for number, value in zip(numbers, point, strict=True))
            return count_errors(ranking_at(point)) if allowed else math.inf

        start, steps = ([values[number] for number in numbers] for values in (self.starts, self.steps))
        return ranking_at(pattern_search(cost, tuple(start), steps, self.halvings) if numbers else ())


def pattern_search(cost: Cost, start: Point, steps: Sequence[float], halvings: int) -> Point:
    """The point with the lowest cost; no point is tried twice, and of equal ones the first stays.

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


def _neighbour(cost: Cost, best: Point, moves: Sequence[float], known: dict[Point, float]) -> Point:
    """The point itself, or a cheaper one with each coordinate moved at most once."""
    for dimension, move in enumerate(moves):
        for signed in (move, -move):
            moved = (*best[:dimension], best[dimension] + signed, *best[dimension + 1 :])
            if moved not in known:
                known[moved] = cost(moved)
            if known[moved] < known[best]:
                best = moved
                break
    return best
