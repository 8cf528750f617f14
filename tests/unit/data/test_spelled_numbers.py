"""English numbers as words, against readings written by hand."""

from __future__ import annotations

import pytest

from antiphon.data.spelled_numbers import cardinal, spell_numbers


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0", "zero"),
        ("13 and 40", "thirteen and forty"),
        ("105", "one hundred five"),
        ("1000", "one thousand"),
        ("2,000,017", "two million seventeen"),
        ("1,905", "one thousand nine hundred five"),
        ("in 1905, 1900 and 2005", "in nineteen oh five, nineteen hundred and two thousand five"),
        ("the 1st, 2nd, 3RD, 12th, 20th, 31st", "the first, second, third, twelfth, twentieth, thirty first"),
        ("100th", "one hundredth"),
        ("3.50", "three point five zero"),
        ("007", "zero zero seven"),
        ("-5 or 3-5", "minus five or three-five"),
        ("at 10:30", "at ten:thirty"),
        ("5km mp3", "five km mp three"),
        ("1234567890123456", "one two three four five six seven eight nine zero one two three four five six"),
        ("the 1990s and 1990's", "the 1990s and 1990's"),
        ("²½ ٣", "²½ ٣"),
        ("no digits", "no digits"),
    ],
)
def test_numbers_become_words(text: str, words: str) -> None:
    assert spell_numbers(text) == words


def test_every_cardinal_is_spelled_without_digits_and_only_once() -> None:
    numbers = [*range(2000), 10**6, 999_999_999_999_999]
    words = [cardinal(number) for number in numbers]
    assert len(set(words)) == len(words)
    assert all(word.isalpha() for text in words for word in text.split())
    assert words[-1].startswith("nine hundred ninety nine trillion nine hundred")
