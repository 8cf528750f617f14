"""The top of the page: the best run, the result in a sentence, and cards with key figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

from antiphon.report import tables
from antiphon.report.formatting import duration, percent, size
from antiphon.report.run_folder import RunFolder
from antiphon.scoring.statistics import difference_interval, plural, signed

MAX_TIES = 3  # runs named in the headline; more are counted
Card = tuple[str, str, str]  # a key figure: name, value, detail


@dataclass(frozen=True)
class Ranking:
    """The run with the lowest WER on a split, and the runs that may be as good.

    ties: the paired interval over speakers of their difference contains 0. unknown: there is no interval.
    """

    best: tables.Result
    ties: Sequence[tables.Result]
    unknown: Sequence[tables.Result]
    num_runs: int

    @property
    def labels(self) -> list[str]:
        """The runs that a table marks as the lowest; none if there is nothing to compare."""
        return [row.label for row in (self.best, *self.ties)] if self.num_runs > 1 else []


def ranking(rows: Sequence[tables.Result]) -> Ranking | None:
    """Rank the runs of a result table; None if no run has a score."""
    scored = sorted((row for row in rows if row.run), key=lambda row: row.evaluation.overall.words.rate)
    if not scored:
        return None
    best = scored[0]
    (errors, lengths), _ = tables.errors_of(best.evaluation)
    ties, unknown = [], []
    for row in scored[1:]:
        interval = None
        if tables.words_of(row.evaluation) == tables.words_of(best.evaluation):
            interval = difference_interval(tables.errors_of(row.evaluation)[0][0], errors, lengths)
        if interval is None:
            unknown.append(row)
        elif not interval.excludes_zero:
            ties.append(row)
    return Ranking(best, ties, unknown, len(scored))


def headline(runs: Sequence[RunFolder], split: str, rows: Sequence[tables.Result]) -> str:
    """Return the result in a sentence.

    A run is compared with the model that it started from, and never with random weights. It is called the
    lowest only if paired intervals over speakers tell it from all other runs.
    """
    rank = ranking(rows)
    if rank is None:
        return _without_scores(runs, split, rows)
    rate = _rate(rank.best)
    if rank.num_runs == 1:
        text = f"{rank.best.label} has a word error rate of {rate} on {split}"
        text = text if len(runs) > 1 else f"The word error rate on {split} is {rate}"
        return f"{text}.{_against_start(rank.best)}{_clients(rank.best)}"
    text = f"{rank.best.label} has the lowest word error rate on {split}, {rate}"
    if rank.ties:
        text = f"{rank.best.label} has a word error rate of {rate} on {split}, not distinguishable from "
        text += _names(rank.ties)
    if rank.unknown:
        text += f"; there is no paired interval to compare it with {_names(rank.unknown)}"
    return f"{text}.{_against_start(rank.best)}{_clients(rank.best)}"


def _clients(row: tables.Result) -> str:
    number = row.run.num_clients if row.run else 0
    return f" It learnt from {number:,} clients, which sent no speech." if number > 1 else ""


def _rate(row: tables.Result) -> str:
    return f"{percent(row.evaluation.overall.words.rate, 1)} %"


def _names(rows: Sequence[tables.Result]) -> str:
    """
    >>> _names([])
    '0 other runs'
    """
    if not 1 <= len(rows) <= MAX_TIES:
        return plural(len(rows), "other run")
    *first, last = (f"{row.label} ({_rate(row)})" for row in rows)
    return f"{', '.join(first)} and {last}" if first else last


def _against_start(row: tables.Result) -> str:
    change, start = row.change, row.run.started_from if row.run else None
    if change is None or start is None:
        return ""
    name = f"{PurePath(start).name}, the model it started from"
    if not change.excludes_zero:
        return f" It is not distinguishable from {name} (relative change {signed(change, 1)} %)."
    word = "fewer" if change.estimate < 0 else "more"
    low, high = (percent(end, 1) for end in sorted((abs(change.low), abs(change.high))))
    number = percent(abs(change.estimate), 1)
    return f" This is {number} % {word} errors than {name} (95 % interval {low} to {high})."


def _without_scores(runs: Sequence[RunFolder], split: str, rows: Sequence[tables.Result]) -> str:
    if rows:
        return f"The starting model has a word error rate of {_rate(rows[0])} on {split}."
    if any(run.trained for run in runs):
        return "No model has been evaluated yet; the curves show the training."
    return "No round has finished yet: this page shows the settings."


def cards(runs: Sequence[RunFolder], rows: Sequence[tables.Result]) -> list[Card]:
    """Return key figures: error rates of the best run, and the size of the run or the experiment."""
    rank = ranking(rows)
    best = rank.best if rank else rows[0] if rows else None
    of_rates = _rate_cards(best, len(runs) > 1) if best else []
    return [*of_rates, *(_run_cards(runs[0]) if len(runs) == 1 else _experiment_cards(runs))]


def _rate_cards(best: tables.Result, several: bool) -> list[Card]:
    made = []
    for unit, ends in (("words", best.wer), ("characters", best.cer)):
        name = f"{unit[:-1].capitalize()} error rate"
        after = f"{percent(getattr(best.evaluation.overall, unit).rate, 1)} %"
        before = f"{percent(getattr(best.start.overall, unit).rate, 1)} → " if best.start else ""
        interval = "one speaker"
        if ends:
            interval = f"95 % interval {percent(ends.low, 1)} to {percent(ends.high, 1)}"
        made.append((name, before + after, f"{best.label}; {interval}" if several else interval))
    return made


def _run_cards(run: RunFolder) -> list[Card]:
    is_finished = run.num_finished >= run.num_planned
    planned = "all finished" if is_finished else f"of {run.num_planned:,}: not finished"
    best = tables.best_round(run)
    made = [
        ("Rounds", f"{run.num_finished:,}", planned + (f", best {best}" if best is not None else "")),
        ("Clients", f"{run.num_clients:,}", f"{run.cohort_size:,} drawn each round"),
    ]
    if run.speech_seconds:
        made.append(("Speech", f"{run.speech_seconds / 3600:.3g} h", "of the clients that answered"))
    if run.total_seconds:
        made.append(("Time", duration(run.total_seconds), str(run.about.get("device") or "")))
    if run.total_bytes:
        made.append(("Traffic", size(run.total_bytes), "to clients and back"))
    return made


def _experiment_cards(runs: Sequence[RunFolder]) -> list[Card]:
    finished = sum(run.num_finished >= run.num_planned for run in runs)
    rounds, planned = sum(run.num_finished for run in runs), sum(run.num_planned for run in runs)
    made = [
        ("Runs", f"{len(runs)}", "all finished" if finished == len(runs) else f"{finished} finished"),
        ("Rounds", f"{rounds:,}", "of all runs" if rounds >= planned else f"of {planned:,} in all runs"),
    ]
    # A run on the server's data has one client: it says nothing about the pool.
    pools = {(run.num_clients, run.cohort_size) for run in runs if run.num_clients > 1}
    if len(pools) == 1:
        num_clients, cohort_size = next(iter(pools))
        made.append(("Clients", f"{num_clients:,}", f"{cohort_size:,} drawn each round"))
    elif pools:
        made.append(("Clients", f"up to {max(pools)[0]:,}", "the runs have different pools"))
    seconds = [run.total_seconds for run in runs if run.total_seconds]
    if seconds:
        made.append(("Time", duration(sum(seconds)), "of all rounds"))
    return made
