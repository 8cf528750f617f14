"""The tables of a report as data: RESULTS.md and the page show the same rows."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from antiphon.report.run_folder import Array, Evaluation, RunFolder
from antiphon.scoring.error_rate import Errors
from antiphon.scoring.statistics import (
    Interval,
    difference_interval,
    rate_interval,
    relative_interval,
    round_of_best,
    round_to_target,
    worst_decile,
)

START, BEST = "start", "best"


@dataclass(frozen=True)
class Result:
    """One row of the result table: a model on a split. `run` is None for a starting model."""

    label: str
    run: RunFolder | None
    evaluation: Evaluation
    start: Evaluation | None
    wer: Interval | None
    cer: Interval | None
    change: Interval | None  # relative change of WER from the start of the same run
    against_first: Interval | None  # WER minus that of the first run, paired by speaker
    rounds_to_best: int | None
    rounds_to_target: int | None


def all_results(runs: Sequence[RunFolder]) -> dict[str, list[Result]]:
    """Return the results on each split that has any; "test" first, then by name."""
    names = {split for run in runs for split in run.evaluations}
    splits = sorted(names, key=lambda name: (name != "test", name))
    return {split: rows for split in splits if (rows := results(runs, split))}


def results(runs: Sequence[RunFolder], split: str) -> list[Result]:
    """Return the results on one split: starting models that are not the result of a run, then the runs."""
    names = {str(run.about.get("name")) for run in runs}
    starts = [
        (run, scores[START])
        for run in runs
        if run.started_from not in (None, *names) and START in (scores := run.evaluations.get(split, {}))
    ]
    rows = [_result(f"{run.label}: {START}", None, start) for run, start in starts]
    # Runs that are compared usually start from the same model: show it once.
    if len({json.dumps(errors_of(start)[0].tolist()) for _, start in starts}) == 1:
        rows = [replace(rows[0], label=START)]
    target = common_target(runs)
    first: Evaluation | None = None
    for run in runs:
        scores = run.evaluations.get(split, {})
        if BEST in scores:
            # Random weights are no model to compare with.
            start = scores.get(START) if run.started_from else None
            rows.append(_result(run.label, run, scores[BEST], start, first, target))
            first = first or scores[BEST]
    return rows


def _result(
    label: str,
    run: RunFolder | None,
    evaluation: Evaluation,
    start: Evaluation | None = None,
    first: Evaluation | None = None,
    target: float | None = None,
) -> Result:
    (errors, lengths), characters = errors_of(evaluation)
    # Only evaluations of the same words of the same speakers are compared.
    before, other = (
        errors_of(model)[0][0] if model and words_of(model) == words_of(evaluation) else None
        for model in (start, first)
    )
    return Result(
        label=label,
        run=run,
        evaluation=evaluation,
        start=start,
        wer=rate_interval(errors, lengths),
        cer=rate_interval(*characters),
        change=None if before is None else relative_interval(errors, before),
        against_first=None if other is None else difference_interval(errors, other, lengths),
        rounds_to_best=best_round(run) if run else None,
        rounds_to_target=round_to_target(*_wer_curve(run), target) if run and target is not None else None,
    )


def errors_of(evaluation: Evaluation) -> tuple[Array, Array]:
    """Return (words, characters), each [2, speakers]: errors and lengths, speakers sorted by name."""
    tallies = [tally for _, tally in sorted(evaluation.speakers.items())]
    words = [(tally.words.total, tally.words.length) for tally in tallies]
    characters = [(tally.characters.total, tally.characters.length) for tally in tallies]
    return np.array(words, float).reshape(-1, 2).T, np.array(characters, float).reshape(-1, 2).T


def words_of(evaluation: Evaluation) -> dict[str, int]:
    return {name: scores.words.length for name, scores in evaluation.speakers.items()}


def _wer_curve(run: RunFolder) -> tuple[list[int], list[float]]:
    rounds, values = run.validation.get("wer", (np.empty(0), np.empty(0)))
    return [int(number) for number in rounds], values.tolist()


def best_round(run: RunFolder) -> int | None:
    """Return the round with the lowest validation WER."""
    return round_of_best(*_wer_curve(run))


def common_target(runs: Sequence[RunFolder]) -> float | None:
    """Return the lowest validation WER that every run reached which started from a model and improved it.

    If no run started from a model, all runs count.
    """
    followers = [run for run in runs if run.started_from] or runs
    curves = [values for run in followers if len(values := _wer_curve(run)[1]) > 1]
    return max((min(values) for values in curves if min(values) < values[0]), default=None)


@dataclass(frozen=True)
class SpeakerRow:
    """A test speaker: the WER of each model in the order of the columns, None if there is no score."""

    name: str
    num_words: int
    rates: Sequence[float | None]
    is_worst: bool


def speaker_rows(rows: Sequence[Result]) -> list[SpeakerRow]:
    """Return the speakers of a result table; order and worst decile are those of the last model."""
    last = word_rates(rows[-1].evaluation) if rows else {}
    worst = set(worst_decile(last))
    words: dict[str, int] = {}
    for row in rows:
        words.update(words_of(row.evaluation))

    def rates(name: str) -> list[float | None]:
        scores = [row.evaluation.speakers.get(name) for row in rows]
        return [tally.words.rate if tally else None for tally in scores]

    ordered = sorted(words, key=lambda name: (-last.get(name, -math.inf), name))
    return [SpeakerRow(name, words[name], rates(name), name in worst) for name in ordered]


def word_rates(evaluation: Evaluation) -> dict[str, float]:
    """Return speaker → WER, for speakers with reference words."""
    return {name: scores.words.rate for name, scores in evaluation.speakers.items() if scores.words.length}


def before_and_after(run: RunFolder, split: str) -> tuple[Evaluation, Evaluation] | None:
    """Return the scores of the model that a run started from and of its best one, if both were evaluated."""
    scores = run.evaluations.get(split, {})
    is_complete = run.started_from and START in scores and BEST in scores
    return (scores[START], scores[BEST]) if is_complete else None


@dataclass(frozen=True)
class WorstDecile:
    """The worst tenth of the speakers after training, with their pooled WER before and after."""

    label: str
    names: Sequence[str]
    before: float | None  # None if the run did not start from a model
    after: float
    median: float
    num_worse: int  # speakers with a higher WER than before, of all
    num_speakers: int


def worst_deciles(runs: Sequence[RunFolder], split: str) -> list[WorstDecile]:
    """Return the worst decile of each run that has scores."""
    rows = []
    for run in runs:
        best = run.evaluations.get(split, {}).get(BEST)
        if best is None or not (after := word_rates(best)):
            continue
        names = worst_decile(after)
        pair = before_and_after(run, split)
        before = word_rates(pair[0]) if pair else {}
        num_worse = sum(after[name] > before.get(name, math.inf) for name in after)
        median = float(np.median(list(after.values())))
        rates = (_pooled_rate(pair[0], names) if pair else None, _pooled_rate(best, names))
        rows.append(WorstDecile(run.label, names, *rates, median, num_worse, len(after)))
    return rows


def _pooled_rate(evaluation: Evaluation, names: Sequence[str]) -> float:
    tallies = (tally for name, tally in evaluation.speakers.items() if name in names)
    return sum((tally.words for tally in tallies), Errors()).rate


@dataclass(frozen=True)
class FailureRow:
    """A client left out of rounds for one reason."""

    run: str
    client: str
    reason: str
    rounds: Sequence[int]


def failures(runs: Sequence[RunFolder]) -> list[FailureRow]:
    """Return the failures, the most frequent first."""
    rounds_of: dict[tuple[str, str, str], list[int]] = {}
    for run in runs:
        for entry in run.trained:
            for client, reason in entry.get("failures", {}).items():
                rounds_of.setdefault((run.label, str(client), str(reason)), []).append(entry["round"])
    rows = [FailureRow(*key, rounds) for key, rounds in rounds_of.items()]
    return sorted(rows, key=lambda row: (-len(row.rounds), row.run, row.client, row.reason))


def relative_weights(run: RunFolder) -> tuple[list[str], Array]:
    """Return (clients, weights [clients, rounds]): 1 is an equal share of the round, NaN is no answer."""
    clients = sorted({name for entry in run.trained for name in entry.get("clients", {})})
    index = {name: row for row, name in enumerate(clients)}
    weights = np.full((len(clients), len(run.trained)), np.nan, dtype=np.float32)
    for column, entry in enumerate(run.trained):
        answers = entry.get("clients", {})
        for name, stats in answers.items():
            if stats.get("weight") is not None:
                weights[index[name], column] = stats["weight"] * len(answers)
    return clients, weights.astype(np.float64)


def has_equal_weights(run: RunFolder) -> bool:
    """Return whether all clients of a round had the same weight, to 1 %, in every round."""
    weights = relative_weights(run)[1]
    return not (np.abs(weights[np.isfinite(weights)] - 1) > 0.01).any()


def weights_by_kind(run: RunFolder) -> dict[str, tuple[Array, Array]]:
    """Return (rounds, mean weights over an equal share) of "clean" and "corrupted" clients.

    Rounds without an answer of the kind are left out. Empty if one kind has no client.
    """
    clients, weights = relative_weights(run)
    rounds = np.array([float(entry["round"]) for entry in run.trained])
    is_corrupted = np.array([name in run.corrupted for name in clients], dtype=bool)
    kinds = {}
    for kind, rows in (("clean", ~is_corrupted), ("corrupted", is_corrupted)):
        answered = np.isfinite(weights[rows]).any(axis=0)
        if not answered.any():
            return {}
        kinds[kind] = (rounds[answered], np.nanmean(weights[rows][:, answered], axis=0))
    return kinds


def flatten(value: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return a nested configuration as dotted keys.

    >>> flatten({"model": {"width": 144}, "seed": 1})
    {'model.width': '144', 'seed': '1'}
    """
    flat: dict[str, str] = {}
    for key, item in value.items():
        if isinstance(item, Mapping) and item:
            flat.update(flatten(item, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = item if isinstance(item, str) else json.dumps(item, ensure_ascii=False)
    return flat


def configuration(run: RunFolder) -> dict[str, Any]:
    """Return everything that determines a run, except its name and the machine."""
    keys = ("recipe", "seed", "started_from", "num_clients", "cohort_size", "rounds")
    return {**{key: run.about.get(key) for key in keys}, "config": run.about["config"]}


def differences(runs: Sequence[RunFolder]) -> list[tuple[str, list[str | None]]]:
    """Return (key, value in each run) for every key whose value is not the same in all runs."""
    settings = [flatten(configuration(run)) for run in runs]
    keys = dict.fromkeys(key for flat in settings for key in flat)
    rows = [(key.removeprefix("config."), [flat.get(key) for flat in settings]) for key in keys]
    return [(key, values) for key, values in rows if len(set(values)) > 1]
