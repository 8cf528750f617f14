"""The run with the lowest error rate, and the runs that the test speakers do not tell from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from antiphon.report.tables import Result, errors_of, words_of
from antiphon.scoring.statistics import difference_interval


@dataclass(frozen=True)
class Ranking:
    """The run with the lowest WER on a split, and the runs that may be as good.

    ties: the paired interval over speakers of their difference contains 0. unknown: there is no interval.
    """

    best: Result
    ties: Sequence[Result]
    unknown: Sequence[Result]
    num_runs: int

    @property
    def labels(self) -> list[str]:
        """The runs that a table marks as the lowest; none if there is nothing to compare."""
        return [row.label for row in (self.best, *self.ties)] if self.num_runs > 1 else []


def ranking(rows: Sequence[Result]) -> Ranking | None:
    """Rank the runs of a result table; None if no run has a score."""
    scored = sorted((row for row in rows if row.run), key=lambda row: row.evaluation.overall.words.rate)
    if not scored:
        return None
    best = scored[0]
    (errors, lengths), _ = errors_of(best.evaluation)
    ties, unknown = [], []
    for row in scored[1:]:
        interval = None
        if words_of(row.evaluation) == words_of(best.evaluation):
            interval = difference_interval(errors_of(row.evaluation)[0][0], errors, lengths)
        if interval is None:
            unknown.append(row)
        elif not interval.excludes_zero:
            ties.append(row)
    return Ranking(best, ties, unknown, len(scored))
