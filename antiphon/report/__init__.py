"""What a run leaves behind for people: journal, TensorBoard files, transcripts, and the report."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

__all__ = ["write_report"]


def write_report(runs: Sequence[Path], destination: Path) -> Path:
    """Writes the HTML page of one run, or of several compared, and RESULTS.md beside it.

    A path is a run folder or an experiment (all its runs). `destination` is a file ending in .html,
    or a folder for report.html. Returns the path of the page.
    """
    # matplotlib and Jinja2 take a second to import: only the report waits for them, not training.
    from antiphon.report.html import render
    from antiphon.report.results import results_markdown
    from antiphon.report.run import load_runs

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
