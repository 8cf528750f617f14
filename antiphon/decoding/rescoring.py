"""The second pass: N-best lists ranked again by a weighted sum of scores.

F. Och, "Minimum Error Rate Training in Statistical Machine Translation", 2003: the sum is linear in natural
logarithms and counts, and its weights are those with the fewest word errors on held-out lists. They are found
by coordinate search: one weight after another takes the best value of a grid around it, which gets finer.

Columns of a hypothesis: `score` (the total of the first pass), `rank` (minus the logarithm of its rank, for
lists whose scores cannot be compared), `words`, its other parts, and one for every language model and every
recogniser. If errors are equal, the earlier weight stays: a language model that does not help gets weight 0.

`MinimumRisk` chooses the hypothesis with the fewest expected word errors, which need not be the likeliest: A.
Stolcke, Y. König and M. Weintraub, "Explicit Word Error Minimization in N-best List Rescoring", Eurospeech
1997. The scores s of a list become posteriors p = softmax(sharpness · s). The chosen text has the smallest
sum over all texts of p times the number of words in which the two differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from antiphon.decoding.nbest import WORDS, Hypothesis, NBest
from antiphon.lm.ngram import SentenceModel
from antiphon.scoring.error_rate import Errors, word_distances, word_errors

# A recogniser that returns ln p(text | speech) of all hypotheses of these lists, in one sequence.
Listener = Callable[[Sequence[NBest]], Sequence[float]]

SCORE, RANK = "score", "rank"
SPREAD = (-4.0, -2.0, -1.0, -0.5, -0.25, 0.25, 0.5, 1.0, 2.0, 4.0)  # of the grid, in units of its step
ROUNDS = 6  # of the search; the step is halved after each
# Weights are relative to one that is fixed, so scores may have any unit. At infinity the likeliest is chosen.
SHARPNESSES = (np.inf, *(2.0**-power for power in range(10)))


@dataclass(frozen=True)
class Column:
    """A kind of score: its name, the weight and the step that a search starts with, and the lowest weight.

    The lowest weight of a language model is 0: an unlikely text with fewer errors is an accident.
    """

    name: str
    weight: float = 0.0
    step: float = 1.0
    lowest: float = -math.inf


@dataclass(frozen=True)
class Lists:
    """N-best lists as arrays: all hypotheses in rows, the first of each list at `starts`.

    values [n, columns]; errors [n, 4]: substitutions, deletions, insertions, length of the reference.
    """

    entries: tuple[NBest, ...]
    columns: tuple[str, ...]
    values: np.ndarray
    errors: np.ndarray
    starts: np.ndarray

    @property
    def sessions(self) -> list[str]:
        """The session of each list, or its id if it has none."""
        return [entry.session or entry.id for entry in self.entries]

    def scores(self, weights: Mapping[str, float]) -> np.ndarray:
        """The weighted sum of every hypothesis: the same bits whatever the number of lists."""
        totals = np.zeros(len(self.values))  # a product of matrices rounds by its size
        for name, values in zip(self.columns, self.values.T, strict=True):
            if weight := weights.get(name, 0.0):
                totals += weight * values
        return totals

    def best(self, weights: Mapping[str, float]) -> np.ndarray:
        """The row of the best hypothesis of each list; of equal ones the first."""
        return first_maxima(self.scores(weights), self.starts)

    def first(self) -> np.ndarray:
        return self.starts[:-1]

    def oracle(self, depth: int | None = None) -> np.ndarray:
        """The row with the fewest errors of each list, or of its first `depth` hypotheses."""
        wrong = self.errors[:, :3].sum(axis=1)
        ranks = np.arange(len(wrong)) - np.repeat(self.starts[:-1], np.diff(self.starts))
        is_seen = ranks < (len(wrong) if depth is None else depth)
        return first_maxima(np.where(is_seen, -wrong, -1 - wrong.max()), self.starts)

    def count(self, rows: np.ndarray) -> Errors:
        """The sum of the errors of these hypotheses."""
        return Errors(*(int(count) for count in self.errors[rows].sum(axis=0)))

    def of(self, indices: Sequence[int]) -> Lists:
        """Some of the lists."""
        rows = [np.arange(self.starts[index], self.starts[index + 1]) for index in indices]
        chosen = np.concatenate(rows) if rows else np.zeros(0, dtype=np.int64)
        entries, starts = tuple(self.entries[index] for index in indices), np.cumsum([0, *map(len, rows)])
        return Lists(entries, self.columns, self.values[chosen], self.errors[chosen], starts)


def first_maxima(scores: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """The row with the highest score of each list; of equal ones the first."""
    highest = np.repeat(np.maximum.reduceat(scores, starts[:-1]), np.diff(starts))
    rows = np.where(scores == highest, np.arange(len(scores)), len(scores))
    return np.minimum.reduceat(rows, starts[:-1])


def tabulate(
    entries: Iterable[NBest], models: Mapping[str, SentenceModel], recognisers: Mapping[str, Listener] = {}
) -> Lists:
    """Lists with references as arrays, with one more column for every model and recogniser."""
    entries = tuple(entries)
    if not entries:
        raise ValueError("there are no lists to rescore")
    hypotheses = [hypothesis for entry in entries for hypothesis in entry.hypotheses]
    # Parts that every hypothesis has; words and ranks are counted again.
    common = set(hypotheses[0].parts).intersection(*(hypothesis.parts for hypothesis in hypotheses))
    parts = sorted(common - {WORDS, RANK})
    taken = (models.keys() | recognisers.keys()) & {SCORE, RANK, WORDS, *parts}
    if taken := taken | (models.keys() & recognisers.keys()):
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
    """Join several searches of the same utterances: the hypotheses of the first, then new ones of the others.

    Scores of different searches cannot be compared. So the score of a text becomes minus the logarithm of its
    best rank, and its parts are dropped: use `recognisers` and `models` of `tabulate` instead.
    """
    first, *others = lists
    if not others:
        return list(first)
    by_id = [{entry.id: entry for entry in entries} for entries in others]
    joined = []
    for entry in first:
        if lacking := [number for number, entries in enumerate(by_id, 2) if entry.id not in entries]:
            raise ValueError(f"lists number {lacking[0]} have none of utterance {entry.id!r}")
        ranks: dict[str, int] = {}
        for source in (entry, *(entries[entry.id] for entries in by_id)):
            for rank, hypothesis in enumerate(source.hypotheses, 1):
                ranks[hypothesis.text] = min(rank, ranks.get(hypothesis.text, rank))
        hypotheses = [Hypothesis(text, score=-math.log(rank)) for text, rank in ranks.items()]
        joined.append(replace(entry, hypotheses=tuple(hypotheses)))
    return joined


def _errors(entry: NBest) -> list[tuple[int, int, int, int]]:
    if entry.reference is None:
        raise ValueError(f"utterance {entry.id!r} has no reference ('ref'): errors cannot be counted")
    errors = [word_errors(entry.reference, hypothesis.text) for hypothesis in entry.hypotheses]
    return [(e.substitutions, e.deletions, e.insertions, e.length) for e in errors]


def tune(lists: Lists, columns: Sequence[Column]) -> dict[str, float]:
    """The weights of the columns with the fewest word errors on these lists."""
    if unknown := [column.name for column in columns if column.name not in lists.columns]:
        raise ValueError(f"no column {unknown[0]!r} in the lists: there are {', '.join(lists.columns)}")
    weights = {column.name: column.weight for column in columns}
    fewest = lists.count(lists.best(weights)).total
    for search_round in range(ROUNDS):
        for column in columns:
            if column.step == 0:
                continue
            centre = weights[column.name]
            for offset in sorted(SPREAD, key=abs):
                value = max(column.lowest, centre + offset * column.step / 2**search_round)
                changed = {**weights, column.name: value}
                errors = lists.count(lists.best(changed)).total
                if errors < fewest:
                    fewest, weights = errors, changed
    return weights


def tune_leaving_out(lists: Lists, columns: Sequence[Column]) -> dict[str, dict[str, float]]:
    """For every session, weights tuned on all other sessions."""
    return {session: tune(lists.of(others), columns) for session, others in _other_sessions(lists).items()}


def best_leaving_out(lists: Lists, weights: Mapping[str, Mapping[str, float]]) -> np.ndarray:
    """The best row of each list under the weights of its session, which were tuned on the other sessions."""
    return _by_session(lists, {session: lists.best(tuned) for session, tuned in weights.items()})


def _other_sessions(lists: Lists) -> dict[str, list[int]]:
    """For every session, the indices of the lists of all other sessions."""
    sessions = lists.sessions
    if len(set(sessions)) < 2:
        raise ValueError("to leave one session out, lists of at least two are needed")
    return {
        left_out: [index for index, session in enumerate(sessions) if session != left_out]
        for left_out in dict.fromkeys(sessions)
    }


def _by_session(lists: Lists, chosen: Mapping[str, np.ndarray]) -> np.ndarray:
    """For each list, the row that was chosen for its session, from the rows of all lists by session."""
    return np.array([chosen[session][index] for index, session in enumerate(lists.sessions)], dtype=np.int64)


def reranked(lists: Lists, weights: Mapping[str, float]) -> list[NBest]:
    """The lists, best first by the weighted sum, which becomes their score; columns become parts."""
    totals, entries = lists.scores(weights), []
    names = ["first_pass" if name == SCORE else name for name in lists.columns]
    for entry, start in zip(lists.entries, lists.starts, strict=False):
        rows, scores = (values[start : start + len(entry.hypotheses)] for values in (lists.values, totals))
        ordered = [
            replace(
                entry.hypotheses[index],
                score=float(scores[index]),
                parts=dict(zip(names, rows[index].tolist(), strict=True)),
            )
            for index in np.argsort(-scores, kind="stable")
        ]
        entries.append(replace(entry, hypotheses=tuple(ordered)))
    return entries


@dataclass(frozen=True)
class MinimumRisk:
    """Lists, and the distances between the texts of each."""

    lists: Lists
    distances: tuple[np.ndarray, ...]

    @classmethod
    def measure(cls, lists: Lists) -> MinimumRisk:
        texts = ([hypothesis.text for hypothesis in entry.hypotheses] for entry in lists.entries)
        return cls(lists, tuple(map(word_distances, texts)))

    def of(self, indices: Sequence[int]) -> MinimumRisk:
        """Some of the lists."""
        return MinimumRisk(self.lists.of(indices), tuple(self.distances[index] for index in indices))

    def best(self, weights: Mapping[str, float], sharpness: float) -> np.ndarray:
        """The row of each list with the fewest expected errors; of equal ones the first."""
        lists = self.lists
        if np.isinf(sharpness):
            return lists.best(weights)
        scores = sharpness * lists.scores(weights)
        chosen = []
        for start, end, distances in zip(lists.starts[:-1], lists.starts[1:], self.distances, strict=True):
            likely = np.exp(scores[start:end] - scores[start:end].max())
            chosen.append(start + int(np.argmin(distances @ likely)))
        return np.array(chosen, dtype=np.int64)

    def tune(self, weights: Mapping[str, float]) -> float:
        """The sharpness with the fewest word errors on these lists; of equal ones the highest."""
        return min(SHARPNESSES, key=lambda value: self.lists.count(self.best(weights, value)).total)

    def best_leaving_out(self, weights: Mapping[str, Mapping[str, float]]) -> np.ndarray:
        """`best` with the weights of each list's session, and a sharpness tuned on the other sessions."""
        chosen = {
            session: self.best(weights[session], self.of(others).tune(weights[session]))
            for session, others in _other_sessions(self.lists).items()
        }
        return _by_session(self.lists, chosen)
