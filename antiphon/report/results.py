"""RESULTS.md: the figures of one or several runs in Markdown, ready for a repository or a review."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from antiphon.decoding.error_rate import Errors
from antiphon.report import tables
from antiphon.report.attention import Row, attention_rows
from antiphon.report.formatting import NONE, bounds, percent, plural, ranges, signed, size
from antiphon.report.run import RunFolder
from antiphon.report.statistics import NUM_RESAMPLES
from antiphon.report.weights import weights_by_kind

MAX_FAILURES = 100


def results_markdown(runs: Sequence[RunFolder]) -> str:
    """The whole file."""
    results = {split: tables.results(runs, split) for split in tables.splits_of(runs)}
    parts = [f"# Results: {', '.join(_plain(run.label) for run in runs)}", _states(runs)]
    for split, rows in results.items():
        parts += [f"## Error rates on {_plain(split)}", _result_table(runs, rows), _explain(rows)]
    if not results:
        parts.append("No evaluation yet: `antiphon evaluate RUN` makes one.")
    for split, rows in results.items():
        parts += [f"## Speakers of {_plain(split)}", _worst(runs, split), _speaker_table(rows)]
        attention = attention_rows(runs, split)
        if attention:
            parts += [f"## Attention on {_plain(split)}", _attention_table(attention)]
    corrupted = [run for run in runs if run.corrupted]
    if corrupted:
        parts += ["## Corrupted clients", _corrupted_table(corrupted)]
    parts += ["## Clients left out", _failure_table(runs), "## What was run", _provenance(runs)]
    if len(runs) > 1:
        cells = [[key, *(_or_none(value) for value in values)] for key, values in tables.differences(runs)]
        parts += ["### Where the configurations differ", _table(["key", *(run.label for run in runs)], cells)]
    for run in runs:
        config = json.dumps(tables.configuration(run), indent=2, ensure_ascii=False)
        parts += [f"### Configuration of {_plain(run.label)}", f"```json\n{config}\n```"]
    return "\n\n".join(parts) + "\n"


def _states(runs: Sequence[RunFolder]) -> str:
    lines = []
    for run in runs:
        state = f"{run.num_finished:,} of {plural(run.num_planned, 'round')}"
        if run.num_finished < run.num_planned:
            state += " (not finished)"
        pool = f"{run.cohort_size:,} of {plural(run.num_clients, 'client')} a round"
        lines.append(f"- **{_plain(run.label)}**: {state}, {pool}")
        lines += [f"  - note: {_plain(note)}" for note in run.notes]
    return "\n".join(lines)


def _result_table(runs: Sequence[RunFolder], rows: Sequence[tables.Result]) -> str:
    several = len(runs) > 1
    head = ["run", "WER % [95 % CI]", "S / D / I", "words", "change from start, %", "CER % [95 % CI]",
            "rounds to best", "seconds", "bytes sent"]  # fmt: skip
    extra = (
        ["WER − first run, points", f"rounds to {percent(tables.common_target(runs), 1)} %"]
        if several
        else []
    )
    cells = []
    for row in rows:
        words, characters = row.evaluation.overall.words, row.evaluation.overall.characters
        line = [
            row.label,
            f"{percent(words.rate)} {bounds(row.wer)}",
            _edits(words),
            f"{words.length:,}",
            signed(row.change, 1),
            f"{percent(characters.rate)} {bounds(row.cer)}",
            _or_none(row.rounds_to_best),
            _seconds(row.run) if row.run else NONE,
            size(row.run.total_bytes) if row.run else NONE,
        ]
        cells.append(line + ([signed(row.against_first), _or_none(row.rounds_to_target)] if several else []))
    return _table(head + extra, cells)


def _seconds(run: RunFolder) -> str:
    return NONE if run.total_seconds is None else f"{run.total_seconds:,.1f}"


def _edits(counts: Errors) -> str:
    return f"{counts.substitutions:,} / {counts.deletions:,} / {counts.insertions:,}"


def _explain(rows: Sequence[tables.Result]) -> str:
    num_speakers = max((len(row.evaluation.speakers) for row in rows), default=0)
    return (
        f"Intervals: percentile bootstrap, {plural(num_speakers, 'speaker')} resampled "
        f"{NUM_RESAMPLES:,} times; changes and differences are paired by speaker. S / D / I: substitutions, "
        "deletions, insertions of words. Rounds to best and to a target are counted on validation WER. "
        "Bytes: to clients and back, all rounds."
    )


def _worst(runs: Sequence[RunFolder], split: str) -> str:
    lines = []
    for row in tables.worst_deciles(runs, split):
        number = f"{plural(len(row.names), 'speaker')} of {row.num_speakers:,}"
        lines.append(
            f"- **{_plain(row.label)}**: the worst decile ({number}) went from {percent(row.before)} % to "
            f"{percent(row.after)} %; median speaker {percent(row.median)} %; "
            f"{plural(row.num_worse, 'speaker')} got worse"
        )
    return "\n".join(lines) or "Before and after: not both evaluated."


def _speaker_table(rows: Sequence[tables.Result]) -> str:
    people = tables.people(rows)
    head = ["speaker", "words", *(f"{row.label}, WER %" for row in rows)]
    cells = [
        [
            f"{person.name} *" if person.is_worst else person.name,
            f"{person.num_words:,}",
            *map(percent, person.rates),
        ]
        for person in people
    ]
    last = rows[-1].label if rows else ""
    return _table(head, cells) + f"\n\n\\* the worst decile of {_plain(last)}"


def _attention_table(rows: Sequence[Row]) -> str:
    head = ["run", "utterances", "monotonic before, %", "after, %", "span before, %", "after, %"]
    cells = [
        [
            row.label,
            str(row.after.num_utterances),
            percent(row.before.monotonic, 1) if row.before else NONE,
            percent(row.after.monotonic, 1),
            percent(row.before.span, 1) if row.before else NONE,
            percent(row.after.span, 1),
        ]
        for row in rows
    ]
    return _table(head, cells)


def _corrupted_table(runs: Sequence[RunFolder]) -> str:
    cells = []
    for run in runs:
        means = {kind: f"{values.mean():.3f}" for kind, (_, values) in weights_by_kind(run).items()}
        weights = [means.get(kind, NONE) for kind in ("clean", "corrupted")]
        cells.append([run.label, f"{len(run.corrupted)} of {run.num_clients}", *weights])
    head = ["run", "corrupted clients", "mean weight of clean ones", "of corrupted ones"]
    return _table(head, cells) + "\n\nWeights over an equal share of the round, as means over rounds."


def _failure_table(runs: Sequence[RunFolder]) -> str:
    rows = tables.failures(runs)
    if not rows:
        return "None."
    head = ["run", "client", "times", "rounds", "reason"]
    cells = [
        [row.run, row.client, str(len(row.rounds)), ranges(row.rounds), row.reason]
        for row in rows[:MAX_FAILURES]
    ]
    more = len(rows) - MAX_FAILURES
    return _table(head, cells) + (f"\n\nand {more:,} more in journal.jsonl" if more > 0 else "")


def _provenance(runs: Sequence[RunFolder]) -> str:
    rows = []
    for run in runs:
        versions = ", ".join(f"{name} {value}" for name, value in run.about.get("versions", {}).items())
        about = [
            _or_none(run.about.get(key)) for key in ("recipe", "seed", "commit", "device", "started_from")
        ]
        parameters = run.about.get("num_parameters")
        rows.append([run.label, *about, f"{parameters:,}" if parameters else NONE, versions])
    return _table(
        ["run", "recipe", "seed", "commit", "device", "started from", "parameters", "versions"], rows
    )


def _or_none(value: object) -> str:
    return NONE if value is None else str(value)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(_plain(cell) for cell in line) + " |" for line in lines)


def _plain(text: str) -> str:
    """Text from outside that cannot break a table or become markup."""
    for special in ("\\", "|", "`", "<", ">", "*", "]("):
        text = text.replace(special, "\\" + special)
    return " ".join(text.split())
