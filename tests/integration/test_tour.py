"""One federated round, followed through the package: how many files a reader meets, as docs/tour.md says."""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path

from house import read_modules, trace_round

CHECKOUT = Path(__file__).parents[2]
TOUR = CHECKOUT / "docs" / "tour.md"
COUNTS = re.compile(r"The package has \d+ Python files\. A plain round runs code in \d+ of them\.")
MOST = 25


def test_a_plain_round_touches_at_most_25_files_and_the_tour_gives_the_number() -> None:
    """With ANTIPHON_WRITE_DOCS=1 in the environment, the test writes the numbers into the page."""
    files = trace_round(CHECKOUT, validated=False).files
    num_modules = len(read_modules(CHECKOUT / "antiphon"))
    sentence = f"The package has {num_modules} Python files. A plain round runs code in {len(files)} of them."
    text = TOUR.read_text(encoding="utf-8")
    if os.environ.get("ANTIPHON_WRITE_DOCS"):
        text = COUNTS.sub(sentence, text)
        TOUR.write_text(text, encoding="utf-8")
    assert len(files) <= MOST, sorted(files)
    assert sentence in text


def test_a_plain_round_runs_no_code_of_wrappers() -> None:
    """Pruning, pseudo-labels and views are for rounds that use them."""
    files = set(trace_round(CHECKOUT, validated=False).files)
    assert not files & {"tasks/submodel.py", "tasks/pseudo_labels.py", "tasks/views.py", "clients/states.py"}


def test_the_tour_lists_every_folder_with_its_level() -> None:
    """The table of the page is the table of the import test."""
    tests = ast.parse((CHECKOUT / "tests" / "unit" / "test_imports.py").read_text(encoding="utf-8"))
    (levels,) = (
        ast.literal_eval(node.value)
        for node in tests.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "LEVELS"
    )
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \|", TOUR.read_text(encoding="utf-8"), re.MULTILINE)
    assert {folder: int(level) for folder, level in rows} == levels


def test_the_tour_links_to_every_file_of_a_plain_round() -> None:
    text = TOUR.read_text(encoding="utf-8")
    assert [
        file for file in trace_round(CHECKOUT, validated=False).files if f"antiphon/{file})" not in text
    ] == []
