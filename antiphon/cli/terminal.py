"""Output for people: progress bars, tables, messages, errors.

What needs torch is imported where it is used: `antiphon --help` does not.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

if TYPE_CHECKING:
    from antiphon.experiment.settings import Run
    from antiphon.records.writer import Listener
    from antiphon.scoring.error_rate import Errors
    from antiphon.scoring.statistics import Interval

Result = TypeVar("Result")
console = Console()
errors = Console(stderr=True)


def say(text: str) -> None:
    """Print a line as it is: no markup, no colours, no line breaks."""
    console.print(text, soft_wrap=True, highlight=False, markup=False)


def say_results(model: Path, out: Path) -> None:
    """Print where a new model and its report are."""
    console.print(f"The model is in {model}   Report: {out / 'report.html'}")


def say_error(message: str) -> None:
    errors.print(f"[red]error:[/] {escape(message)}", soft_wrap=True, highlight=False)


def say_stopped(reason: str, command: str) -> None:
    """Print why a run ended early, and the command that continues it, on one line for copying."""
    errors.print(f"\n[yellow]Stopped: {escape(reason)}.[/] Finished rounds are saved.", soft_wrap=True)
    errors.print(f"Go on with: {escape(command)}", soft_wrap=True, highlight=False)


def say_interrupted(reason: str) -> None:
    """Print that a signal ended the command before it had anything to continue."""
    errors.print(f"\n[yellow]{reason.capitalize()}.[/]")


def say_lost(message: str, command: str) -> None:
    """Print that another process ended during a round, and the command that continues the run."""
    errors.print(f"\n[red]error:[/] {escape(message)} The last checkpoint is intact.", soft_wrap=True)
    errors.print(f"Go on with: {escape(command)}", soft_wrap=True, highlight=False)


def print_in_first_process() -> None:
    """Print nothing in this process if it is not the first of several that share a run."""
    from antiphon.pools.rendezvous import find_rank

    process = find_rank(os.environ)
    console.quiet = errors.quiet = process is not None and process.rank > 0


class Terminal:
    """The progress of a workflow as bars: one for each stage, and one for each run with its figures.

    A bar appears with the first step of its stage; nothing is printed before the first bar.
    """

    def __init__(self) -> None:
        self.progress = Progress(
            TextColumn("[bold]{task.description:<18}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
            TextColumn("{task.fields[note]}"),
            console=console,
        )
        self._stages: dict[str, TaskID] = {}

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *error: object) -> None:
        if self.progress.live.is_started:
            self.progress.stop()

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        self.progress.start()
        if stage not in self._stages:
            self._stages[stage] = self.progress.add_task(stage, total=total, note="")
        self.progress.update(self._stages[stage], completed=done, total=total)

    def run(self, name: str, run: Run, num_clients: int) -> Listener:
        from antiphon.cli.run_bar import RunBar

        self.progress.start()
        self._make_room()
        return RunBar(self.progress, name, run.rounds.total)

    def _make_room(self) -> None:
        """Hide the oldest bars of finished runs when the window is full, so that the last bar is visible."""
        visible = [task for task in self.progress.tasks if task.visible]
        full = len(visible) - (console.height - 3) + 1
        for task in [task for task in visible if task.finished][: max(0, full)]:
            self.progress.update(task.id, visible=False)


def with_bars(function: Callable[..., Result], **options: Any) -> Result:
    """Call a function of antiphon: show its progress, print its messages, compute features on all cores."""
    num_cores, accepted = os.cpu_count() or 1, inspect.signature(function).parameters
    with Terminal() as progress:
        own = {"progress": progress, "notify": say, "feature_processes": num_cores, "processes": num_cores}
        return function(**options, **{name: value for name, value in own.items() if name in accepted})


def number_table(title: str, label: str, *columns: str) -> Table:
    """Return an empty table: a column of labels, and columns of numbers aligned to the right."""
    table = Table(title=title, box=SIMPLE_HEAD, pad_edge=False)
    table.add_column(label, no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def score_table(scores: Mapping[str, Mapping[str, Any]]) -> Table:
    """Return the error rates of runs, with 95 % intervals over speakers."""
    from antiphon.report.run_folder import Evaluation
    from antiphon.report.tables import errors_of
    from antiphon.scoring.statistics import rate_interval

    splits = ", ".join(dict.fromkeys(str(score["split"]) for score in scores.values()))
    title = f"Speakers of {splits}: error rates with 95 % intervals over speakers"
    table = number_table(title, "run", "WER %", "S/D/I", "CER %", "round")
    for name, score in scores.items():
        evaluation = Evaluation.of(score)
        wer, cer = (percent(rate_interval(*unit), digits=1) or "–" for unit in errors_of(evaluation))
        table.add_row(name, wer, error_kinds(evaluation.overall.words), cer, str(score["round"]))
    return table


def error_kinds(errors: Errors) -> str:
    """Return the numbers of substitutions, deletions and insertions.

    >>> from antiphon.scoring.error_rate import Errors
    >>> error_kinds(Errors(3, 2, 1, length=10))
    '3/2/1'
    """
    return f"{errors.substitutions}/{errors.deletions}/{errors.insertions}"


def percent(interval: Interval | None, digits: int = 2) -> str:
    """Return a rate in percent with its interval; an empty text if there is none.

    >>> from antiphon.scoring.statistics import Interval
    >>> percent(Interval(0.12, 0.1, 0.14))
    '12.00 [10.00, 14.00]'
    """
    from antiphon.report import formatting

    if interval is None:
        return ""
    return f"{formatting.percent(interval.estimate, digits)} {formatting.bounds(interval, digits)}"
