"""The figures of the README and of the pages are those of their result files.

`benchmarks/figures.yaml` has lines of the pages with places for figures; here they are filled and looked for.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from string import Formatter
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]
CHECKS: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "benchmarks" / "figures.yaml").read_text())

SIGN = re.compile(r" ([-+/%]) (?![^\[]*\])")  # outside of brackets
NUMBER = re.compile(r"\d+\.?\d*")
OPERATIONS: dict[str, Callable[[float, float], float]] = {
    "/": operator.truediv,
    "-": operator.sub,
    "+": operator.add,
    "%": lambda value, base: value / base - 1,
}


class Figure(float):
    """A number as a page writes it: `{x:%1}` 41.2 of 0.412, `{x:+%1}` -3.3 of -0.033, `{x:,.0f}` 6,187."""

    def __format__(self, form: str) -> str:
        sign, _, digits = form.rpartition("%")
        if "%" in form:
            return format(float(self) * 100, f"{sign}.{digits}f")
        return format(float(self), form or "g")


class Rows(list[Any]):
    """A list of a result. Items are found by number, or by what they say: `[noise=none & unit=client]`."""

    def __getitem__(self, place: Any) -> Any:
        if not isinstance(place, str):
            return super().__getitem__(place)
        wanted = [part.split("=", 1) for part in place.split(" & ")]
        (found,) = [row for row in self if all(f"{row[key]}" == value for key, value in wanted)]
        return found


class Filler(Formatter):
    """Fills lines. Places may be computed: `{a + b / c:.1f}` is (a + b) / c, `{a % b:+%1}` is a / b - 1."""

    def get_field(self, name: str, places: Sequence[Any], found: Mapping[str, Any]) -> Any:
        if SIGN.search(name):
            first, *rest = SIGN.split(name)
            value = self.get_field(first, places, found)[0]
            for sign, part in zip(rest[::2], rest[1::2], strict=True):  # from left to right
                value = Figure(OPERATIONS[sign](value, self.get_field(part, places, found)[0]))
            return value, name
        return (Figure(name), name) if NUMBER.fullmatch(name) else super().get_field(name, places, found)


def fill(line: str, found: Mapping[str, Any]) -> str:
    """Return a line with its figures, as `paragraphs` has them."""
    return plain(Filler().vformat(line, (), found))


def plain(text: str) -> str:
    """Return a text without emphasis, with one space for each break, and one kind of minus sign."""
    return " ".join(text.replace("**", "").replace("−", "-").split())


def as_written(tree: Any) -> Any:
    """Return a tree of JSON with figures for numbers and rows for lists; keys of digits become numbers."""
    if isinstance(tree, dict):
        return {int(key) if key.isdigit() else key: as_written(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return Rows(map(as_written, tree))
    return Figure(tree) if isinstance(tree, int | float) and not isinstance(tree, bool) else tree


def read_result(name: str) -> Any:
    return as_written(json.loads((ROOT / "benchmarks" / "results" / name).read_text()))


def lines_of(check: dict[str, Any]) -> list[str]:
    """Return the templates of one page and result: single lines, and a line for each row of a table."""
    lines = list(check.get("lines", []))
    for table in check.get("tables", []):
        for run, label in table["rows"].items():
            lines.append(table["line"].replace("RUN", str(run)).replace("LABEL", label))
    return lines


def paragraphs(page: str) -> str:
    return plain((ROOT / page).read_text(encoding="utf-8"))


CASES = [(page, result) for page, checks in CHECKS.items() for result in checks]


@pytest.mark.parametrize(("page", "result"), CASES, ids=[f"{page}, {result}" for page, result in CASES])
def test_the_figures_of_a_page_are_those_of_its_result(page: str, result: str) -> None:
    text, found = paragraphs(page), read_result(result)
    filled = [fill(line, found) for line in lines_of(CHECKS[page][result])]
    assert filled
    assert [line for line in filled if line not in text] == []


def test_figures_are_written_as_on_the_pages() -> None:
    found = as_written({"x": {"rate": -0.0327, "by_seed": [0.4125]}, "n": 6187, "cohorts": {"10": 7.0}})
    assert fill("{x[rate]:+%1} {x[by_seed][0]:%1}\n**{n:,.0f}** {cohorts[10]}", found) == "-3.3 41.2 6,187 7"
    assert plain("−3.3  **41.2**\n6,187") == "-3.3 41.2 6,187"
    assert lines_of({"tables": [{"rows": {"a": "`a`"}, "line": "LABEL {RUN:%1}"}]}) == ["`a` {a:%1}"]


def test_figures_may_be_computed_and_rows_found_by_what_they_say() -> None:
    rows = [
        {"name": "a", "share": 0.1, "x": 1},
        {"name": "a", "share": 2, "x": 5},
        {"name": "1 % - 2", "x": 6},
    ]
    found = as_written({"m": 4, "n": 3, "rows": rows})
    assert fill("{n / m:.1f} {n - m:.0f} {n % m:+%1} {n / 0.1:.0f}", found) == "0.8 -1 -25.0 30"
    assert fill("{rows[name=a & share=0.1][x]} {rows[name=a & share=2][x]} {rows[0][x]}", found) == "1 5 1"
    assert fill("{rows[name=1 % - 2][x] - n:.0f} {n + m / 2:.1f}", found) == "3 3.5"
    with pytest.raises(ValueError, match="too many values"):
        fill("{rows[name=a][x]}", found)
