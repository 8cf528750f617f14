"""`antiphon run`, `demo`, `recipes` and `report`: carry out experiments and show them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

import antiphon
from antiphon import config
from antiphon.cli import terminal
from antiphon.cli.options import Device, Out, Resume, Settings, num_cores
from antiphon.pools.rendezvous import find_rank

Recipe = Annotated[
    str, typer.Argument(help="The name of a recipe, or a YAML file with its name and other settings.")
]
Data = Annotated[Path, typer.Option(help="A corpus folder, made by `antiphon corpus import`.")]
SkipCorrupt = Annotated[bool, typer.Option(help="Skip a damaged checkpoint when resuming.")]
Workers = Annotated[int, typer.Option(min=1, help="Processes that share the clients of a round.")]
Ordered = Annotated[
    bool, typer.Option(help="Make several processes give the bits of one, for more traffic and memory.")
]
Only = Annotated[list[str], typer.Option(metavar="RUN", help="Carry out only this run. Repeatable.")]
Jobs = Annotated[int, typer.Option(min=1, help="Runs that are carried out at once, each in a process.")]
Page = Annotated[
    Path | None,
    typer.Option(help="The page to write, with RESULTS.md beside it; by default in the folder, or here."),
]


def run_command(
    recipe: Recipe,
    data: Data,
    out: Out,
    settings: Settings = [],
    resume: Resume = False,
    skip_corrupt: SkipCorrupt = False,
    device: Device = "auto",
    workers: Workers = 1,
    ordered: Ordered = False,
    only: Only = [],
    jobs: Jobs = 1,
) -> None:
    """Run a recipe on a corpus: train, validate, score on the test speakers, write a report."""
    process = find_rank(os.environ)
    terminal.be_silent(process is not None and process.rank > 0)
    with terminal.Terminal() as progress:
        scores = antiphon.run(
            recipe, data, out, settings=settings, only=only, resume=resume, skip_corrupt=skip_corrupt,
            device=device, num_processes=workers, ordered=ordered, jobs=jobs, feature_processes=num_cores(),
            progress=progress,
        )  # fmt: skip
    _print_scores(scores, out)


def demo_command(
    out: Out = Path("demo"),
    settings: Settings = [],
    resume: Resume = False,
    device: Device = "auto",
) -> None:
    """Synthesise a small corpus, train a seed model, and federate it over new speakers three ways."""
    with terminal.Terminal() as progress:
        scores = antiphon.demo(
            out, settings=settings, resume=resume, device=device, feature_processes=num_cores(),
            progress=progress,
        )  # fmt: skip
    _print_scores(scores, out / "runs")


def recipes_command(
    name: Annotated[str, typer.Argument(help="Show the settings of this recipe as YAML.")] = "",
) -> None:
    """List the recipes, or show all settings of one."""
    if name:
        settings = config.to_dict(antiphon.recipe(name))
        terminal.console.print(yaml.safe_dump(settings, sort_keys=False), end="")
    else:
        terminal.console.print(terminal.name_table(antiphon.list_recipes()))


def report_command(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or the folder of an experiment.")],
    out: Page = None,
) -> None:
    """Write a report on a run, or a comparison of several: one HTML page and RESULTS.md."""
    terminal.console.print(f"wrote {antiphon.report(runs, out)}")


def _print_scores(scores: Mapping[str, Mapping[str, Any]], out: Path) -> None:
    terminal.console.print(terminal.score_table(scores))
    terminal.console.print(f"Report: {out / 'report.html'}   Figures: {out / 'RESULTS.md'}")
