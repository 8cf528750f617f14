"""Weights of a language model in the search, found by searching: a trial is a beam search of held-out speech.

R. Hooke and T. Jeeves, "'Direct Search' Solution of Numerical and Statistical Problems", 1961: one weight
after another is moved up or down by its step if that leaves fewer errors, and when no move helps, steps are
halved. Weights found on N-best lists (`rescoring`) are no substitute: a list holds what a search with other
weights has left, and says nothing of what it threw away.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from antiphon.decoding.fusion import Fusion

Point = tuple[float, ...]


@dataclass(frozen=True)
class FusionSearch:
    """Where a search for fusion weights begins, and how far it looks."""

    weight: float = 0.75
    word_bonus: float = 1.0
    weight_step: float = 0.5
    bonus_step: float = 1.0
    halvings: int = 2

    def run(self, fusion: Fusion, count_errors: Callable[[Fusion], int]) -> Fusion:
        """The fusion whose weights make the fewest errors; a language model never counts negatively."""

        def errors(point: Point) -> float:
            weight, word_bonus = point
            return (
                count_errors(replace(fusion, weight=weight, word_bonus=word_bonus))
                if weight >= 0
                else float("inf")
            )

        start, steps = (self.weight, self.word_bonus), (self.weight_step, self.bonus_step)
        weight, word_bonus = pattern_search(errors, start, steps, self.halvings)
        return replace(fusion, weight=weight, word_bonus=word_bonus)


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
