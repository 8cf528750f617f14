"""Tables of the pages that a script of benchmarks/ prints: they are what it prints of its result file."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attacks
import audits
import compression
import fairness
import marginal_variants
import pytest

ROOT = Path(__file__).parents[3]
RULES = ("fedavg", "hierarchical", "dga", "norm-bounding", "geometric-median", "trimmed-mean", "multi-krum")
# What the page calls the variants, in the order of the result.
VARIANTS = (
    "the paper",
    *(f"agreement {power}" for power in (1, 2, 4, 8)),
    "every utterance",
    "earlier meetings",
    "agreement 4, every utterance",
    "agreement 4, every utterance, earlier meetings",
)


def show_attacks(rules: tuple[str, ...]) -> Callable[[Any], None]:
    return lambda result: attacks.tables(result["runs"], rules, list(attacks.ATTACKS))


def show_fairness(result: Any) -> None:
    for split in ("held-out", "test"):
        fairness.show(result[split]["runs"], "hierarchical")


def show_codecs(result: Any) -> None:
    """The first of two tables is on the page."""
    compression.show(SimpleNamespace(**result))


def show_variants(result: Any) -> None:
    marginal_variants.show(dict(zip(VARIANTS, result["variants"].values(), strict=True)))


TABLES: list[tuple[str, str, Callable[[Any], None], int]] = [
    ("docs/private-results.md", "audits.json", lambda result: audits.show(result["rows"]), 9),
    ("docs/robust.md", "attacks.json", show_attacks(RULES), 21),
    ("docs/robust.md", "attacks-dga-rl.json", show_attacks(("dga-rl",)), 3),
    ("docs/robust.md", "attacks-validation-wer.json", show_attacks(("validation-wer",)), 3),
    ("docs/heterogeneity.md", "fairness.json", show_fairness, 11),
    ("docs/algorithms.md", "compression.json", show_codecs, 13),
    ("docs/personalisation.md", "marginal_variants.json", show_variants, 9),
]


def rows_of(text: str) -> list[list[str]]:
    """Return the cells of all rows of Markdown tables, without headers, emphasis and spaces."""
    rows: list[list[str]] = []
    for line in text.replace("**", "").replace("−", "-").splitlines():
        if line.startswith("| -"):
            rows.pop()
        elif line.startswith("|"):
            rows.append([cell.strip() for cell in line.strip().strip("|").split("|")])
    return rows


@pytest.mark.parametrize(("page", "result", "show", "number"), TABLES, ids=[table[1] for table in TABLES])
def test_a_table_of_a_page_is_what_its_script_prints(
    page: str, result: str, show: Callable[[Any], None], number: int
) -> None:
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        show(json.loads((ROOT / "benchmarks" / "results" / result).read_text()))
    printed = rows_of(output.getvalue())[:number]
    assert len(printed) == number
    there = rows_of((ROOT / page).read_text())
    assert [row for row in printed if row not in there] == []


def test_rows_are_read_without_headers() -> None:
    assert rows_of("| a | b |\n| --- | --- |\n| **1** | −2 |\n\ntext\n| c | d |\n| - | - |\n| 3 |  |\n") == [
        ["1", "-2"],
        ["3", ""],
    ]
