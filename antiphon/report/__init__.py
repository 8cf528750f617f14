"""What a run leaves behind for people: journal, TensorBoard files, transcripts, and the report.

This package can be called: `antiphon.report("out")` is the function `report` below.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

__all__ = ["report", "write_report"]


def report(runs: str | Path | Sequence[str | Path], out: str | Path | None = None) -> Path:
    """Write a report on a run, or a comparison of several: one HTML page, and RESULTS.md beside it.

    Args:
        runs: A run folder, the folder of an experiment (all its runs), or several of them.
        out: A file ending in .html, or a folder for report.html. By default report.html in the folder of
            `runs`, or in the current folder if there are several.

    Returns:
        The path of the page.

    Example:
        antiphon.report(["out/fedavg", "out/dga"], "comparison.html")
    """
    folders = [Path(runs)] if isinstance(runs, str | Path) else [Path(run) for run in runs]
    default = folders[0] if len(folders) == 1 else Path()
    return write_report(folders, Path(out) if out is not None else default / "report.html")


def write_report(runs: Sequence[Path], destination: Path) -> Path:
    """Writes the HTML page of one run, or of several compared, and RESULTS.md beside it.

    A path is a run folder or an experiment (all its runs). `destination` is a file ending in .html,
    or a folder for report.html. Returns the path of the page.
    """
    # matplotlib and Jinja2 take a second to import: only the report waits for them, not training.
    from antiphon.report.html import render
    from antiphon.report.results import results_markdown
    from antiphon.report.run_folder import load_runs

    if not runs:
        raise ValueError("a report needs at least one run folder")
    page = destination if destination.suffix == ".html" else destination / "report.html"
    loaded = load_runs(runs)
    page.parent.mkdir(parents=True, exist_ok=True)
    for path, text in ((page, render(loaded)), (page.parent / "RESULTS.md", results_markdown(loaded))):
        unfinished = path.with_name(path.name + ".part")
        unfinished.write_text(text, encoding="utf-8")
        os.replace(unfinished, path)
    return page


class _CallablePackage(ModuleType):
    """A package that is also the function of its name: importing it must not hide `antiphon.report`."""

    def __call__(self, runs: str | Path | Sequence[str | Path], out: str | Path | None = None) -> Path:
        return report(runs, out)


sys.modules[__name__].__class__ = _CallablePackage
