"""Figures of unequal speakers: by hand."""

from __future__ import annotations

import pytest
from fairness import spread


def test_mean_worst_tenth_and_variance_by_hand() -> None:
    """Of eleven speakers the worst two: a tenth, rounded up."""
    found = spread([10.0] * 8 + [20.0, 40.0, 30.0])
    assert found["wer"] == pytest.approx(170 / 11)
    assert found["worst_tenth"] == pytest.approx(35.0)
    assert found["largest"] == 40.0
    squares = 8 * 10.0**2 + 20.0**2 + 40.0**2 + 30.0**2
    assert found["variance"] == pytest.approx(squares / 11 - (170 / 11) ** 2)


def test_equal_speakers_have_no_variance() -> None:
    assert spread([25.0] * 4) == {"wer": 25.0, "worst_tenth": 25.0, "variance": 0.0, "largest": 25.0}
