"""Rank N-best lists again with language models and other recognisers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from antiphon.decoding.nbest import WORDS, NBest, read_nbest, write_nbest
from antiphon.decoding.rescoring import (
    SCORE,
    Column,
    Listener,
    Lists,
    MinimumRisk,
    best_leaving_out,
    reranked,
    tabulate,
    tune_leaving_out,
    united,
)
from antiphon.decoding.rescoring import tune as tune_weights
from antiphon.lm.neural_lm import load_sentence_model
from antiphon.records.folders import check_new_file
from antiphon.scoring.error_rate import Errors
from antiphon.scoring.statistics import Interval, difference_interval, rate_interval
from antiphon.workflows.arguments import Names, Paths, Progress, names_of, no_progress, paths_of
from antiphon.workflows.run_decoder import RunDecoder

RESCORED, EXPECTED = "rescored", "least risk"  # the best weighted sum; the fewest expected errors
ORACLE = "oracle"
DEPTHS = (5, 20, 100)  # the oracles of lists cut to these lengths are scored too


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


@dataclass(frozen=True)
class Rescoring:
    """Word error rates before and after, and the weights of the parts.

    tuned_on: the split that the weights were found on; "" if they were not found on one split.
    leave_one_out: each session was scored with weights found on the others; `weights` were found on all.
    sharpness: the sharpness of the distribution over hypotheses that gives the expected errors, if it was
        found on one split.
    """

    scores: ListScores
    weights: Mapping[str, float]
    tuned_on: str = ""
    leave_one_out: bool = False
    sharpness: float | None = None


def rescore(
    nbest: Paths,
    *,
    lm: Mapping[str, str | Path] = {},
    recognisers: Mapping[str, str | Path] = {},
    data: str | Path | None = None,
    device: str = "auto",
    weights: Mapping[str, float] = {},
    search: Mapping[str, float] = {},
    tune: str = "",
    split: str = "",
    out: str | Path | None = None,
    feature_processes: int = 1,
    progress: Progress = no_progress,
) -> Rescoring:
    """Rank N-best lists again by a weighted sum of their parts and of other models' scores.

    Args:
        nbest: Files of N-best lists with references (JSON lines, plain or .gz); several are merged.
        lm: Language models by name: ARPA files, or folders made by antiphon lm.
        recognisers: Runs by name; their models score the texts too.
        data: The corpus of the speech; by default the corpora that the runs were trained on.
        device: cpu, cuda, cuda:1, or auto (the GPU if there is one).
        weights: Fixed weights of models and of parts of the lists; score=1 if none is fixed.
        search: Weights to search for, with the first step of the search. By default the models without a
            fixed weight, and "words".
        tune: The split on which weights are found; by default each session gets weights found on all others.
        split: The split to score; all lists by default.
        out: A file for the lists in their new order, with all parts.
        feature_processes: The number of processes that compute features.
        progress: A function that is called with (stage, steps done, number of steps).

    Example:
        rescoring = antiphon.rescore("lists.jsonl", lm={"books": "books.arpa"}, tune="heldout", split="test")
        print(rescoring.weights["books"])
    """
    if out is not None:
        check_new_file(Path(out))
    entries = united([list(read_nbest(path)) for path in paths_of(nbest)])
    for wanted in filter(None, (split, tune)):
        check_split(entries, wanted)
    models = {name: load_sentence_model(path) for name, path in lm.items()}
    listeners = {
        name: _listener(name, path, data, device, feature_processes, progress)
        for name, path in recognisers.items()
    }
    columns = make_columns([*models, *listeners], weights, search)
    lists = tabulate(entries, models, listeners)
    scored = lists_of_splits(lists, [split] if split else [])
    rescoring = _rank(lists, scored, columns, tune)
    if out is not None:
        write_nbest(out, reranked(lists, rescoring.weights))  # all splits: they may be ranked again
    return rescoring


def _rank(lists: Lists, scored: Lists, columns: Sequence[Column], tune: str) -> Rescoring:
    """Find the weights, and score the lists that are ranked with them."""
    if tune:
        tuned = lists_of_splits(lists, [tune])
        weights = tune_weights(tuned, columns)
        sharpness = MinimumRisk.measure(tuned).tune(weights)
        expected = MinimumRisk.measure(scored).best(weights, sharpness)
        scores = _scores(scored, {RESCORED: scored.best(weights), EXPECTED: expected})
        return Rescoring(scores, weights, tune, sharpness=sharpness)
    if all(column.step == 0 for column in columns):
        weights = {column.name: column.weight for column in columns}
        return Rescoring(_scores(scored, {RESCORED: scored.best(weights)}), weights)
    by_session = tune_leaving_out(scored, columns)
    expected = MinimumRisk.measure(scored).best_leaving_out(by_session)
    scores = _scores(scored, {RESCORED: best_leaving_out(scored, by_session), EXPECTED: expected})
    return Rescoring(scores, tune_weights(scored, columns), leave_one_out=True)


def _scores(lists: Lists, choices: Mapping[str, np.ndarray]) -> ListScores:
    return score_choices(lists, {"first pass": lists.first(), **choices, **oracles(lists)})


def _listener(
    name: str, run: str | Path, data: str | Path | None, device: str, num_processes: int, progress: Progress
) -> Listener:
    """Open a run's model; return a function that scores the texts of lists in their speech."""
    decoder = RunDecoder.open(run, data, device, num_processes, partial(progress, "features"))

    def listen(entries: Sequence[NBest]) -> list[float]:
        return decoder.score_lists(entries, partial(progress, name))

    return listen


def make_columns(
    models: Sequence[str], weights: Mapping[str, float], search: Mapping[str, float]
) -> list[Column]:
    """Return the parts of the weighted sum.

    A fixed weight has no step. A weight to search for starts at the given weight, or at zero.
    """
    free = [name for name in models if name not in weights]
    searched = search or dict.fromkeys([*free, *([WORDS] if free else [])], 1.0)
    start = {**({} if weights.keys() - searched.keys() else {SCORE: 1.0}), **weights}
    return [
        Column(
            name, start.get(name, 0.0), searched.get(name, 0.0), lowest=0.0 if name in models else -math.inf
        )
        for name in dict.fromkeys([*start, *searched])
    ]


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


def lists_of_splits(lists: Lists, splits: Names) -> Lists:
    """Return the lists that belong to any of these splits; all lists where no split is named."""
    splits = names_of(splits)
    for split in splits:
        check_split(lists.entries, split)
    if not splits:
        return lists
    return lists.of([index for index, entry in enumerate(lists.entries) if entry.split in splits])


def describe_weights(title: str, weights: Mapping[str, float]) -> str:
    """Describe weights in a line.

    >>> describe_weights("weights", {"lm": 0.5, "words": 1.0})
    'weights: lm 0.5, words 1'
    """
    return f"{title}: " + ", ".join(f"{name} {value:g}" for name, value in weights.items())
