"""How far runs are: rounds done, the latest loss and validation WER, and the time left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from antiphon.records.lock import is_used
from antiphon.report.run_folder import Array, RunFolder, planned_rounds, series

RECENT = 10  # rounds whose mean time is expected of the others


@dataclass(frozen=True)
class RunProgress:
    """The progress of one run. A figure that is not known yet is None."""

    label: str
    num_finished: int
    num_planned: int
    loss: float | None = None
    wer: float | None = None
    seconds_left: float | None = None
    is_finished: bool = False
    is_stopped: bool = False  # it is not finished, and no command is running it


def experiment_of(path: Path) -> Path:
    """Return the folder that a command locks: that of the experiment, also if `path` is one of its runs."""
    is_run = not (path / "experiment.json").is_file()
    parent = path.absolute().parent
    return parent if is_run and (parent / "experiment.json").is_file() else path


def is_stopped(run: RunFolder) -> bool:
    """Return whether a run is not finished, and no command is running its experiment."""
    owner = experiment_of(run.path)
    return owner != run.path and run.num_finished < run.num_planned and not is_used(owner)


def progress_of(run: RunFolder) -> RunProgress:
    """Return the progress of a run that has begun. The time left is that of the rounds, without scoring."""
    seconds = series([entry for entry in run.clock if entry["round"] > 0], "seconds")[1][-RECENT:]
    num_left = max(0, run.num_planned - run.num_finished)
    return RunProgress(
        label=run.label,
        num_finished=run.num_finished,
        num_planned=run.num_planned,
        loss=_last(series(run.trained, "loss")[1]),
        wer=_last(run.validation["wer"][1]) if "wer" in run.validation else None,
        seconds_left=float(seconds.mean()) * num_left if len(seconds) else None,
        is_finished=is_finished(run),
        is_stopped=is_stopped(run),
    )


def waiting_runs(paths: Sequence[Path], begun: Sequence[RunFolder]) -> list[RunProgress]:
    """Return the runs of experiments that have not begun."""
    folders = {run.path for run in begun}
    return [
        RunProgress(folder.name, 0, total)
        for path in paths
        for folder, total in planned_rounds(path).items()
        if folder not in folders
    ]


def is_finished(run: RunFolder) -> bool:
    """Return whether all rounds of a run are done and its best model has scores."""
    has_scores = any("best" in scores for scores in run.evaluations.values())
    return run.num_finished >= run.num_planned and has_scores


def _last(values: Array) -> float | None:
    return float(values[-1]) if len(values) else None
