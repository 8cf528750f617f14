"""The figures of the README and of the pages are those of their result files.

`benchmarks/figures.yaml` has lines of the pages with places for figures; here they are filled and looked for.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from string import Formatter
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]
CHECKS: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "benchmarks" / "figures.yaml").read_text())


OPERATIONS: dict[str, Callable[[float, float], float]] = {
    " / ": operator.truediv,
    " - ": operator.sub,
    " % ": lambda value, base: value / base - 1,
}


class Figure(float):
    """A number as pages write it: `{x:%1}` 41.2 of 0.412, `{x:+%1}` −3.3 of −0.033, `{x:,.0f}` 6,187."""

    def __format__(self, form: str) -> str:
        sign, _, digits = form.rpartition("%")
        text = format(float(self) * 100, f"{sign}.{digits}f") if "%" in form else format(float(self), form)
        return text.replace("-", "−")


class Filler(Formatter):
    """Fills lines. Places may have two figures: `{a / b:.1f}`, `{a - b:+%1}`, `{a % b:+%1}` (the change)."""

    def get_field(self, name: str, places: Sequence[Any], found: Mapping[str, Any]) -> Any:
        for sign, combine in OPERATIONS.items():
            if sign in name:
                first, second = (self.get_field(part, places, found)[0] for part in name.split(sign))
                return Figure(combine(first, second)), name
        return super().get_field(name, places, found)


def fill(line: str, found: Mapping[str, Any]) -> str:
    return Filler().vformat(line, (), found)


def read_result(name: str) -> Any:
    text = (ROOT / "benchmarks" / "results" / name).read_text()
    return json.loads(text, parse_float=Figure, parse_int=Figure)


def lines_of(check: dict[str, Any]) -> list[str]:
    """Return the templates of one page and result: single lines, and a line for each row of a table."""
    lines = list(check.get("lines", []))
    for table in check.get("tables", []):
        for run, label in table["rows"].items():
            lines.append(table["line"].replace("RUN", run).replace("LABEL", label))
    return lines


def paragraphs(page: str) -> str:
    """Return the text of a page without emphasis, and with one space for each break of a line."""
    return " ".join((ROOT / page).read_text(encoding="utf-8").replace("**", "").split())


CASES = [(page, result) for page, checks in CHECKS.items() for result in checks]


@pytest.mark.parametrize(("page", "result"), CASES, ids=[f"{page}, {result}" for page, result in CASES])
def test_the_figures_of_a_page_are_those_of_its_result(page: str, result: str) -> None:
    text, found = paragraphs(page), read_result(result)
    filled = [" ".join(fill(line, found).split()) for line in lines_of(CHECKS[page][result])]
    assert filled
    assert [line for line in filled if line not in text] == []


def test_figures_are_written_as_on_the_pages() -> None:
    found = {"x": {"rate": Figure(-0.0327), "by_seed": [Figure(0.4125)]}, "n": Figure(6187)}
    assert fill("{x[rate]:+%1} {x[by_seed][0]:%1} {n:,.0f}", found) == "−3.3 41.2 6,187"
    assert fill("{n / m:.1f} {n - m:.0f} {n % m:+%1}", {"m": Figure(4), "n": Figure(3)}) == "0.8 −1 −25.0"
    assert lines_of({"tables": [{"rows": {"a": "`a`"}, "line": "LABEL {RUN:%1}"}]}) == ["`a` {a:%1}"]
