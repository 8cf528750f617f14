"""Is the difference between two recognisers real, or chance? Two tests, and their results in words.

Matched pairs (MAPSSWE): L. Gillick & S. Cox, "Some statistical issues in the comparison of speech recognition
algorithms", ICASSP 1989; D. Pallett, W. Fisher & J. Fiscus, "Tools for the analysis of benchmark speech
recognition tests", ICASSP 1990; NIST's sc_stats. The test compares errors in segments that are far enough
apart to be independent: two words that both recognisers have right, or an end of the utterance, separate
segments. A word that was inserted between two others is an error between them. If the recognisers are equally
good, the mean of the differences has a normal distribution around 0.

    Z_i  difference           errors of the second in segment i minus those of the first
    μ_Z  mean                 σ_Z  spread (n − 1 in the denominator)
    W    z = μ_Z / (σ_Z / √n) with p = 2 · P(N(0, 1) ≥ |z|)

Deviations. NIST ignores what the second recogniser inserts after the last word of the first; here these
errors count like others. If all segments differ by the same amount, σ_Z is 0 and NIST says z = 0; here the
spread is then taken around 0, the mean under the hypothesis: z = Σ Z / √(Σ Z²).

Paired bootstrap: M. Bisani & H. Ney, "Bootstrap estimates for confidence intervals in ASR performance
evaluation", ICASSP 2004. Deviation: speakers are drawn, not utterances, which are not independent.

The first test is about the speech at hand, the second about new speakers too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from antiphon.scoring.error_rate import Edit, Pair
from antiphon.scoring.statistics import LEVEL, Interval, difference_interval, plural, resampled_sums, signed

NUM_CORRECT = 2  # words that separate two segments
ENOUGH_SEGMENTS = 50  # Gillick & Cox's condition for the normal distribution
ENOUGH_SPEAKERS = 10  # with fewer, resampling gives intervals that are too narrow
Names = tuple[str, str]


@dataclass(frozen=True)
class MatchedPairs:
    """The test over segments. `mean` and `spread` are those of the second's errors minus the first's."""

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
    """The test over speakers.

    difference: rate of the second minus that of the first; None if fewer than two speakers have words
    improvement: share of the resamples in which the second makes fewer errors; a tie counts half
    """

    num_speakers: int
    difference: Interval | None
    improvement: float

    @property
    def is_significant(self) -> bool:
        return self.difference is not None and self.difference.excludes_zero


def error_segments(
    first: Sequence[Pair], second: Sequence[Pair], num_correct: int = NUM_CORRECT
) -> list[tuple[int, int]]:
    """Return the errors of both recognisers in each segment; both alignments have the same reference.

    >>> from antiphon.scoring.error_rate import alignment
    >>> said = "a b c d e f".split()
    >>> error_segments(alignment(said, "x b c d e f".split()), alignment(said, "a b c y z f g".split()))
    [(1, 0), (0, 3)]
    """
    segments: list[tuple[int, int]] = []
    errors, correct = (0, 0), 0
    counts = zip(errors_by_position(first), errors_by_position(second), strict=True)
    for position, (one, other) in enumerate(counts):
        if one or other:
            errors, correct = (errors[0] + one, errors[1] + other), 0
        elif position % 2 == 1:
            correct += 1
        if correct == num_correct and any(errors):
            segments.append(errors)
            errors = (0, 0)
    return [*segments, errors] if any(errors) else segments


def errors_by_position(rows: Sequence[Pair]) -> list[int]:
    """Return the errors before the first word of the reference, at it, between it and the next, and so on.

    >>> from antiphon.scoring.error_rate import alignment
    >>> errors_by_position(alignment("a b".split(), "a x y".split()))
    [0, 0, 1, 1, 0]
    """
    counts = [0]
    for edit, _, _ in rows:
        if edit is Edit.INSERTION:
            counts[-1] += 1
        else:
            counts += [int(edit is not Edit.MATCH), 0]
    return counts


def matched_pairs(first: npt.ArrayLike, second: npt.ArrayLike) -> MatchedPairs:
    """Test the errors of two recognisers in the same segments, both [segments].

    >>> test = matched_pairs([1, 0, 2, 1], [0, 0, 0, 0])
    >>> test.num_segments, test.mean, round(test.z, 4), round(test.p, 4)
    (4, -1.0, -2.4495, 0.0143)
    """
    difference = np.asarray(second, dtype=float) - np.asarray(first, dtype=float)
    return pairs_of_sums(len(difference), float(difference.sum()), float((difference**2).sum()))


def pairs_of_sums(number: int, total: float, squares: float) -> MatchedPairs:
    """Run the test on the number of segments, Σ Z_i and Σ Z_i²: sums of whole numbers are exact.

    >>> pairs_of_sums(4, -4.0, 6.0) == matched_pairs([1, 0, 2, 1], [0, 0, 0, 0])
    True
    """
    if not squares:
        return MatchedPairs(number, 0.0, 0.0, 0.0, 1.0)
    mean = total / number
    spread = math.sqrt(max(0.0, number * squares - total**2) / (number * (number - 1))) if number > 1 else 0.0
    z = mean / (spread / math.sqrt(number)) if spread > 0 else total / math.sqrt(squares)
    return MatchedPairs(number, mean, spread, z, p=math.erfc(abs(z) / math.sqrt(2)))


def paired_bootstrap(
    first: npt.ArrayLike, second: npt.ArrayLike, lengths: npt.ArrayLike, *, seed: int = 0
) -> PairedBootstrap:
    """Test the errors of two recognisers, given the number of words said, all [speakers]."""
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
    few = "" if test.num_segments >= ENOUGH_SEGMENTS else f" ({ENOUGH_SEGMENTS} would make p reliable)"
    verdict = "the difference may be chance"
    if test.is_significant:
        verdict = f"{_better(test, names)} is better, more than by chance"
    return f"{shown} over {plural(test.num_segments, 'segment')}{few}: {verdict}"


def speakers_verdict(test: PairedBootstrap, names: Names) -> str:
    """
    >>> speakers_verdict(PairedBootstrap(40, Interval(-0.02, -0.03, -0.01), 0.9991), ("a", "b"))
    'b − a = −2.00 [−3.00, −1.00] points over 40 speakers, b ahead in 99.9 % of resamples: holds for others'
    """
    if test.difference is None:
        return "one speaker is not enough for an interval over speakers: two are needed"
    speakers = plural(test.num_speakers, "speaker")
    few = "" if test.num_speakers >= ENOUGH_SPEAKERS else " (few: the interval is too narrow)"
    shown = f"{names[1]} − {names[0]} = {signed(test.difference)} points over {speakers}{few}"
    ahead = f"{names[1]} ahead in {100 * test.improvement:.1f} % of resamples"
    return f"{shown}, {ahead}: {'holds for others' if test.is_significant else 'may not hold for others'}"


def conclusion(segments: MatchedPairs, speakers: PairedBootstrap, names: Names) -> str:
    """Return the result of both tests in one sentence."""
    if segments.num_segments == 0 or (segments.mean == 0 and segments.spread == 0):
        return "There is no difference: both make as many errors in every segment."
    if not segments.is_significant and not speakers.is_significant:
        return "No real difference is shown: chance explains it. More test speech may show a difference."
    better = _better(segments, names)
    worse = names[1 - names.index(better)]
    if not speakers.is_significant:
        return f"Real on this speech, not shown for new speakers: {better} makes fewer errors than {worse}."
    if not segments.is_significant:
        return f"Not settled: {better} is ahead across speakers, but chance explains the errors themselves."
    return f"The difference is real: {better} makes fewer errors than {worse}."


def _better(test: MatchedPairs, names: Names) -> str:
    return names[1] if test.mean < 0 else names[0]
