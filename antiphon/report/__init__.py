"""The report: folders of runs become an HTML page and RESULTS.md.

This package can be called: `antiphon.report("out")` is the function `report` below.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import ModuleType

from antiphon.records.files import check_new_folder, replace_file

__all__ = ["report", "write_report"]


def report(
    runs: str | Path | Sequence[str | Path], out: str | Path | None = None, *, examples: int = 0
) -> Path:
    """Write a report on a run, or a comparison of several: one HTML page, and RESULTS.md beside it.

    Args:
        runs: A run folder, the folder of an experiment (all its runs), or several of them.
        out: A file ending in .html, or a folder for report.html. By default report.html in the folder of
            `runs`, or in the current folder if there are several.
        examples: The number of example utterances to show, with the texts that each model recognised. By
            default the report has no texts.

    Returns:
        The path of the page.

    Example:
        antiphon.report(["out/fedavg", "out/dga"], "comparison.html")
    """
    folders = [Path(runs)] if isinstance(runs, str | Path) else [Path(run) for run in runs]
    default = folders[0] if len(folders) == 1 else Path()
    return write_report(folders, Path(out) if out is not None else default / "report.html", examples)


def write_report(runs: Sequence[Path], destination: Path, num_examples: int = 0) -> Path:
    """Write a report as `report` does; `destination` is a file ending in .html or a folder."""
    # Imported here because matplotlib and Jinja2 take a second to import, and training does not need them.
    from antiphon.report.html import render
    from antiphon.report.results import results_markdown
    from antiphon.report.run_folder import load_runs

    if not runs:
        raise ValueError("a report needs at least one run folder")
    page = destination if destination.suffix == ".html" else destination / "report.html"
    check_new_folder(page.parent)
    loaded = load_runs(runs)
    page.parent.mkdir(parents=True, exist_ok=True)
    results = page.parent / "RESULTS.md"
    for path, text in (
        (page, render(loaded, num_examples)),
        (results, results_markdown(loaded, num_examples)),
    ):
        replace_file(path, partial(Path.write_text, data=text, encoding="utf-8"))
    return page


class _CallablePackage(ModuleType):
    """A package that can be called like its function: importing it must not hide `antiphon.report`."""

    def __call__(
        self, runs: str | Path | Sequence[str | Path], out: str | Path | None = None, *, examples: int = 0
    ) -> Path:
        return report(runs, out, examples=examples)


sys.modules[__name__].__class__ = _CallablePackage
