"""Statistics of results: intervals over speakers, coverage, worst speakers, rounds needed.

Utterances of one speaker are not independent, speakers nearly are. So intervals come from resampling
*speakers* with replacement and pooling their errors (Bisani & Ney, ICASSP 2004).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

NUM_RESAMPLES = 10_000
LEVEL = 0.95
Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """An estimate and the ends of its 95 % interval."""

    estimate: float
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        return self.low > 0 or self.high < 0


def rate_interval(errors: npt.ArrayLike, lengths: npt.ArrayLike, *, seed: int = 0) -> Interval | None:
    """Return the interval of the pooled error rate Σ errors / Σ lengths, both [speakers].

    None if fewer than two speakers have words: one speaker gives no interval over speakers.

    >>> rate_interval([1, 1, 1], [10, 10, 10])
    Interval(estimate=0.1, low=0.1, high=0.1)
    """
    columns = np.stack([np.asarray(errors, dtype=float), np.asarray(lengths, dtype=float)])
    if np.count_nonzero(columns[1]) < 2:
        return None
    total, sums = columns.sum(axis=1), resampled_sums(columns, seed)
    sums = sums[:, sums[1] > 0]
    low, high = np.quantile(sums[0] / sums[1], [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(total[0] / total[1]), float(low), float(high))


def difference_interval(
    errors: npt.ArrayLike, others: npt.ArrayLike, lengths: npt.ArrayLike, *, seed: int = 0
) -> Interval | None:
    """Return the paired interval of rate(errors) − rate(others), all [speakers]."""
    # The lengths are the same, so a difference of rates is the rate of differences.
    difference = np.asarray(errors, dtype=float) - np.asarray(others, dtype=float)
    return rate_interval(difference, lengths, seed=seed)


def relative_interval(after: npt.ArrayLike, before: npt.ArrayLike, *, seed: int = 0) -> Interval | None:
    """Return the paired interval of the relative change (after − before) / before, both [speakers]."""
    before = np.asarray(before, dtype=float)
    return rate_interval(np.asarray(after, dtype=float) - before, before, seed=seed)


def resampled_sums(columns: Array, seed: int) -> Array:
    """Sum `columns` [columns, speakers] over speakers drawn with replacement: [columns, resamples]."""
    generator = np.random.default_rng(seed)
    num_speakers = columns.shape[1]
    sums = np.empty((len(columns), NUM_RESAMPLES))
    step = max(1, 2_000_000 // num_speakers)  # 16 MB of draws at a time
    for start in range(0, NUM_RESAMPLES, step):
        stop = min(start + step, NUM_RESAMPLES)
        drawn = generator.integers(0, num_speakers, (stop - start, num_speakers))
        for row, column in zip(sums, columns, strict=True):
            row[start:stop] = column[drawn].sum(axis=1)
    return sums


def expected_coverage(cohort_size: int, num_clients: int, rounds: npt.ArrayLike) -> Array:
    """Return the share of the pool expected to be drawn at least once after T rounds: 1 − (1 − N/K)^T.

    >>> expected_coverage(1, 2, [0, 1, 2])
    array([0.  , 0.5 , 0.75])
    """
    share = min(1.0, cohort_size / num_clients)
    return 1 - (1 - share) ** np.asarray(rounds, dtype=float)


def measured_coverage(cohorts: Iterable[Iterable[str]], num_clients: int) -> Array:
    """Return the share of the pool that was drawn at least once, after each round.

    >>> measured_coverage([["a", "b"], ["b"], ["c"]], num_clients=4)
    array([0.5 , 0.5 , 0.75])
    """
    seen: set[str] = set()
    counts = []
    for cohort in cohorts:
        seen.update(cohort)
        counts.append(len(seen))
    return np.array(counts, dtype=float) / num_clients


def worst_decile(rates: Mapping[str, float]) -> list[str]:
    """Return the tenth of the speakers (at least one) with the highest error rate, worst first.

    >>> worst_decile({"a": 0.1, "b": 0.4, "c": 0.2})
    ['b']
    """
    ranked = sorted(rates, key=lambda name: (-rates[name], name))
    return ranked[: math.ceil(len(ranked) / 10)]


def round_of_best(rounds: Sequence[int], values: Sequence[float]) -> int | None:
    """Return the first round with the lowest value; NaN is ignored.

    >>> round_of_best([0, 5, 10, 15], [0.9, 0.4, 0.3, 0.3])
    10
    """
    finite = [(value, number) for number, value in zip(rounds, values, strict=True) if math.isfinite(value)]
    return min(finite)[1] if finite else None


def round_to_target(rounds: Sequence[int], values: Sequence[float], target: float) -> int | None:
    """Return the first round whose value is at or below the target, or None.

    >>> round_to_target([0, 5, 10], [0.9, 0.4, 0.3], target=0.5)
    5
    """
    reached = [number for number, value in zip(rounds, values, strict=True) if value <= target]
    return min(reached, default=None)


def effective_number(weights: npt.ArrayLike) -> float:
    """Return how many equally weighted clients would give the same variance: (Σα)² / Σα².

    >>> effective_number([0.5, 0.5, 0.0])
    2.0
    """
    values = np.asarray(weights, dtype=float)
    square = float((values**2).sum())
    return float(values.sum()) ** 2 / square if square > 0 else math.nan


def signed(interval: Interval | None, digits: int = 2) -> str:
    """Format a change in percent (or points) with its interval.

    >>> signed(Interval(-0.12, -0.14, 0.1), digits=1)
    '−12.0 [−14.0, +10.0]'
    """
    if interval is None:
        return "–"
    values = (interval.estimate, interval.low, interval.high)
    middle, low, high = (f"{100 * value:+.{digits}f}".replace("-", "−") for value in values)
    return f"{middle} [{low}, {high}]"


def plural(number: int, noun: str) -> str:
    """
    >>> plural(1, "round"), plural(1200, "round")
    ('1 round', '1,200 rounds')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
