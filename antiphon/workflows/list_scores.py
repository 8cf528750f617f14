"""Word errors of N-best lists for several ways to choose one hypothesis from each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from antiphon.decoding.nbest import NBest
from antiphon.decoding.rescoring import Lists
from antiphon.scoring.error_rate import Errors
from antiphon.scoring.statistics import Interval, difference_interval, rate_interval

ORACLE = "oracle"
DEPTHS = (5, 20, 100)  # of lists: their oracles are scored too


@dataclass(frozen=True)
class ChoiceScore:
    """Word errors of one way to choose; intervals over sessions, None with fewer than two sessions.

    change: the difference from the first way, None for that way itself.
    """

    name: str
    errors: Errors
    rate: Interval | None
    change: Interval | None


@dataclass(frozen=True)
class ListScores:
    """Scores of the same lists for several ways to choose."""

    num_lists: int
    num_words: int
    num_sessions: int
    choices: tuple[ChoiceScore, ...]


def score_choices(lists: Lists, choices: Mapping[str, np.ndarray]) -> ListScores:
    """Score ways to choose a hypothesis from each list: name -> rows of the chosen hypotheses."""
    sessions = lists.sessions
    first_name, first_rows = next(iter(choices.items()))
    before, _ = _by_session(lists, first_rows, sessions)
    scores = []
    for name, rows in choices.items():
        wrong, words = _by_session(lists, rows, sessions)
        change = None if name == first_name else difference_interval(wrong, before, words)
        scores.append(ChoiceScore(name, lists.count(rows), rate_interval(wrong, words), change))
    return ListScores(len(sessions), lists.count(first_rows).length, len(set(sessions)), tuple(scores))


def oracles(lists: Lists) -> dict[str, np.ndarray]:
    """Return the hypotheses with the fewest errors: within each depth that cuts lists short, and of all."""
    deepest = int(np.diff(lists.starts).max())
    parts = {f"{ORACLE} of {depth}": lists.oracle(depth) for depth in DEPTHS if depth < deepest}
    return {**parts, ORACLE: lists.oracle()}


def _by_session(lists: Lists, rows: np.ndarray, sessions: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Count the errors and the words of each session."""
    codes = {session: code for code, session in enumerate(dict.fromkeys(sessions))}
    numbers = [codes[session] for session in sessions]
    wrong = np.bincount(numbers, weights=lists.errors[rows, :3].sum(axis=1))
    return wrong, np.bincount(numbers, weights=lists.errors[rows, 3])


def check_split(entries: Sequence[NBest], split: str) -> None:
    """Refuse a split that no list belongs to."""
    splits = sorted({str(entry.split) for entry in entries})
    if split not in splits:
        raise ValueError(f"no lists of split {split!r}: there are {', '.join(splits)}")


def lists_of_splits(lists: Lists, splits: Sequence[str]) -> Lists:
    """Return the lists that belong to any of these splits; all lists where no split is named."""
    for split in splits:
        check_split(lists.entries, split)
    if not splits:
        return lists
    return lists.of([place for place, entry in enumerate(lists.entries) if entry.split in splits])
