"""The tables of a report as data: RESULTS.md and the page print the same rows."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
    """One row of the result table: a model on a split. `run` is None for a model that runs began with."""

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


def splits_of(runs: Sequence[RunFolder]) -> list[str]:
    """Splits that were evaluated; "test" first, then by name."""
    names = {split for run in runs for split in run.evaluations}
    return sorted(names, key=lambda name: (name != "test", name))


def results(runs: Sequence[RunFolder], split: str) -> list[Result]:
    """The starting models that are no other run's best, then the best model of each run, on one split."""
    named = {str(run.about.get("name")) for run in runs}
    starts = [
        (run, found[START])
        for run in followers(runs)
        if START in (found := run.evaluations.get(split, {})) and run.about.get("started_from") not in named
    ]
    # Runs compared usually begin with the same model: say so once.
    same = len({json.dumps(_errors(start)[0].tolist()) for _, start in starts}) == 1
    rows = [
        _result(START if same else f"{run.label}: {START}", None, start)
        for run, start in (starts[:1] if same else starts)
    ]
    target = common_target(runs)
    first: Evaluation | None = None
    for run in runs:
        found = run.evaluations.get(split, {})
        if BEST in found:
            rows.append(_result(run.label, run, found[BEST], found.get(START), first, target))
            first = first or found[BEST]
    return rows


def _result(
    label: str,
    run: RunFolder | None,
    evaluation: Evaluation,
    start: Evaluation | None = None,
    first: Evaluation | None = None,
    target: float | None = None,
) -> Result:
    words, characters = _errors(evaluation)
    return Result(
        label=label,
        run=run,
        evaluation=evaluation,
        start=start,
        wer=rate_interval(*words),
        cer=rate_interval(*characters),
        change=relative_interval(words[0], _errors(start)[0][0]) if _comparable(evaluation, start) else None,
        against_first=difference_interval(words[0], _errors(first)[0][0], words[1])
        if _comparable(evaluation, first)
        else None,
        rounds_to_best=best_round(run) if run else None,
        rounds_to_target=round_to_target(*_wer_curve(run), target) if run and target is not None else None,
    )


def _errors(evaluation: Evaluation | None) -> tuple[Array, Array]:
    """(words, characters), each [2, speakers]: errors and lengths, speakers sorted by name."""
    assert evaluation is not None
    people = [evaluation.speakers[name] for name in sorted(evaluation.speakers)]
    words = [(person.words.total, person.words.length) for person in people]
    characters = [(person.characters.total, person.characters.length) for person in people]
    return np.array(words, float).reshape(-1, 2).T, np.array(characters, float).reshape(-1, 2).T


def _comparable(one: Evaluation, other: Evaluation | None) -> bool:
    """Whether both scored the same words of the same speakers."""
    return other is not None and _lengths(one) == _lengths(other)


def _lengths(evaluation: Evaluation) -> dict[str, int]:
    return {name: scores.words.length for name, scores in evaluation.speakers.items()}


def _wer_curve(run: RunFolder) -> tuple[list[int], list[float]]:
    rounds, values = run.validation.get("wer", (np.empty(0), np.empty(0)))
    return [int(number) for number in rounds], values.tolist()


def best_round(run: RunFolder) -> int | None:
    """The round with the lowest validation WER."""
    return round_of_best(*_wer_curve(run))


def followers(runs: Sequence[RunFolder]) -> Sequence[RunFolder]:
    """The runs that begin where another one ended; all of them if none does."""
    return [run for run in runs if run.about.get("started_from")] or runs


def common_target(runs: Sequence[RunFolder]) -> float | None:
    """The lowest validation WER reached by every run that began with another's model and improved on it."""
    curves = [values for run in followers(runs) if len(values := _wer_curve(run)[1]) > 1]
    return max((min(values) for values in curves if min(values) < values[0]), default=None)


