"""The report as one HTML page that opens offline: tables, inline SVG, no other file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import jinja2
import yaml
from markupsafe import Markup

from antiphon.report import figures, plots, speaker_plots, tables
from antiphon.report.attention_summary import attention_rows
from antiphon.report.drawing import Look, look
from antiphon.report.figures import Figure
from antiphon.report.formatting import NONE, bounds, duration, edits, percent, ranges, size
from antiphon.report.run_folder import RunFolder
from antiphon.scoring.statistics import NUM_RESAMPLES, expected_coverage, measured_coverage, plural, signed

MAX_FAILURES = 60
ATTENTION = (
    "One utterance of each of some speakers. Dark: much attention. Line: the centre of attention. "
    "Tokens are those that the model recognised, without their texts."
)
Card = tuple[str, str, str]  # a key figure: name, value, detail


def render(runs: Sequence[RunFolder]) -> str:
    """Return the page for one run, or for several compared."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("antiphon.report", "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    words = (percent, bounds, signed, edits, size, duration, ranges, plural)
    environment.globals.update({"NONE": NONE, **{function.__name__: function for function in words}})
    return environment.get_template("template.html").render(**_context(runs))


def _context(runs: Sequence[RunFolder]) -> dict[str, Any]:
    splits = tables.splits_of(runs)
    results = {split: tables.results(runs, split) for split in splits}
    main = results[splits[0]] if splits else []
    trained = [run for run in runs if run.trained]
    attention = attention_rows(runs, splits[0]) if splits else []
    updates, coverage = [], None
    if trained:
        norms = Figure(plots.update_norms(runs), "How far clients moved from the model they received.")
        equal = "100 %: all clients of a round have the same weight."
        updates = [Figure(plots.effective_clients(runs), equal), norms]
        coverage = Figure(plots.coverage(runs), "Expected after T rounds: 1 − (1 − N/K)^T.")
    return {
        "runs": runs,
        "several": len(runs) > 1,
        "shown": _best(main).label if main else runs[-1].label,  # the run whose details are open
        "title": ", ".join(run.label for run in runs[:4]) + (" …" if len(runs) > 4 else ""),
        "headline": _headline(splits[0], main) if main else _headline_without_scores(runs),
        "cards": _cards(runs, main),
        "swatches": {run.label: _swatch(look(index)) for index, run in enumerate(runs)},
        "splits": splits,
        "results": results,
        "target": tables.common_target(runs),
        "num_resamples": NUM_RESAMPLES,
        "comparison": figures.of_results(runs, main) if len(runs) > 1 and main else [],
        "curves": figures.of_curves(runs),
        "worst": tables.worst_deciles(runs, splits[0]) if splits else [],
        "speakers": [(run.label, figures.of_speakers(run, splits[0])) for run in runs] if splits else [],
        "speaker_rows": tables.speaker_rows(main),
        "attention_rows": attention,
        "attention": [
            (row.label, [Figure(speaker_plots.attention_maps(row.after.examples), ATTENTION, wide=True)])
            for row in attention
        ],
        "columns": [row.label for row in main],
        "weights": [(run.label, figures.of_weights(run)) for run in trained if run.num_clients > 1],
        "updates": updates,
        "coverage": coverage,
        "coverage_rows": [(run, *_coverage(run)) for run in trained if run.num_clients],
        "failures": tables.failures(runs),
        "max_failures": MAX_FAILURES,
        "num_failed": sum(len(entry.get("failures", {})) for run in runs for entry in run.trained),
        "num_asked": sum(len(entry.get("cohort", ())) for run in runs for entry in run.trained),
        "costs": figures.of_costs(runs) if trained else [],
        "trained": trained,
        "differences": tables.differences(runs) if len(runs) > 1 else [],
        "commands": list(dict.fromkeys(_command(run) for run in runs)),
        "configurations": [(run.label, _as_yaml(tables.configuration(run))) for run in runs],
    }


def _best(rows: Sequence[tables.Result]) -> tables.Result:
    """Return the run with the lowest word error rate; a starting model only if no run has a score."""
    scored = [row for row in rows if row.run is not None] or list(rows)
    return min(scored, key=lambda row: row.evaluation.overall.words.rate)


