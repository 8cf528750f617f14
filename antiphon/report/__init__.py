"""The report: folders of runs become an HTML page and a Markdown file beside it.

This package can be called: `antiphon.report("out")` is the function `report` below.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

from antiphon.records.files import make_folder, write_text
from antiphon.records.folders import check_new_folder
from antiphon.report.formatting import MARK

__all__ = ["report", "write_report"]


def report(
    runs: str | Path | Sequence[str | Path],
    out: str | Path | None = None,
    *,
    examples: int = 0,
    follow: bool = False,
    notify: Callable[[str], None] = lambda text: None,
) -> Path:
    """Write a report on a run, or a comparison of several: one HTML page, and its figures as Markdown.

    The figures are beside the page: RESULTS.md for report.html, comparison.md for comparison.html. Only files
    that antiphon wrote are replaced.

    Args:
        runs: A run folder, the folder of an experiment (all its runs), or several of them.
        out: A file ending in .html, or a folder for report.html. By default report.html, in the folder
            of the run or experiment, or in the current folder if there are several.
        examples: The number of example utterances to show, with the texts that each model recognised. By
            default the report has no texts.
        follow: Write the page again whenever the runs change, until all have ended or Ctrl-C is pressed. A
            browser that shows the page loads it again. The runs need not have begun.
        notify: A function that is called with a line for the user.

    Returns:
        The path of the page.

    Example:
        antiphon.report(["out/fedavg", "out/dga"], "comparison.html")
    """
    folders = [Path(runs)] if isinstance(runs, str | Path) else [Path(run) for run in runs]
    default = folders[0] if len(folders) == 1 else Path()
    page = _page(folders, Path(out) if out is not None else default)
    for path in (page, figures_file(page)):
        if path.exists() and not _is_ours(path.read_text(encoding="utf-8", errors="replace")):
            raise ValueError(
                f"{path} exists, and antiphon did not write it: name another page with --out, such as "
                f"--out {page.with_name(f'{page.stem}-2.html')} (in Python: out=)"
            )
    if follow:
        from antiphon.report.following import follow_runs

        folders = follow_runs(folders, page, examples, notify)
    return write_report(folders, page, examples) if folders else page


def figures_file(page: Path) -> Path:
    """Return the path of the figures that belong to a page.

    >>> figures_file(Path("out/report.html")), figures_file(Path("comparison.html"))
    (PosixPath('out/RESULTS.md'), PosixPath('comparison.md'))
    """
    return page.with_name("RESULTS.md") if page.name == "report.html" else page.with_suffix(".md")


def _is_ours(text: str) -> bool:
    """Return whether antiphon wrote a page or its figures; older figures have no mark, but these headings."""
    return MARK in text or (text.startswith("# Results: ") and "\n## What was run\n" in text)


def write_report(runs: Sequence[Path], destination: Path, num_examples: int = 0) -> Path:
    """Write a report as `report` does; `destination` is a file ending in .html or a folder."""
    # Imported here because matplotlib and Jinja2 take a second to import, and training does not need them.
    from antiphon.report.html import render
    from antiphon.report.results import results_markdown
    from antiphon.report.run_folder import load_runs

    page = _page(runs, destination)
    loaded = load_runs(runs)
    make_folder(page.parent)
    for path, text in (
        (page, render(loaded, num_examples)),
        (figures_file(page), results_markdown(loaded, num_examples)),
    ):
        write_text(path, text, is_private=num_examples > 0)
    return page


def _page(runs: Sequence[Path], destination: Path) -> Path:
    """Return the path of the page; refuse, before any work, what cannot become one."""
    if not runs:
        raise ValueError("a report needs at least one run folder")
    page = destination if destination.suffix == ".html" else destination / "report.html"
    check_new_folder(page.parent)
    return page


class _CallablePackage(ModuleType):
    """A package that can be called like its function: importing it must not hide `antiphon.report`."""

    __call__ = staticmethod(report)
    __signature__ = inspect.signature(report)


sys.modules[__name__].__class__ = _CallablePackage
