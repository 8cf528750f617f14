"""After the rounds of Federated Marginal Personalization: clients rank their lists again, and count errors.

Z. Liu and F. Peng, "Federated Marginal Personalization for ASR Rescoring", 2020, §3. What a client reports is
counts, for each of four ways to choose a hypothesis (`CHOICES`): substitutions, deletions and insertions, and
the sums of the matched-pairs test against the background model (`scoring.significance`): the number of
segments with errors, Σ Z and Σ Z². A client without references reports the number of its lists alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from antiphon.core import Task, Unusable, Update
from antiphon.tasks.client_work import COUNT, Bounds, client_work

RESCORE = "rescore"  # the kind of task
CHOICES = ("first_pass", "background", "adapted", "oracle")
BASELINE = CHOICES.index("background")
ERRORS, SEGMENTS = ("substitutions", "deletions", "insertions"), ("segments", "difference", "squares")
NUM_LISTS, WORDS = "num_lists", "words"

_COUNT = Bounds(COUNT.least, COUNT.most, is_whole=True, is_required=False)
_SUM = Bounds(-COUNT.most, COUNT.most, is_whole=True, is_required=False)
REPORTS = {
    NUM_LISTS: COUNT,
    WORDS: _COUNT,
    **{f"{choice}_{error}": _COUNT for choice in CHOICES for error in ERRORS},
    **{f"{c}_{name}": _SUM if name == "difference" else _COUNT for c in CHOICES for name in SEGMENTS},
}


@client_work(RESCORE, answers="nothing", reports=REPORTS)
def rescore(task: Task, client: Any) -> Update:
    """Rank the client's lists with q̄ of every round; report error counts."""
    if not hasattr(client, "rescore"):
        raise Unusable("it has speech, and no lists to rank")
    update: Update = client.rescore(task)
    return update


@dataclass(frozen=True)
class ErrorCounts:
    """Errors of a client.

    errors [choices, 4]: substitutions, deletions, insertions, words of the references.
    segments [choices, 3]: sums of the matched-pairs test.
    """

    errors: np.ndarray
    segments: np.ndarray

    def to_stats(self) -> dict[str, float]:
        stats = {WORDS: float(self.errors[0, 3])}
        for choice, errors, segments in zip(CHOICES, self.errors, self.segments, strict=True):
            stats |= {f"{choice}_{name}": float(n) for name, n in zip(ERRORS, errors[:3], strict=True)}
            stats |= {f"{choice}_{name}": float(n) for name, n in zip(SEGMENTS, segments, strict=True)}
        return stats

    @classmethod
    def of_stats(cls, stats: Mapping[str, float]) -> ErrorCounts | None:
        """Return the counts in a report; None if it has none. ValueError for counts that cannot be."""
        if WORDS not in stats:
            return None
        if missing := [name for name in REPORTS if name not in stats]:
            raise ValueError(f"it did not report {missing[0]!r}")
        errors = [[stats[f"{c}_{name}"] for name in ERRORS] + [stats[WORDS]] for c in CHOICES]
        segments = [[stats[f"{c}_{name}"] for name in SEGMENTS] for c in CHOICES]
        counts = cls(np.array(errors).astype(np.int64), np.array(segments).astype(np.int64))
        if (counts.errors[:, :2].sum(axis=1) > counts.errors[:, 3]).any():
            raise ValueError("it counts more words that are wrong or missing than words that were said")
        totals = counts.errors[:, :3].sum(axis=1)
        if (counts.segments[:, 1] != totals - totals[BASELINE]).any():
            raise ValueError("its sums for the matched-pairs test do not belong to its error counts")
        return counts
