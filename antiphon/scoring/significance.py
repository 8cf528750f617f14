"""Is the difference between two recognisers real, or chance? Two tests, and what they say in words.

Matched pairs (MAPSSWE): L. Gillick & S. Cox, ICASSP 1989. Over segments whose errors are independent, the
mean of the differences has a normal distribution about 0 if the recognisers are equally good.

    Z_i  difference           errors of the second in segment i, less those of the first
    μ_Z  mean                 σ_Z  spread (n − 1 in the denominator)
    W    z = μ_Z / (σ_Z / √n) with p = 2 · P(N(0, 1) ≥ |z|)

Deviation: where all segments differ by the same amount σ_Z is 0, and NIST says z = 0; here the spread is
then taken about the mean of the hypothesis tested, which is 0: z = Σ Z / √(Σ Z²).

Paired bootstrap: M. Bisani & H. Ney, "Bootstrap estimates for confidence intervals in ASR performance
evaluation", ICASSP 2004. Deviation: speakers are drawn, not utterances, which are not independent.

The first speaks about the speech at hand, the second about new speakers too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from antiphon.scoring.statistics import LEVEL, Interval, difference_interval, plural, resampled_sums, signed

ENOUGH_SEGMENTS = 50  # Gillick & Cox's condition for the normal distribution
ENOUGH_SPEAKERS = 10  # with fewer, resampling them gives intervals that are too narrow
Names = tuple[str, str]


@dataclass(frozen=True)
class MatchedPairs:
    """`mean` and `spread`: of the errors a segment that the second makes more than the first."""

    num_segments: int
    mean: float
    spread: float
    z: float
    p: float

    @property
    def is_significant(self) -> bool:
        return self.p < 1 - LEVEL


@dataclass(frozen=True)
class PairedBootstrap:
    """`difference`: rate of the second less that of the first, None when fewer than two speakers have words.

    `improvement`: share of the resamples in which the second makes fewer errors (a draw is half a win).
    """

    num_speakers: int
    difference: Interval | None
    improvement: float

    @property
    def is_significant(self) -> bool:
        return self.difference is not None and self.difference.excludes_zero


def matched_pairs(first: npt.ArrayLike, second: npt.ArrayLike) -> MatchedPairs:
    """The test on the errors of two recognisers in the same segments, both [segments].

    >>> found = matched_pairs([1, 0, 2, 1], [0, 0, 0, 0])
    >>> found.num_segments, found.mean, round(found.z, 4), round(found.p, 4)
    (4, -1.0, -2.4495, 0.0143)
    """
    difference = np.asarray(second, dtype=float) - np.asarray(first, dtype=float)
    number = len(difference)
    if not difference.any():
        return MatchedPairs(number, 0.0, 0.0, 0.0, 1.0)
    mean = float(difference.mean())
    spread = float(difference.std(ddof=1)) if number > 1 else 0.0
    if spread > 0:
        z = mean / (spread / math.sqrt(number))
    else:
        z = float(difference.sum() / np.sqrt((difference**2).sum()))
    return MatchedPairs(number, mean, spread, z, p=math.erfc(abs(z) / math.sqrt(2)))


def paired_bootstrap(
    first: npt.ArrayLike, second: npt.ArrayLike, lengths: npt.ArrayLike, *, seed: int = 0
) -> PairedBootstrap:
    """The test on the errors of two recognisers and the words said, all [speakers]."""
    difference = np.asarray(second, dtype=float) - np.asarray(first, dtype=float)
    sums = resampled_sums(difference[None], seed)[0]
    improvement = float((sums < 0).mean() + (sums == 0).mean() / 2)
    interval = difference_interval(second, first, lengths, seed=seed)
    return PairedBootstrap(len(difference), interval, improvement)


def segments_verdict(test: MatchedPairs, names: Names) -> str:
    """
    >>> segments_verdict(MatchedPairs(400, -0.2, 1.0, -4.0, 6.3e-05), ("seed", "dga"))
    'p < 0.0001 over 400 segments: dga is better, more than by chance'
    """
    if test.num_segments == 0:
        return "neither made an error: there is nothing to compare"
    shown = "p < 0.0001" if test.p < 1e-4 else f"p = {test.p:.4f}"
    segments = plural(test.num_segments, "segment")
    few = "" if test.num_segments >= ENOUGH_SEGMENTS else f" ({ENOUGH_SEGMENTS} would make p reliable)"
    if not test.is_significant:
        return f"{shown} over {segments}{few}: chance alone could do as much"
    return f"{shown} over {segments}{few}: {_better(test, names)} is better, more than by chance"


def speakers_verdict(test: PairedBootstrap, names: Names) -> str:
    """
    >>> speakers_verdict(PairedBootstrap(40, Interval(-0.02, -0.03, -0.01), 0.9991), ("a", "b"))
    'b − a = −2.00 [−3.00, −1.00] points over 40 speakers, b ahead in 99.9 % of resamples: holds for others'
    """
    if test.difference is None:
        return "one speaker says nothing about another: two are needed"
    speakers = plural(test.num_speakers, "speaker")
    few = "" if test.num_speakers >= ENOUGH_SPEAKERS else " (few: the interval is too narrow)"
    shown = f"{names[1]} − {names[0]} = {signed(test.difference)} points over {speakers}{few}"
    ahead = f"{names[1]} ahead in {100 * test.improvement:.1f} % of resamples"
    says = "holds for others" if test.is_significant else "others may see none"
    return f"{shown}, {ahead}: {says}"


def conclusion(segments: MatchedPairs, speakers: PairedBootstrap, names: Names) -> str:
    """Both tests in one sentence."""
    if segments.num_segments == 0 or (segments.mean == 0 and segments.spread == 0):
        return "There is no difference: both make as many errors in every segment."
    if not segments.is_significant and not speakers.is_significant:
        return "No real difference is shown: chance explains it. With more speech one might show."
    better = _better(segments, names)
    worse = names[1 - names.index(better)]
    if not speakers.is_significant:
        return f"Real on this speech, not shown for new speakers: {better} makes fewer errors than {worse}."
    if not segments.is_significant:
        return f"Not settled: {better} is ahead across speakers, but chance explains the errors themselves."
    return f"The difference is real: {better} makes fewer errors than {worse}."


def _better(test: MatchedPairs, names: Names) -> str:
    return names[1] if test.mean < 0 else names[0]
