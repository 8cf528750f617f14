"""Arguments that workflows share: functions that report progress and messages, and paths."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from antiphon import config
from antiphon.experiment.runner import Progress, Screen
from antiphon.experiment.settings import Experiment, Run
from antiphon.records.listener import Listen, Listeners, RunInfo
from antiphon.records.writer import Listener

# Called with a line of text that the user should read.
Notify = Callable[[str], None]

Paths = str | Path | Sequence[str | Path]  # one path or several


def paths_of(paths: Paths) -> list[Path]:
    """Return one path or several as a list.

    >>> paths_of("books.txt")
    [PosixPath('books.txt')]
    """
    return [Path(paths)] if isinstance(paths, str | Path) else [Path(path) for path in paths]


Names = str | Sequence[str]  # one name, setting or step, or several


def names_of(names: Names) -> list[str]:
    """Return one name or several as a list.

    >>> names_of("seed=1")
    ['seed=1']
    """
    return [names] if isinstance(names, str) else list(names)


def no_progress(stage: str, done: int, total: int | None) -> None:
    """Report nothing."""


def no_messages(text: str) -> None:
    """Report nothing."""


@dataclass
class _Rounds(Listener):
    """A listener that reports the finished rounds of one run."""

    progress: Progress
    name: str
    total: int

    def resumed(self, round: int) -> None:
        self.progress(self.name, round, self.total)

    def finished(self, entry: Mapping[str, Any], clock: Mapping[str, Any]) -> None:
        self.progress(self.name, entry["round"], self.total)


@dataclass(frozen=True)
class _Counts:
    """A screen that reports features and rounds to a progress function."""

    progress: Progress

    def features(self, done: int, total: int) -> None:
        self.progress("features", done, total)

    def run(self, name: str, run: Run, num_clients: int) -> Listener:
        return _Rounds(self.progress, name, run.rounds.total)


@dataclass(frozen=True)
class _Listening:
    """A screen that also calls the listeners of a user."""

    screen: Screen
    listeners: Sequence[Listen]
    experiment: Experiment
    out: Path

    def features(self, done: int, total: int) -> None:
        self.screen.features(done, total)

    def run(self, name: str, run: Run, num_clients: int) -> Listener:
        info = RunInfo(
            name=name,
            recipe=self.experiment.recipe,
            seed=self.experiment.seed,
            num_rounds=run.rounds.total,
            num_clients=num_clients,
            folder=self.out / name,
            settings=config.to_dict(self.experiment)["runs"][name],
        )
        shown = self.screen.run(name, run, num_clients)
        return Listeners([shown, *(listen(info) for listen in self.listeners)])


def screen_for(progress: Progress) -> Screen:
    """Return `progress` if it can show runs in detail, else a screen that reports their rounds to it."""
    return progress if isinstance(progress, Screen) else _Counts(progress)


def listening_screen(
    progress: Progress, listeners: Sequence[Listen], experiment: Experiment, out: Path
) -> Screen:
    """Return a screen for `progress` and the listeners of a user."""
    screen = screen_for(progress)
    return _Listening(screen, listeners, experiment, out) if listeners else screen
