"""`antiphon demo`, `run`, `recipes` and `report`: run experiments, show them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from rich.table import Table

import antiphon
from antiphon import config
from antiphon.cli import terminal
from antiphon.cli.options import options_of
from antiphon.report import figures_file, report

Recipe = Annotated[
    str, typer.Argument(help="The name of a recipe, or a YAML file with its name and other settings.")
]


@options_of(antiphon.run)
def run_command(*, recipe: Recipe, **options: Any) -> None:
    """Run a recipe on a corpus: train, validate, score on the test speakers, write a report."""
    terminal.print_in_first_process()
    _print_scores(terminal.with_bars(antiphon.run, recipe=recipe, **options), options["out"])


@options_of(antiphon.demo)
def demo_command(**options: Any) -> None:
    """Synthesise a small corpus, train a seed model, and train it further by three federated algorithms."""
    _print_scores(terminal.with_bars(antiphon.demo, **options), options["out"] / "runs")


def recipes_command(
    name: Annotated[str, typer.Argument(help="A recipe whose settings are shown as YAML.")] = "",
) -> None:
    """List the recipes, or show all settings of one."""
    if name:
        settings = config.to_dict(antiphon.recipe(name))
        terminal.console.print(yaml.safe_dump(settings, sort_keys=False), end="")
        return
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, style="bold")
    for entry in antiphon.list_recipes().items():
        table.add_row(*entry)
    terminal.console.print(table)


@options_of(report, "runs")
def report_command(**options: Any) -> None:
    """Write a report on a run, or a comparison of several: one HTML page, and its figures as Markdown."""
    page = antiphon.report(**options, notify=terminal.say)
    written = f"wrote {page} and {figures_file(page)}"
    terminal.say(written if page.exists() else "no run has begun: there is no report")


def _print_scores(scores: Mapping[str, Mapping[str, Any]], out: Path) -> None:
    terminal.console.print(terminal.score_table(scores))
    terminal.console.print(f"Report: {out / 'report.html'}   Figures: {out / 'RESULTS.md'}")
