"""`antiphon report --follow`: a page that is written again while runs go on.

No server is needed. The page is one file. While runs are followed, it tells the browser to load it again; the
last page does not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from antiphon.records.files import make_folder, write_text
from antiphon.records.lock import Holder, holder_of, is_used
from antiphon.report.html import Following, render, render_waiting
from antiphon.report.run_folder import RunFolder, begun_folders, load_runs, planned_rounds
from antiphon.report.run_progress import experiment_of, is_finished, progress_of, waiting_runs

PAUSE = 2.0  # seconds between two looks at the files
REFRESH = 10  # seconds after which a browser loads the page again
FILES = ("run.json", "journal.jsonl", "clock.jsonl", "evaluation/*/*/scores.json")
Stamp = tuple[str, int, int]  # a file, the time of its last change, its size


@dataclass(frozen=True)
class _Start:
    """What was there when following began: the files of the experiment, and whether a command used it."""

    stamps: list[Stamp]
    is_used: bool


def follow_runs(
    paths: Sequence[Path], page: Path, num_examples: int, notify: Callable[[str], None]
) -> list[Path]:
    """Write the page whenever runs change, until all have ended or Ctrl-C; return the paths that have begun.

    The folders of runs need not exist yet. If none has begun, the page is removed.
    """
    at_start = {path: _Start(_experiment_stamps(path), is_used(experiment_of(path))) for path in paths}
    made_folder = not page.parent.exists()
    make_folder(page.parent)
    notify(f"Open {page} in a browser: it shows the runs while they go on. Ctrl-C ends this, not the runs.")
    try:
        seen: list[Stamp] | None = None
        while not all(_is_over(path, at_start[path]) for path in paths):
            stamps = [stamp for path in paths for stamp in _stamps(path)]
            began = time.monotonic()
            if stamps != seen:
                _write(paths, page, num_examples)
                seen = stamps
            # A page of many runs takes seconds to draw: leave the processor to the runs.
            time.sleep(max(PAUSE, 4 * (time.monotonic() - began)))
        for path in paths:
            if not _is_finished(path):
                notify(_stopped(path))
    except KeyboardInterrupt:
        notify("no longer following")
    begun = [path for path in paths if begun_folders(path)]
    if not begun:
        page.unlink(missing_ok=True)
    if not begun and made_folder:
        with suppress(OSError):  # it is not empty
            page.parent.rmdir()
    return begun


def _write(paths: Sequence[Path], page: Path, num_examples: int) -> None:
    begun = [folder for path in paths for folder in begun_folders(path)]
    runs = load_runs(begun) if begun else []
    rows = [*(progress_of(run) for run in runs), *waiting_runs(paths, runs)]
    following = Following(REFRESH, time.strftime("%H:%M:%S"), rows)
    text = render(runs, num_examples, following) if runs else render_waiting(paths, following)
    write_text(page, text, is_private=num_examples > 0)


def _is_over(path: Path, at_start: _Start) -> bool:
    """Return whether all runs are finished, or the command that ran them has ended.

    The lock of the folder tells: it is removed when a command ends, and names a dead process if one was
    killed. A folder that no command used at the start waits for one.
    """
    if _is_finished(path) or _killed(path):
        return True
    has_begun = at_start.is_used or _experiment_stamps(path) != at_start.stamps
    return has_begun and not is_used(experiment_of(path))


def _is_finished(path: Path) -> bool:
    """Return whether all runs of an experiment, or a run, are finished."""
    begun, num_runs = begun_folders(path), len(planned_rounds(path)) or 1
    return len(begun) == num_runs and all(is_finished(RunFolder.load(folder)) for folder in begun)


def _killed(path: Path) -> Holder | None:
    """Return the process that ran an experiment and has ended without removing its lock."""
    holder = holder_of(experiment_of(path))
    return holder if holder is not None and holder.has_ended else None


def _stopped(path: Path) -> str:
    """Say why an experiment that is not finished is no longer followed, and how it goes on."""
    holder = _killed(path)
    process = f"process {holder.pid}" if holder else "the command"
    command = f": {holder.command}" if holder else ""
    return (
        f"{path} is stopped: {process} has ended, and not all runs are finished. "
        f"To go on, repeat the command with --resume{command}"
    )


def _experiment_stamps(path: Path) -> list[Stamp]:
    return [
        _stamp(file) for file in (path / "experiment.json", path.parent / "experiment.json") if file.is_file()
    ]


def _stamps(path: Path) -> list[Stamp]:
    files = (
        file for folder in begun_folders(path) for pattern in FILES for file in sorted(folder.glob(pattern))
    )
    return [*_experiment_stamps(path), *map(_stamp, files)]


def _stamp(file: Path) -> Stamp:
    status = file.stat()
    return str(file), status.st_mtime_ns, status.st_size
