"""Each case can be checked by finger: words of the reference are letters, errors are capitals or gone."""

from __future__ import annotations

import pytest

from antiphon.scoring.error_rate import alignment
from antiphon.scoring.significance import error_segments

SAID = "a b c d e f g h"


def segments(first: str, second: str, **options: int) -> list[tuple[int, int]]:
    return error_segments(
        alignment(SAID.split(), first.split()), alignment(SAID.split(), second.split()), **options
    )


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (SAID, SAID, []),
        ("a X c d e f g h", SAID, [(1, 0)]),
        ("a X c d Y f g h", SAID, [(1, 0), (1, 0)]),  # c d part them
        ("a X c Y e f g h", SAID, [(2, 0)]),  # c alone does not
        ("a X c d Y f g h", "a b c Z e f g h", [(2, 1)]),  # d is wrong in the other
        ("a X c d e f g h", "a b c d Y f g h", [(1, 0), (0, 1)]),
        ("a X c I d e f g h", SAID, [(2, 0)]),  # an insertion between c and d
        ("a X c d I e f g h", SAID, [(1, 0), (1, 0)]),  # one after them
        ("I a b c d e f g h", SAID + " J", [(1, 0), (0, 1)]),  # at the ends
        (SAID, SAID + " J", [(0, 1)]),
        ("X b c d e f g", "X b c d e f", [(1, 1), (1, 2)]),
        ("", SAID, [(8, 0)]),
    ],
)
def test_two_words_right_in_both_part_segments(first, second, expected):
    assert segments(first, second) == expected
    assert segments(second, first) == [(b, a) for a, b in expected]


def test_how_many_words_part_segments_can_be_chosen():
    assert segments("a X c Y e f g h", SAID, num_correct=1) == [(1, 0), (1, 0)]
    assert segments("a X c d Y f g h", SAID, num_correct=3) == [(2, 0)]


def test_a_reference_without_words_has_its_insertions_in_one_segment():
    assert error_segments(alignment([], ["x", "y"]), alignment([], [])) == [(2, 0)]
