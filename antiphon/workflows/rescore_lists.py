"""Rank N-best lists again with language models and other recognisers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from antiphon.decoding.minimum_risk import MinimumRisk
from antiphon.decoding.nbest import WORDS, NBest, read_nbest, write_nbest
from antiphon.decoding.rescoring import (
    SCORE,
    Column,
    Listener,
    Lists,
    best_leaving_out,
    reranked,
    tabulate,
    tune_leaving_out,
    united,
)
from antiphon.decoding.rescoring import tune as tune_weights
from antiphon.lm.neural_lm import load_sentence_model
from antiphon.workflows.decode_speech import open_decoder
from antiphon.workflows.list_scores import ListScores, check_split, lists_of_splits, oracles, score_choices
from antiphon.workflows.progress import Progress, no_progress

RESCORED, EXPECTED = "rescored", "least risk"  # the best weighted sum; the fewest expected errors


@dataclass(frozen=True)
class Rescoring:
    """Word error rates before and after, and the weights of the parts.

    tuned_on: the split that the weights were found on; "" if they were not found on one split.
    leave_one_out: each session was scored with weights found on the others; `weights` were found on all.
    sharpness: of the distribution over hypotheses in expected errors, if it was found on one split.
    """

    scores: ListScores
    weights: Mapping[str, float]
    tuned_on: str = ""
    leave_one_out: bool = False
    sharpness: float | None = None


def rescore(
    nbest: str | Path | Sequence[str | Path],
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
        nbest: A file of N-best lists with references (JSON lines, plain or .gz), or several that are merged.
        lm: Language models by name: ARPA files, or folders of `antiphon lm`.
        recognisers: Runs by name; their models score the texts too.
        data: The corpus of the speech; by default the corpora that the runs were trained on.
        device: cpu, cuda, cuda:1, or auto (the GPU if there is one).
        weights: Fixed weights of models and parts; {"score": 1} if none is fixed.
        search: Weights to search for, with the first step of the search. By default the models without a
            fixed weight, and "words".
        tune: The split on which weights are searched for. By default each session is scored with weights
            found on all other sessions.
        split: The split to score; all lists by default.
        out: A file for the lists in their new order, with all parts.
        feature_processes: The number of processes that compute features. More than one needs
            `if __name__ == "__main__":` in a script.
        progress: A function that is called with (stage, steps done, number of steps).

    Example:
        rescoring = antiphon.rescore("lists.jsonl", lm={"books": "books.arpa"}, tune="heldout", split="test")
        print(rescoring.weights["books"])
    """
    paths = [nbest] if isinstance(nbest, str | Path) else nbest
    entries = united([list(read_nbest(path)) for path in paths])
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
    decoder = open_decoder(run, data, device, num_processes, progress)

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
