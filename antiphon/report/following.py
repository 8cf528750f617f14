"""`antiphon report --follow`: a page that is written again while runs go on.

No server is needed. The page is one file. While runs are followed, it tells the browser to load it again; the
last page does not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from antiphon.records.files import replace_file
from antiphon.report.html import Following, render, render_waiting
from antiphon.report.run_folder import RunFolder, load_runs
from antiphon.report.run_progress import ExperimentFolder, is_finished, progress_of, waiting_runs

PAUSE = 2.0  # seconds between two looks at the files
REFRESH = 10  # seconds after which a browser loads the page again
FILES = ("run.json", "journal.jsonl", "clock.jsonl", "evaluation/*/*/scores.json")
Stamp = tuple[str, int, int]  # a file, the time of its last change, its size


def follow(
    paths: Sequence[Path],
    page: Path,
    num_examples: int,
    finish: Callable[[], Path],
    notify: Callable[[str], None],
    pause: float = PAUSE,
) -> None:
    """Write the page whenever runs change, until all have ended or Ctrl-C; then call `finish`.

    The folders of runs need not exist yet. `finish` writes the last page, if a run has begun.
    """
    at_start = {path: _experiment_stamps(path) for path in paths}
    made_folder = not page.parent.exists()
    page.parent.mkdir(parents=True, exist_ok=True)
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
            time.sleep(max(pause, 4 * (time.monotonic() - began)))
    except KeyboardInterrupt:
        notify("no longer following")
    if any(begun_folders(path) for path in paths):
        finish()
        return
    page.unlink(missing_ok=True)
    if made_folder:
        with suppress(OSError):  # it is not empty
            page.parent.rmdir()


def _write(paths: Sequence[Path], page: Path, num_examples: int) -> None:
    begun = [folder for path in paths for folder in begun_folders(path)]
    runs = load_runs(begun) if begun else []
    rows = [*(progress_of(run) for run in runs), *waiting_runs(paths, runs)]
    following = Following(REFRESH, time.strftime("%H:%M:%S"), rows)
    text = render(runs, num_examples, following) if runs else render_waiting(paths, following)
    replace_file(page, partial(Path.write_text, data=text, encoding="utf-8"))


def begun_folders(path: Path) -> list[Path]:
    """Return the run folders of an experiment that have begun; or the run folder itself, if it has."""
    if not (path / "experiment.json").is_file():
        return [path] if (path / "run.json").is_file() else []
    names = ExperimentFolder.load(path).rounds
    return [path / name for name in names if (path / name / "run.json").is_file()]


def _is_over(path: Path, at_start: list[Stamp]) -> bool:
    """Return whether all runs are finished, or the command that ran them has ended while we followed."""
    begun = begun_folders(path)
    is_experiment = (path / "experiment.json").is_file()
    num_runs = len(ExperimentFolder.load(path).rounds) if is_experiment else 1
    if begun and len(begun) == num_runs and all(is_finished(RunFolder.load(folder)) for folder in begun):
        return True
    owner = path if is_experiment else path.parent
    is_new = _experiment_stamps(path) != at_start
    return is_new and (owner / "experiment.json").is_file() and ExperimentFolder.load(owner).is_ended


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
