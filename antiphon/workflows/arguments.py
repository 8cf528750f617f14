"""Arguments that workflows share: functions that report progress and messages, and paths."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
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


def screen_for(progress: Progress, listeners: Sequence[Listen], experiment: Experiment, out: Path) -> Screen:
    """Return a screen for `progress` and the listeners of a user.

    If `progress` has a method `run`, that shows runs in detail; else their rounds are reported to it.
    """

    def listen_to(name: str, run: Run, num_clients: int) -> Listener:
        show = getattr(progress, "run", None)
        shown = show(name, run, num_clients) if show else _Rounds(progress, name, run.rounds.total)
        if not listeners:
            return shown
        info = RunInfo(
            name=name,
            recipe=experiment.recipe,
            seed=experiment.seed,
            num_rounds=run.rounds.total,
            num_clients=num_clients,
            folder=out / name,
            settings=config.to_dict(experiment)["runs"][name],
        )
        return Listeners([shown, *(listen(info) for listen in listeners)])

    return Screen(partial(progress, "features"), listen_to)
