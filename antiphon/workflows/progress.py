"""How a workflow tells its caller what is going on: a progress function, and short messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from antiphon.engine import Listener, Silent
from antiphon.experiment.runner import Screen
from antiphon.experiment.settings import Run

# Called with the name of a stage, the steps that are done, and their number (None: not known yet).
Progress = Callable[[str, int, int | None], None]
# Called with a line of text as soon as there is something that the user should know.
Notify = Callable[[str], None]


def no_progress(stage: str, done: int, total: int | None) -> None:
    """Report nothing."""


def no_messages(text: str) -> None:
    """Report nothing."""


@runtime_checkable
class RunScreen(Screen, Protocol):
    """A progress object that can show a run in more detail than the number of its rounds."""


@dataclass
class _Rounds(Silent):
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


def screen_for(progress: Progress) -> Screen:
    """Return the screen of an experiment: `progress` itself where it is one, else a count of its steps."""
    return progress if isinstance(progress, RunScreen) else _Counts(progress)
