"""Stretches of an utterance where two recognisers err, far enough apart to be independent.

L. Gillick & S. Cox, "Some statistical issues in the comparison of speech recognition algorithms", ICASSP
1989; D. Pallett, W. Fisher & J. Fiscus, "Tools for the analysis of benchmark speech recognition tests",
ICASSP 1990; NIST's sc_stats. A segment is bounded on both sides by two words that both recognisers have
right, or by an end of the utterance. A word that was inserted between two others counts as an error there.

Deviation: NIST passes over what the second recogniser inserts after the last word of the first; here those
errors count like others, so that the segments hold all errors of both.
"""

from __future__ import annotations

from collections.abc import Sequence

from antiphon.scoring.alignment import Row
from antiphon.scoring.error_rate import Edit

NUM_CORRECT = 2  # words that part two segments


def error_segments(
    first: Sequence[Row], second: Sequence[Row], num_correct: int = NUM_CORRECT
) -> list[tuple[int, int]]:
    """Errors of both recognisers in each segment; the two alignments share their reference.

    >>> from antiphon.scoring.error_rate import alignment
    >>> said = "a b c d e f".split()
    >>> error_segments(alignment(said, "x b c d e f".split()), alignment(said, "a b c y z f g".split()))
    [(1, 0), (0, 3)]
    """
    found: list[tuple[int, int]] = []
    errors, correct = (0, 0), 0
    for place, (one, other) in enumerate(zip(errors_by_place(first), errors_by_place(second), strict=True)):
        if one or other:
            errors, correct = (errors[0] + one, errors[1] + other), 0
        elif place % 2 == 1:
            correct += 1
        if correct == num_correct and any(errors):
            found.append(errors)
            errors = (0, 0)
    return [*found, errors] if any(errors) else found


def errors_by_place(rows: Sequence[Row]) -> list[int]:
    """Errors in the gap before each word of the reference, at the word, …, in the gap after the last.

    >>> from antiphon.scoring.error_rate import alignment
    >>> errors_by_place(alignment("a b".split(), "a x y".split()))
    [0, 0, 1, 1, 0]
    """
    counts = [0]
    for edit, _, _ in rows:
        if edit is Edit.INSERTION:
            counts[-1] += 1
        else:
            counts += [int(edit is not Edit.MATCH), 0]
    return counts
