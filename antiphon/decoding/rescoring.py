"""The second pass: N-best lists ranked anew by a weighted sum of what is known of each hypothesis.

F. Och, "Minimum Error Rate Training in Statistical Machine Translation", 2003: the sum is linear in natural
logarithms and counts, and its weights are those with the fewest word errors on held-out lists. Found by
coordinate search: one weight after another takes the best value of a grid around it, which narrows.

Columns of a hypothesis: `score` (the first pass's own total), `rank` (minus the logarithm of its rank, for
lists whose scores cannot be compared), `words`, its other parts, and one for every language model and every
recogniser given.
Where errors are the same, the weight that came first holds: a language model that does not help gets none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from antiphon.decoding.nbest import WORDS, Hypothesis, NBest
from antiphon.lm.ngram import SentenceModel
from antiphon.scoring.error_rate import Errors, word_errors

# ln p(text | speech) of all hypotheses of these lists, in a row.
Listener = Callable[[Sequence[NBest]], Sequence[float]]

SCORE, RANK = "score", "rank"
SPREAD = (-4.0, -2.0, -1.0, -0.5, -0.25, 0.25, 0.5, 1.0, 2.0, 4.0)  # of the grid, in units of its step
ROUNDS = 6  # of the search; the step is halved after each


@dataclass(frozen=True)
class Column:
    """A kind of score: its name, the weight it starts with, how far a search looks at first, and the bottom.

    That of a language model is 0: fewer errors because of a text's being unlikely are an accident.
    """

    name: str
    weight: float = 0.0
    step: float = 1.0
    lowest: float = -math.inf


@dataclass(frozen=True)
class Lists:
    """N-best lists as arrays: all hypotheses in a row, the first of each list at `starts`.

    values [n, columns]; errors [n, 4]: substitutions, deletions, insertions, length of the reference.
    """

    entries: tuple[NBest, ...]
    columns: tuple[str, ...]
    values: np.ndarray
    errors: np.ndarray
    starts: np.ndarray

    @property
    def sessions(self) -> list[str]:
        """Of each list; one without a session is its own."""
        return [entry.session or entry.id for entry in self.entries]

    def scores(self, weights: Mapping[str, float]) -> np.ndarray:
        """The weighted sum of every hypothesis."""
        total: np.ndarray = self.values @ np.array([weights.get(name, 0.0) for name in self.columns])
        return total

    def best(self, weights: Mapping[str, float]) -> np.ndarray:
        """The row of the best hypothesis of each list; among equals the first pass's order holds."""
        return _first_maxima(self.scores(weights), self.starts)

    def first(self) -> np.ndarray:
        return self.starts[:-1]

    def oracle(self, depth: int | None = None) -> np.ndarray:
        """The row with the fewest errors of each list, or of its first `depth` hypotheses."""
        wrong = self.errors[:, :3].sum(axis=1)
        ranks = np.arange(len(wrong)) - np.repeat(self.starts[:-1], np.diff(self.starts))
        is_seen = ranks < (len(wrong) if depth is None else depth)
        return _first_maxima(np.where(is_seen, -wrong, -1 - wrong.max()), self.starts)

    def count(self, rows: np.ndarray) -> Errors:
        """Errors of these hypotheses together."""
        return Errors(*(int(count) for count in self.errors[rows].sum(axis=0)))

    def of(self, places: Sequence[int]) -> Lists:
        """Some of the lists."""
        rows = [np.arange(self.starts[place], self.starts[place + 1]) for place in places]
        chosen = np.concatenate(rows) if rows else np.zeros(0, dtype=np.int64)
        return Lists(
            tuple(self.entries[place] for place in places),
            self.columns,
            self.values[chosen],
            self.errors[chosen],
            np.cumsum([0, *map(len, rows)]),
        )


def _first_maxima(scores: np.ndarray, starts: np.ndarray) -> np.ndarray:
    sizes = np.diff(starts)
    highest = np.repeat(np.maximum.reduceat(scores, starts[:-1]), sizes)
    places = np.where(scores == highest, np.arange(len(scores)), len(scores))
    return np.minimum.reduceat(places, starts[:-1])


def tabulate(
    entries: Iterable[NBest], models: Mapping[str, SentenceModel], recognisers: Mapping[str, Listener] = {}
) -> Lists:
    """Lists with their references, and a column for every model and recogniser, named as there."""
    entries = tuple(entries)
    if not entries:
        raise ValueError("there are no lists to rescore")
    hypotheses = [hypothesis for entry in entries for hypothesis in entry.hypotheses]
    parts = _common_parts(hypotheses)
    if taken := (models.keys() | recognisers.keys()) & {SCORE, RANK, WORDS, *parts} | (
        models.keys() & recognisers.keys()
    ):
        raise ValueError(f"the lists have a part {sorted(taken)[0]!r} already: give the model another name")
    texts = [hypothesis.text for hypothesis in hypotheses]
    values = [
        [hypothesis.score for hypothesis in hypotheses],
        [-math.log(rank) for entry in entries for rank, _ in enumerate(entry.hypotheses, 1)],
        [len(text.split()) for text in texts],
        *([hypothesis.parts[name] for hypothesis in hypotheses] for name in parts),
        *(model.score_sentences(texts) for model in models.values()),
        *(listener(entries) for listener in recognisers.values()),
    ]
    return Lists(
        entries,
        (SCORE, RANK, WORDS, *parts, *models, *recognisers),
        np.array(values, dtype=np.float64).T,
        np.array([row for entry in entries for row in _errors(entry)], dtype=np.int64),
        np.cumsum([0, *(len(entry.hypotheses) for entry in entries)]),
    )


