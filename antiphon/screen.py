"""What a person sees while a run goes on: bars, a table, errors in words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from antiphon.engine import Listener
from antiphon.recipes.experiment import Run
from antiphon.report.statistics import rate_interval

console = Console()
errors = Console(stderr=True)


def say_error(message: str) -> None:
    errors.print(f"[red]error:[/] {escape(message)}", soft_wrap=True, highlight=False)


def say_stopped(reason: str, command: str) -> None:
    """Why a run ended early, and how to go on; the command on one line, to be copied."""
    errors.print(f"\n[yellow]Stopped: {escape(reason)}.[/] What was finished is saved.", soft_wrap=True)
    errors.print(f"Go on with: {escape(command)}", soft_wrap=True, highlight=False)


def say_lost(message: str, command: str) -> None:
    """A process is gone, and the round in hand with it."""
    errors.print(f"\n[red]error:[/] {escape(message)} The last checkpoint is whole.", soft_wrap=True)
    errors.print(f"Go on with: {escape(command)}", soft_wrap=True, highlight=False)


def be_silent(silent: bool) -> None:
    """Nothing on the screen: another process of the run is heard."""
    console.quiet = errors.quiet = silent


def _bars() -> Progress:
    return Progress(
        TextColumn("[bold]{task.description:<18}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeRemainingColumn(compact=True, elapsed_when_finished=True),
        TextColumn("{task.fields[note]}"),
        console=console,
    )


def _late_bar(progress: Progress, description: str) -> Callable[[int, int | None], None]:
    """A bar that appears with the first step: called with (done, total)."""
    tasks: list[TaskID] = []

    def show(done: int, total: int | None) -> None:
        if not tasks:
            tasks.append(progress.add_task(description, total=total, note=""))
        progress.update(tasks[0], completed=done, total=total)

    return show


@contextmanager
def bar(description: str) -> Iterator[Callable[[int, int | None], None]]:
    """A progress bar that is there only if something is to be done: call it with (done, total)."""
    with _bars() as progress:
        yield _late_bar(progress, description)


class RunBar:
    """One line a run: rounds done, loss, WER on the validation speakers, who is answering."""

    def __init__(self, progress: Progress, name: str, total: int) -> None:
        self.progress, self.task = progress, progress.add_task(name, total=total, note="")
        self.figures = self.valid = ""
        self.answered = 0

    def resumed(self, round: int) -> None:
        self.progress.update(self.task, completed=round, note=f"resumed after round {round}")

    def replied(self, client: str) -> None:
        self.answered += 1
        self._show(f"[dim]{self.answered} answered[/]")

    def finished(self, entry: Mapping[str, Any], clock: Mapping[str, Any]) -> None:
        self.answered = 0
        if "loss" in entry:
            self.figures = f"loss {entry['loss']:.3f}"
        if "valid" in entry:
            self.valid = f"valid WER {100 * entry['valid']['wer']:.1f} %"
        for client, reason in entry.get("failures", {}).items():
            left_out = f"round {entry['round']}: left out {client}: {reason}"
            self.progress.console.print(f"  [yellow]{escape(left_out)}[/]")
        self.progress.update(self.task, completed=entry["round"])
        self._show("")

    def _show(self, note: str) -> None:
        self.progress.update(self.task, note="  ".join(filter(None, (self.figures, self.valid, note))))


class Terminal:
    """The screen of an experiment in a terminal."""

    def __init__(self) -> None:
        self.progress = _bars()
        self._features = _late_bar(self.progress, "features")

    def __enter__(self) -> Terminal:
        self.progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.progress.stop()

    def features(self, done: int, total: int) -> None:
        self._features(done, total)

    def run(self, name: str, run: Run, num_clients: int) -> Listener:
        self._make_room()
        return RunBar(self.progress, name, run.rounds.total)

    def _make_room(self) -> None:
        """The oldest bars of finished runs go when the window is full: the last must be seen."""
        visible = [task for task in self.progress.tasks if task.visible]
        full = len(visible) - (console.height - 3) + 1
        for task in [task for task in visible if task.finished][: max(0, full)]:
            self.progress.update(task.id, visible=False)


def listing(entries: Mapping[str, str]) -> Table:
    """Names and what they are."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, style="bold")
    for name, text in entries.items():
        table.add_row(name, text)
    return table


def score_table(scores: Mapping[str, Mapping[str, Any]]) -> Table:
    """Runs against their error rates, with 95 % intervals over speakers."""
    splits = ", ".join(dict.fromkeys(str(score["split"]) for score in scores.values()))
    table = Table(
        title=f"Speakers of {splits}: error rates with 95 % intervals over speakers", box=SIMPLE_HEAD
    )
    table.add_column("run", no_wrap=True)
    for column in ("WER %", "S/D/I", "CER %", "round"):
        table.add_column(column, justify="right", no_wrap=True)
    for name, score in scores.items():
        kinds = (str(score["words"][kind]) for kind in ("substitutions", "deletions", "insertions"))
        wer, cer = _rate(score, "words"), _rate(score, "characters")
        table.add_row(name, wer, "/".join(kinds), cer, str(score["round"]))
    return table


def _rate(score: Mapping[str, Any], unit: str) -> str:
    rows = [speaker[unit] for speaker in score["speakers"].values()]
    wrong = [row["substitutions"] + row["deletions"] + row["insertions"] for row in rows]
    interval = rate_interval(np.array(wrong), np.array([row["length"] for row in rows]))
    if interval is None:
        return "–"
    return f"{100 * interval.estimate:.1f} [{100 * interval.low:.1f}, {100 * interval.high:.1f}]"
