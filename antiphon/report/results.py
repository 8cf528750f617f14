"""RESULTS.md, or the .md file of a page with another name: the results of one or several runs."""

from __future__ import annotations

import json
from collections.abc import Sequence

from antiphon.report import tables
from antiphon.report.attention_summary import AttentionRow, attention_rows
from antiphon.report.examples import example_utterances
from antiphon.report.formatting import (
    MARK,
    NONE,
    bounds,
    duration,
    edits,
    energy,
    markdown_table,
    percent,
    plain,
    ranges,
    size,
)
from antiphon.report.privacy_statement import privacy_statement
from antiphon.report.run_folder import RunFolder
from antiphon.report.server_view import server_view
from antiphon.report.simulated_time import TimeRow, time_rows
from antiphon.scoring.statistics import NUM_RESAMPLES, plural, signed

MAX_FAILURES = 100


def results_markdown(runs: Sequence[RunFolder], num_examples: int = 0) -> str:
    """Return the text of the file, with example utterances of the first split if there should be any."""
    results = tables.all_results(runs)
    parts = [f"# Results: {', '.join(plain(run.label) for run in runs)}", _states(runs)]
    for split, rows in results.items():
        parts += [f"## Error rates on {plain(split)}", _result_table(runs, rows), _explain(rows)]
    if not results:
        parts.append("No evaluation yet: `antiphon evaluate RUN` makes one.")
    for split, rows in results.items():
        parts += [f"## Speakers of {plain(split)}", _worst(runs, split), _speaker_table(rows)]
        if attention := attention_rows(runs, split):
            parts += [f"## Attention on {plain(split)}", _attention_table(attention)]
    if num_examples and results:
        parts += ["## Example utterances", *_examples(next(iter(results.values())), num_examples)]
    if corrupted := [run for run in runs if run.corrupted]:
        parts += ["## Corrupted clients", _corrupted_table(corrupted)]
    if timed := time_rows(runs):
        parts += ["## Simulated time", _time_table(runs, timed)]
    parts += ["## Clients left out", _failure_table(runs)]
    parts += ["## What the server saw", *map(_server_view, runs)]
    if stated := [f"**{plain(run.label)}**: {text}" for run in runs if (text := privacy_statement(run))]:
        parts += ["## Differential privacy", *stated]
    parts += ["## What was run", _provenance(runs)]
    if len(runs) > 1:
        head = ["key", *(run.label for run in runs)]
        cells = ([key, *values] for key, values in tables.differences(runs))
        parts += ["### Where the configurations differ", markdown_table(head, *cells)]
    for run in runs:
        config = json.dumps(tables.configuration(run), indent=2, ensure_ascii=False)
        parts += [f"### Configuration of {plain(run.label)}", f"```json\n{config}\n```"]
    parts.append(f"{MARK}; `antiphon report` may replace this file.")
    return "\n\n".join(parts) + "\n"


def _states(runs: Sequence[RunFolder]) -> str:
    lines = []
    for run in runs:
        state = f"{run.num_finished:,} of {plural(run.num_planned, 'round')}"
        if run.num_finished < run.num_planned:
            state += " (not finished)"
        pool = f"{run.cohort_size:,} of {plural(run.num_clients, 'client')} a round"
        lines.append(f"- **{plain(run.label)}**: {state}, {pool}")
        lines += [f"  - note: {plain(note)}" for note in run.notes]
    return "\n".join(lines)


def _result_table(runs: Sequence[RunFolder], rows: Sequence[tables.Result]) -> str:
    head = ["run", "WER % [95 % CI]", "S / D / I", "words", "change from start, %", "CER % [95 % CI]",
            "rounds to best", "seconds", "bytes sent"]  # fmt: skip
    if several := len(runs) > 1:
        head += ["WER − first run, points", f"rounds to {percent(tables.common_target(runs), 1)} %"]
    cells = []
    for row in rows:
        words, characters = row.evaluation.overall.words, row.evaluation.overall.characters
        seconds = row.run.total_seconds if row.run else None
        line = [
            row.label,
            f"{percent(words.rate)} {bounds(row.wer)}",
            edits(words),
            f"{words.length:,}",
            signed(row.change, 1),
            f"{percent(characters.rate)} {bounds(row.cer)}",
            row.rounds_to_best,
            None if seconds is None else f"{seconds:,.1f}",
            size(row.run.total_bytes) if row.run else None,
        ]
        cells.append(line + ([signed(row.against_first), row.rounds_to_target] if several else []))
    return markdown_table(head, *cells)


def _explain(rows: Sequence[tables.Result]) -> str:
    num_speakers = max((len(row.evaluation.speakers) for row in rows), default=0)
    return (
        f"Intervals: percentile bootstrap, {plural(num_speakers, 'speaker')} resampled "
        f"{NUM_RESAMPLES:,} times; changes and differences are paired by speaker. S / D / I: substitutions, "
        "deletions, insertions of words. Rounds to best and to a target are counted on validation WER. "
        "Bytes: to clients and back, all rounds."
    )