def united(lists: Sequence[Sequence[NBest]]) -> list[NBest]:
    """Several searches of the same utterances as one list each: those of the first, then what others add.

    Scores of different searches cannot be compared. So a text's becomes minus the logarithm of its best
    rank, and its parts are dropped: `recognisers` and `models` of `tabulate` say more.
    """
    first, *others = lists
    if not others:
        return list(first)
    by_id = [{entry.id: entry for entry in entries} for entries in others]
    found = []
    for entry in first:
        if strange := [number for number, own in enumerate(by_id, 2) if entry.id not in own]:
            raise ValueError(f"lists number {strange[0]} have none of utterance {entry.id!r}")
        ranks: dict[str, int] = {}
        for own in (entry, *(own[entry.id] for own in by_id)):
            for rank, hypothesis in enumerate(own.hypotheses, 1):
                ranks[hypothesis.text] = min(rank, ranks.get(hypothesis.text, rank))
        hypotheses = [Hypothesis(text, score=-math.log(rank)) for text, rank in ranks.items()]
        found.append(replace(entry, hypotheses=tuple(hypotheses)))
    return found


def _common_parts(hypotheses: Sequence[Hypothesis]) -> list[str]:
    """Parts that every hypothesis has; words and ranks are counted anew."""
    common = set(hypotheses[0].parts).intersection(*(hypothesis.parts for hypothesis in hypotheses))
    return sorted(common - {WORDS, RANK})


def _errors(entry: NBest) -> list[tuple[int, int, int, int]]:
    if entry.reference is None:
        raise ValueError(f"utterance {entry.id!r} has no reference ('ref'): errors cannot be counted")
    found = [word_errors(entry.reference, hypothesis.text) for hypothesis in entry.hypotheses]
    return [(e.substitutions, e.deletions, e.insertions, e.length) for e in found]


def tune(lists: Lists, columns: Sequence[Column]) -> dict[str, float]:
    """Weights of the columns with the fewest word errors on these lists; others have none."""
    if unknown := [column.name for column in columns if column.name not in lists.columns]:
        raise ValueError(f"no column {unknown[0]!r} in the lists: there are {', '.join(lists.columns)}")
    weights = {column.name: column.weight for column in columns}
    fewest = lists.count(lists.best(weights)).total
    for search_round in range(ROUNDS):
        for column in columns:
            if column.step == 0:
                continue
            around = weights[column.name]
            for offset in sorted(SPREAD, key=abs):
                value = max(column.lowest, around + offset * column.step / 2**search_round)
                tried = {**weights, column.name: value}
                errors = lists.count(lists.best(tried)).total
                if errors < fewest:
                    fewest, weights = errors, tried
    return weights


def others(lists: Lists) -> dict[str, list[int]]:
    """For every session, the places of the lists of all other sessions."""
    sessions = lists.sessions
    if len(set(sessions)) < 2:
        raise ValueError("to leave one session out, lists of at least two are needed")
    return {
        left_out: [place for place, session in enumerate(sessions) if session != left_out]
        for left_out in dict.fromkeys(sessions)
    }


def tune_leaving_out(lists: Lists, columns: Sequence[Column]) -> dict[str, dict[str, float]]:
    """For every session, weights tuned on all other sessions."""
    return {left_out: tune(lists.of(places), columns) for left_out, places in others(lists).items()}


def best_leaving_out(lists: Lists, weights: Mapping[str, Mapping[str, float]]) -> np.ndarray:
    """The best row of each list under the weights of its session, tuned on the others."""
    return of_own_session(lists, {session: lists.best(own) for session, own in weights.items()})


def of_own_session(lists: Lists, chosen: Mapping[str, np.ndarray]) -> np.ndarray:
    """Rows of all lists, chosen for every session, to those chosen for the list's own."""
    rows = [chosen[session][place] for place, session in enumerate(lists.sessions)]
    return np.array(rows, dtype=np.int64)


def reranked(lists: Lists, weights: Mapping[str, float]) -> list[NBest]:
    """The lists, best first by the weighted sum, which becomes their score; columns become parts."""
    totals, entries = lists.scores(weights), []
    for entry, start in zip(lists.entries, lists.starts, strict=False):
        rows, scores = (values[start : start + len(entry.hypotheses)] for values in (lists.values, totals))
        ordered = [
            replace(
                entry.hypotheses[place],
                score=float(scores[place]),
                parts={
                    "first_pass" if name == SCORE else name: float(value)
                    for name, value in zip(lists.columns, rows[place], strict=True)
                },
            )
            for place in np.argsort(-scores, kind="stable")
        ]
        entries.append(replace(entry, hypotheses=tuple(ordered)))
    return entries