def _headline(split: str, rows: Sequence[tables.Result]) -> str:
    scored = [row for row in rows if row.run is not None]
    if not scored:
        rate = percent(rows[0].evaluation.overall.words.rate, 1)
        return f"The starting model has a word error rate of {rate} % on {split}."
    best = _best(rows)
    rate = f"{percent(best.evaluation.overall.words.rate, 1)} %"
    if len(scored) > 1:
        text = f"{best.label} has the lowest word error rate on {split}, {rate}"
    else:
        text = f"The word error rate on {split} is {rate}"
    change = best.change
    if change is None:
        return text + "."
    if not change.excludes_zero:
        return f"{text}, not significantly different from the start (relative change {signed(change, 1)} %)."
    word = "fewer" if change.estimate < 0 else "more"
    low, high = (percent(end, 1) for end in sorted((abs(change.low), abs(change.high))))
    number = percent(abs(change.estimate), 1)
    return f"{text}: {number} % {word} errors than at the start (95 % interval {low} to {high})."


def _headline_without_scores(runs: Sequence[RunFolder]) -> str:
    if any(run.trained for run in runs):
        return "No model has been evaluated yet; the curves show the training."
    return "No round has finished yet: this page shows the settings."


def _cards(runs: Sequence[RunFolder], rows: Sequence[tables.Result]) -> list[Card]:
    cards = []
    if rows:
        best = _best(rows)
        for unit, ends in (("words", best.wer), ("characters", best.cer)):
            name = f"{unit[:-1].capitalize()} error rate"
            after = f"{percent(getattr(best.evaluation.overall, unit).rate, 1)} %"
            before = f"{percent(getattr(best.start.overall, unit).rate, 1)} → " if best.start else ""
            interval = "one speaker"
            if ends:
                interval = f"95 % interval {percent(ends.low, 1)} to {percent(ends.high, 1)}"
            cards.append((name, before + after, interval if len(runs) == 1 else f"{best.label}; {interval}"))
    if len(runs) == 1:
        cards += _run_cards(runs[0])
    else:
        finished = sum(run.num_finished >= run.num_planned for run in runs)
        cards.append(("Runs", f"{len(runs)}", f"{finished} finished"))
        cards.append(("Rounds", _span([run.num_finished for run in runs]), "finished"))
        cards.append(("Clients", _span([run.num_clients for run in runs]), "in the pool"))
    return cards


def _run_cards(run: RunFolder) -> list[Card]:
    is_finished = run.num_finished >= run.num_planned
    planned = "all finished" if is_finished else f"of {run.num_planned:,}: not finished"
    best = tables.best_round(run)
    cards = [
        ("Rounds", f"{run.num_finished:,}", planned + (f", best {best}" if best is not None else "")),
        ("Clients", f"{run.num_clients:,}", f"{run.cohort_size:,} drawn each round"),
    ]
    if run.speech_seconds:
        cards.append(("Speech", f"{run.speech_seconds / 3600:.3g} h", "of the clients that answered"))
    if run.total_seconds:
        cards.append(("Time", duration(run.total_seconds), str(run.about.get("device") or "")))
    if run.total_bytes:
        cards.append(("Traffic", size(run.total_bytes), "to clients and back"))
    return cards


def _span(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low:,}" if low == high else f"{low:,}–{high:,}"


def _swatch(style: Look) -> Markup:
    dash = "" if isinstance(style.dash, str) else " ".join(str(3 * length) for length in style.dash[1])
    return Markup(
        '<svg class="swatch" viewBox="0 0 26 10" aria-hidden="true"><line x1="1" x2="25" y1="5" y2="5" '
        'stroke="{}" stroke-width="3.5" stroke-dasharray="{}"/></svg>'
    ).format(style.colour, dash)


def _coverage(run: RunFolder) -> tuple[float, float]:
    """Return the share of the pool drawn at least once: measured, and expected."""
    measured = measured_coverage((entry.get("cohort", ()) for entry in run.trained), run.num_clients)
    return float(measured[-1]), float(expected_coverage(run.cohort_size, run.num_clients, run.num_finished))


def _command(run: RunFolder) -> str:
    checkout = f"git checkout {run.about['commit']}\n" if run.about.get("commit") else ""
    recipe, seed = run.about["recipe"], run.about["seed"]
    return f"{checkout}antiphon run {recipe} --data DATA --out OUT --set seed={seed}"


def _as_yaml(value: Any) -> str:
    plain = json.loads(json.dumps(value))  # without tuples and aliases, for which YAML has special marks
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=100)
