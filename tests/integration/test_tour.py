"""One federated round, followed through the package: how many files a reader meets, as docs/tour.md says."""

from __future__ import annotations

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
