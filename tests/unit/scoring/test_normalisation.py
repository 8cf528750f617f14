from __future__ import annotations

import unicodedata
from dataclasses import asdict

import pytest

from antiphon.records.schema import checked
from antiphon.scoring.normalisation import Normalisation


def test_nothing_is_done_unless_asked_for():
    text = "  Don't — STOP,\tcafe\u0301 "
    assert Normalisation()(text) == text
    assert str(Normalisation()) == "as is"


@pytest.mark.parametrize(
    ("step", "text", "expected"),
    [
        ("nfc", "cafe\u0301", "caf\u00e9"),
        ("lower_case", "The CAT", "the cat"),
        ("strip_punctuation", "“Well,” he said: it's twenty-one… 'tis", "Well he said it's twenty one tis"),
        ("strip_punctuation", "5 + 5 $", "5 + 5 $"),
        ("collapse_spaces", " a \t b\n", "a b"),
    ],
)
def test_each_step_does_what_it_says_and_doing_it_twice_changes_nothing(step, text, expected):
    normalise = Normalisation.of([step])
    assert normalise(text) == expected
    assert normalise(expected) == expected


def test_lower_case_stays_composed():
    normalise = Normalisation(nfc=True, lower_case=True)
    assert unicodedata.is_normalized("NFC", normalise("\u0130\u0307A\u030a"))


def test_steps_are_recorded_by_name_and_read_back():
    chosen = Normalisation.of(["strip_punctuation", "lower_case"])
    assert str(chosen) == "lower_case, strip_punctuation"
    assert checked(Normalisation, asdict(chosen)) == chosen


def test_an_unknown_step_is_refused_with_the_nearest_name():
    with pytest.raises(ValueError, match=r"unknown step 'lowercase'; did you mean 'lower_case'\?"):
        Normalisation.of(["lowercase"])
