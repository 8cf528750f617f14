"""The report as one HTML page that opens offline: tables, inline SVG, no other file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import yaml
from markupsafe import Markup

from antiphon.report import figures, plots, speaker_plots, tables
from antiphon.report.attention_summary import attention_rows
from antiphon.report.drawing import Look, look
from antiphon.report.examples import example_utterances
from antiphon.report.figures import Figure
from antiphon.report.formatting import NONE, bounds, duration, edits, energy, percent, ranges, size
from antiphon.report.headline import cards, headline, ranking
from antiphon.report.run_folder import RunFolder
from antiphon.report.run_progress import RunProgress, is_stopped
from antiphon.report.simulated_time import time_rows
from antiphon.scoring.statistics import NUM_RESAMPLES, expected_coverage, measured_coverage, plural, signed

MAX_FAILURES = 60
ATTENTION = (
    "One utterance of each of some speakers. Dark: much attention. Line: the centre of attention. "
    "Tokens are those that the model recognised, without their texts."
)


@dataclass(frozen=True)
class Following:
    """A page that is written again and again.

    refresh: the seconds after which a browser loads it again. updated: the time of day.
    """

    refresh: int
    updated: str
    rows: Sequence[RunProgress]


def render(runs: Sequence[RunFolder], num_examples: int = 0, following: Following | None = None) -> str:
    """Return the page for one run, or for several compared. It has no text of utterances but the examples."""
    context = _context(runs, num_examples)
    return _environment().get_template("template.html").render(**context, following=following)


def render_waiting(paths: Sequence[Path], following: Following) -> str:
    """Return a page that says that no run has begun."""
    return _environment().get_template("waiting.html").render(paths=paths, following=following)


@cache
def _environment() -> jinja2.Environment:
    """Return the environment of templates, which keeps them compiled."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("antiphon.report", "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    words = (percent, bounds, signed, edits, size, duration, energy, ranges, plural)
    environment.globals.update({"NONE": NONE, **{function.__name__: function for function in words}})
    return environment


def _context(runs: Sequence[RunFolder], num_examples: int) -> dict[str, Any]:
    results = tables.all_results(runs)
    splits = list(results)
    main = results[splits[0]] if splits else []
    ranks = {split: ranking(rows) for split, rows in results.items()}
    best = ranks[splits[0]] if splits else None
    shown = best.best.label if best else runs[-1].label
    trained = [run for run in runs if run.trained]
    federated = [run for run in trained if run.num_clients > 1]
    attention = attention_rows(runs, splits[0]) if splits else []
    updates, coverage = [], None
    if federated:
        norms = Figure(plots.update_norms(federated), "How far clients moved from the model they received.")
        equal = "100 %: all clients of a round have the same weight."
        updates = [Figure(plots.effective_clients(federated), equal), norms]
        coverage = Figure(plots.coverage(federated), "Expected after T rounds: 1 − (1 − N/K)^T.")
    return {
        "runs": runs,
        "stopped": [run.label for run in runs if is_stopped(run)],
        "several": len(runs) > 1,
        "shown": shown,  # the run whose details are open
        "shown_weights": _shown_weights(federated, shown),
        "title": ", ".join(run.label for run in runs[:4]) + (" …" if len(runs) > 4 else ""),
        "headline": headline(runs, splits[0] if splits else "", main),
        "cards": cards(runs, main),
        "swatches": {run.label: _swatch(look(run.position)) for run in runs},
        "lowest": {split: rank.labels if rank else [] for split, rank in ranks.items()},
        "splits": splits,
        "results": results,
        "target": tables.common_target(runs),
        "num_resamples": NUM_RESAMPLES,
        "comparison": figures.of_results(main) if len(runs) > 1 and main else [],
        "curves": figures.of_curves(runs),
        "curve_labels": [run.label for run in runs if run.trained or run.validation],
        "worst": tables.worst_deciles(runs, splits[0]) if splits else [],
        "speakers": [(run.label, figures.of_speakers(run, splits[0])) for run in runs] if splits else [],
        "speaker_rows": tables.speaker_rows(main),
        "attention_rows": attention,
        "attention": [
            (row.label, [Figure(speaker_plots.attention_maps(row.after.examples), ATTENTION, wide=True)])
            for row in attention
        ],
        "columns": [row.label for row in main],
        "examples": example_utterances(main, num_examples),
        "wants_examples": num_examples > 0,
        "weights": [(run.label, figures.of_weights(run)) for run in federated],
        "federated_labels": [run.label for run in federated],
        "updates": updates,
        "coverage": coverage,
        "coverage_rows": [(run, *_coverage(run)) for run in federated],
        "failures": tables.failures(runs),
        "max_failures": MAX_FAILURES,
        "num_failed": sum(len(entry.get("failures", {})) for run in runs for entry in run.trained),
        "num_asked": sum(len(entry.get("cohort", ())) for run in runs for entry in run.trained),
        "costs": figures.of_costs(trained) if trained else [],
        "trained": trained,
        "times": time_rows(trained),
        "differences": tables.differences(runs) if len(runs) > 1 else [],
        "commands": list(dict.fromkeys(_command(run) for run in runs)),
        "configurations": [(run.label, _as_yaml(tables.configuration(run))) for run in runs],
    }


def _shown_weights(runs: Sequence[RunFolder], shown: str) -> str:
    """Return the run whose weights are open: the best one, or another if all its weights are equal."""
    labels = [run.label for run in runs if not tables.has_equal_weights(run)]
    return shown if shown in labels else labels[-1] if labels else ""


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
    commit = run.about.get("commit") or ""
    changed = "  # the code also had changes that were not committed" if commit.endswith("+") else ""
    checkout = f"git checkout {commit.removesuffix('+')}{changed}\n" if commit else ""
    recipe, seed = run.about["recipe"], run.about["seed"]
    return f"{checkout}antiphon run {recipe} --data DATA --out OUT --set seed={seed}"


def _as_yaml(value: Any) -> str:
    plain = json.loads(json.dumps(value))  # without tuples and aliases, for which YAML has special marks
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=100)
