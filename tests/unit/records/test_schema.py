from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from antiphon.records.schema import Count, Mismatch, checked, finite, number_of, parse_number, shown, whole


@pytest.mark.parametrize("value", [True, None, "1", [1], float("nan"), float("-inf"), 10**400, -(10**400)])
def test_what_is_no_finite_number_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="number"):
        finite(value)


def test_finite_numbers_become_floats() -> None:
    assert [finite(0), finite(-2.5), finite(10**300)] == [0.0, -2.5, 1e300]


@pytest.mark.parametrize("text", ["", "x", "nan", "inf", "-inf", "1e999", "9" * 400, "1,5"])
def test_a_text_that_holds_no_finite_number_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a finite number"):
        parse_number(text)


@pytest.mark.parametrize("value", [True, 1.0, "1", None, 2**63, -(2**63) - 1, 10**4000])
def test_what_is_no_integer_of_64_bits_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="number"):
        whole(value)


def test_a_setting_that_is_text_is_a_number_only_where_yaml_left_it_as_text() -> None:
    assert number_of("1e-3", False, True) == 0.001
    for text in ("one", "nan", "0x10", "1_000"):
        assert number_of(text, False, True) is None
    with pytest.raises(ValueError, match="'1e999' is not a finite number"):
        number_of("1e999", False, True)


def test_long_values_are_cut_in_messages() -> None:
    assert len(shown("x" * 10_000)) < 100
    assert shown(10**5000) == "a number of many digits"


@dataclass(frozen=True)
class Part:
    count: Count = 0
    needs_all: ClassVar = True


@dataclass(frozen=True)
class Whole:
    """Refuses itself if its parts are empty."""

    parts: Mapping[str, Part]
    names: tuple[str, ...] = ()
    rest: Any = None
    matrix: Sequence[Sequence[float]] = ()

    def __post_init__(self) -> None:
        if not self.parts:
            raise ValueError("it has no parts")


def test_objects_are_read_as_nested_dataclasses() -> None:
    value = {"parts": {"a": {"count": 3, "new": 1}}, "names": ["x"], "rest": {"any": [1]}, "matrix": [[1]]}
    assert checked(Whole, value) == Whole({"a": Part(3)}, ("x",), {"any": [1]}, [[1.0]])


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "expected an object, not a list"),
        ({}, "parts: it is missing"),
        ({"parts": {}}, "it has no parts"),
        ({"parts": {"a": {}}}, "parts.a.count: it is missing"),
        ({"parts": {"a": {"count": -2}}}, "parts.a.count: -2 is below 0"),
        ({"parts": {"a": {"count": 1}}, "names": ["x", 3]}, "names[1]: expected text, not 3"),
        ({"parts": {"a": {"count": 1}}, "names": "x"}, "names: expected a list, not text"),
        (
            {"parts": {"a": {"count": 1}}, "matrix": [[1], [None]]},
            "matrix[1][0]: expected a number, not null",
        ),
    ],
)
def test_a_mismatch_names_the_keys_that_lead_to_it(value: Any, message: str) -> None:
    with pytest.raises(Mismatch) as raised:
        checked(Whole, value)
    assert str(raised.value) == message