def _worst(runs: Sequence[RunFolder], split: str) -> str:
    lines = [
        f"- **{plain(row.label)}**: the worst decile ({plural(len(row.names), 'speaker')} of "
        f"{row.num_speakers:,}) {_change(row)}"
        for row in tables.worst_deciles(runs, split)
    ]
    return "\n".join(lines) or "No run has been evaluated yet."


def _change(row: tables.WorstDecile) -> str:
    after = f"{percent(row.after)} %; median speaker {percent(row.median)} %"
    if row.before is None:
        return f"is at {after}"
    worse = f"{plural(row.num_worse, 'speaker')} got worse"
    return f"went from {percent(row.before)} % to {after}; {worse}"


def _examples(rows: Sequence[tables.Result], number: int) -> list[str]:
    return [
        markdown_table(
            [f"{example.speaker}, {example.utterance}", "text"],
            ["reference", example.reference],
            *([name, text or NONE] for name, text in example.texts),
        )
        for example in example_utterances(rows, number)
    ]


def _speaker_table(rows: Sequence[tables.Result]) -> str:
    head = ["speaker", "words", *(f"{row.label}, WER %" for row in rows)]
    cells = (
        [row.name + " *" * row.is_worst, f"{row.num_words:,}", *map(percent, row.rates)]
        for row in tables.speaker_rows(rows)
    )
    return (
        markdown_table(head, *cells) + f"\n\n\\* the worst decile of {plain(rows[-1].label if rows else '')}"
    )


def _attention_table(rows: Sequence[AttentionRow]) -> str:
    head = ["run", "utterances", "monotonic before, %", "after, %", "span before, %", "after, %"]
    cells = []
    for row in rows:
        monotonic, span = (row.before.monotonic, row.before.span) if row.before else (None, None)
        shares = (monotonic, row.after.monotonic, span, row.after.span)
        cells.append([row.label, row.after.num_utterances, *(percent(share, 1) for share in shares)])
    return markdown_table(head, *cells)


def _corrupted_table(runs: Sequence[RunFolder]) -> str:
    head = ["run", "corrupted clients", "mean weight of clean ones", "of corrupted ones"]
    cells = []
    for run in runs:
        means = {kind: f"{values.mean():.3f}" for kind, (_, values) in tables.weights_by_kind(run).items()}
        weights = [means.get(kind) for kind in ("clean", "corrupted")]
        cells.append([run.label, f"{len(run.corrupted)} of {run.num_clients}", *weights])
    return (
        markdown_table(head, *cells) + "\n\nWeights over an equal share of the round, as means over rounds."
    )


def _time_table(runs: Sequence[RunFolder], rows: Sequence[TimeRow]) -> str:
    target = percent(tables.common_target(runs), 1)
    head = ["run", "rounds", "simulated time", "median round", "late answers", "time to best"]
    head += [f"time to {target} %", f"bytes to {target} %", f"energy to {target} %"]
    cells = (
        [
            row.label,
            row.num_rounds,
            duration(row.seconds),
            duration(row.median_round),
            f"{row.num_late:,}",
            duration(row.seconds_to_best),
            duration(row.seconds_to_target),
            size(row.bytes_to_target),
            energy(row.joules_to_target),
        ]
        for row in rows
    )
    return (
        markdown_table(head, *cells)
        + "\n\nTime and energy of simulated clients, until a validation WER was reached that "
        "all runs reached."
    )


def _failure_table(runs: Sequence[RunFolder]) -> str:
    rows = tables.failures(runs)
    if not rows:
        return "None."
    shown = rows[:MAX_FAILURES]
    cells = ([row.run, row.client, len(row.rounds), ranges(row.rounds), row.reason] for row in shown)
    table = markdown_table(["run", "client", "times", "rounds", "reason"], *cells)
    more = len(rows) - MAX_FAILURES
    return table + (f"\n\nand {more:,} more in journal.jsonl" if more > 0 else "")


def _server_view(run: RunFolder) -> str:
    return "\n".join([f"**{plain(run.label)}**", "", *(f"- {line}" for line in server_view(run))])


def _provenance(runs: Sequence[RunFolder]) -> str:
    head = ["run", "recipe", "seed", "commit", "device", "started from", "parameters", "versions"]
    cells = []
    for run in runs:
        about = [run.about.get(key) for key in ("recipe", "seed", "commit", "device", "started_from")]
        parameters = run.about.get("num_parameters")
        versions = ", ".join(f"{name} {value}" for name, value in run.about.get("versions", {}).items())
        cells.append([run.label, *about, f"{parameters:,}" if parameters else None, versions])
    return markdown_table(head, *cells)