@dataclass(frozen=True)
class Person:
    """A test speaker: the WER of each model in the order of the columns, None where it was not scored."""

    name: str
    num_words: int
    rates: Sequence[float | None]
    is_worst: bool


def people(rows: Sequence[Result]) -> list[Person]:
    """Speakers of a result table, worst of its last model first; a worst decile is that of the last model."""
    if not rows:
        return []
    last = word_rates(rows[-1].evaluation)
    worst = set(worst_decile(last))
    words: dict[str, int] = {}
    for row in rows:
        words.update(_lengths(row.evaluation))
    ordered = sorted(words, key=lambda name: (-last.get(name, -math.inf), name))
    return [
        Person(name, words[name], [_rate(row.evaluation, name) for row in rows], name in worst)
        for name in ordered
    ]


def _rate(evaluation: Evaluation, name: str) -> float | None:
    scores = evaluation.speakers.get(name)
    return None if scores is None else scores.words.rate


def word_rates(evaluation: Evaluation) -> dict[str, float]:
    """Speaker → WER, of those with reference words."""
    return {name: scores.words.rate for name, scores in evaluation.speakers.items() if scores.words.length}


def before_and_after(run: RunFolder, split: str) -> tuple[Evaluation, Evaluation] | None:
    """What the starting and the best model of a run scored, where both were evaluated."""
    found = run.evaluations.get(split, {})
    return (found[START], found[BEST]) if START in found and BEST in found else None


@dataclass(frozen=True)
class WorstDecile:
    """The worst tenth of the speakers after training, their pooled WER then and before, and the others."""

    label: str
    names: Sequence[str]
    before: float
    after: float
    median: float
    num_worse: int  # speakers with a higher WER than before, of all
    num_speakers: int


def worst_deciles(runs: Sequence[RunFolder], split: str) -> list[WorstDecile]:
    """One for each run that has a before and an after."""
    rows = []
    for run in runs:
        pair = before_and_after(run, split)
        if pair is None or not (after := word_rates(pair[1])):
            continue
        before, names = word_rates(pair[0]), worst_decile(after)
        pooled = [
            sum((tally.words for name, tally in evaluation.speakers.items() if name in names), Errors())
            for evaluation in pair
        ]
        num_worse = sum(after[name] > before.get(name, math.inf) for name in after)
        median = float(np.median(list(after.values())))
        rows.append(
            WorstDecile(run.label, names, pooled[0].rate, pooled[1].rate, median, num_worse, len(after))
        )
    return rows


@dataclass(frozen=True)
class FailureRow:
    """A client left out of rounds for one reason."""

    run: str
    client: str
    reason: str
    rounds: Sequence[int]


def failures(runs: Sequence[RunFolder]) -> list[FailureRow]:
    """Failures, the most frequent first."""
    found: dict[tuple[str, str, str], list[int]] = {}
    for run in runs:
        for entry in run.trained:
            for client, reason in entry.get("failures", {}).items():
                found.setdefault((run.label, str(client), str(reason)), []).append(entry["round"])
    rows = [FailureRow(*key, rounds) for key, rounds in found.items()]
    return sorted(rows, key=lambda row: (-len(row.rounds), row.run, row.client, row.reason))


def flatten(value: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """A nested configuration as dotted keys.

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
    """All that decided a run, but its name and the machine."""
    keys = ("recipe", "seed", "started_from", "num_clients", "cohort_size", "rounds")
    return {**{key: run.about.get(key) for key in keys}, "config": run.about["config"]}


def differences(runs: Sequence[RunFolder]) -> list[tuple[str, list[str | None]]]:
    """(key, value in each run) for every key of the configurations that is not the same in all."""
    flat = [flatten(configuration(run)) for run in runs]
    keys = dict.fromkeys(key for one in flat for key in one)
    rows = [(key.removeprefix("config."), [one.get(key) for one in flat]) for key in keys]
    return [(key, values) for key, values in rows if len(set(values)) > 1]
