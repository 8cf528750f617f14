"""The documentation site and the tutorial: the site builds without a warning, the notebook runs."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import antiphon

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "docs" / "tutorial.ipynb"
MISSING = [name for name in ("mkdocs", "material", "mkdocstrings") if not importlib.util.find_spec(name)]


def run(arguments: list[str], folder: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


# --- The notebook ---------------------------------------------------------------------------------


def test_the_notebook_goes_from_recordings_to_an_algorithm(tmp_path: Path) -> None:
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    script = tmp_path / "cells.py"
    script.write_text("\n\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "code"))
    folder = tmp_path / "empty"
    folder.mkdir()
    output = run([str(script)], folder)
    rates = {name: float(rate) for name, rate in re.findall(r"^(\w[\w ]*?) +WER +([\d.]+) %", output, re.M)}
    assert rates.keys() == {"seed", "dga", "warm start"}
    assert rates["dga"] < rates["seed"] < 90
    assert (folder / "comparison" / "report.html").exists()


def test_the_notebook_is_stored_without_output() -> None:
    for cell in json.loads(NOTEBOOK.read_text())["cells"]:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


# --- The site -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if MISSING:
        pytest.skip(f"pip install -e '.[docs]': no module {', '.join(MISSING)}")
    folder = tmp_path_factory.mktemp("site")
    run(["-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)], ROOT)
    return folder


def test_the_site_has_every_page_and_leads_to_it(site: Path) -> None:
    start = (site / "index.html").read_text()
    for page in (ROOT / "docs").glob("*.md"):
        assert (site / f"{page.stem}.html").exists()
    listed = "".join(page.read_text() for page in site.glob("*.html"))
    for page in (ROOT / "docs").glob("*.md"):
        assert f'href="{page.stem}.html"' in listed or page.stem == "index", page.name
    assert "round.svg" in start


def test_the_reference_has_every_public_name(site: Path) -> None:
    page = (site / "api.html").read_text()
    for name in antiphon.__all__:
        assert f"antiphon.{name}" in page, name


def test_types_in_the_reference_are_text_and_no_torn_markup(site: Path) -> None:
    page = (site / "api.html").read_text()
    assert "backlink-type" not in page
    assert '(<code><span title="str"><span class="name">str</span></span>' in page


def test_pages_load_nothing_from_the_network(site: Path) -> None:
    for page in site.rglob("*.html"):
        loaded = re.findall(r"<(?:script|img|iframe)[^>]+src=\"?([^\" >]+)", page.read_text())
        loaded += re.findall(r"<link[^>]+rel=\"?(?:stylesheet|icon|preconnect)[^>]*>", page.read_text())
        assert not [address for address in loaded if "//" in address], page.name
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(@import|url\()[^;]*https?://", sheet.read_text()), sheet.name


def test_a_search_works_in_pages_that_are_opened_from_a_folder(site: Path) -> None:
    index = (site / "search" / "search_index.js").read_text()
    assert "hierarchical optimisation" in index.lower()
    assert 'src="../../iframe-worker.js"' in (site / "code/antiphon/engine.py.html").read_text()
    assert (site / "iframe-worker.js").exists()


def test_a_link_that_names_a_file_shows_the_title_of_its_page(site: Path) -> None:
    page = (site / "run-and-resume.html").read_text()
    assert '<a href="bring-your-corpus.html">Bring your corpus</a>' in page
    assert ">bring-your-corpus.md<" not in page


def test_no_line_breaks_within_a_figure_or_a_name(site: Path) -> None:
    page = (site / "robust.html").read_text()
    assert "WER of 23.1\N{NO-BREAK SPACE}%" in page
    assert '<code><span class="name">krum.num_averaged</span></code>' in page
    commands = re.findall(r"<pre>.*?</pre>", page, re.DOTALL)
    assert commands
    assert not [text for text in commands if "\N{NO-BREAK SPACE}" in text or 'class="name"' in text]
    assert 'class="name"' not in (site / "code/antiphon/engine.py.html").read_text()


def test_links_to_code_lead_to_a_copy_of_it(site: Path) -> None:
    assert "code/antiphon/engine.py.html" in (site / "tour.html").read_text()
    assert "def sample_cohort" in re.sub(r"<[^>]+>", "", (site / "code/antiphon/engine.py.html").read_text())
