from __future__ import annotations

import math

import pytest

from antiphon.server.schedules import Constant, Cosine, InverseSqrt, Linear, Schedule, Step


def factors(schedule: Schedule, num_rounds: int) -> list[float]:
    return [schedule(r) for r in range(num_rounds)]


def test_constant_is_always_one():
    assert factors(Constant(), 3) == [1.0, 1.0, 1.0]


def test_cosine_falls_from_one_to_final_and_stays_there():
    assert factors(Cosine(rounds=2, final=0.2), 4) == pytest.approx([1.0, 0.6, 0.2, 0.2])


def test_linear_falls_in_equal_steps_and_stays_at_final():
    assert factors(Linear(rounds=4, final=0.2), 6) == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2, 0.2])


@pytest.mark.parametrize("schedule", [Cosine(rounds=8, warmup=3), Linear(rounds=8, warmup=3)])
def test_warmup_rises_linearly_and_reaches_one_in_the_round_after_it(schedule):
    assert factors(schedule, 4) == pytest.approx([0.25, 0.5, 0.75, 1.0])
    assert schedule(4) < 1.0


def test_step_multiplies_after_every_so_many_rounds():
    assert factors(Step(every=2, factor=0.1), 5) == pytest.approx([1.0, 1.0, 0.1, 0.1, 0.01])


def test_inverse_sqrt_peaks_at_one_when_warmup_ends():
    expected = [0.25, 0.5, 0.75, 1.0, math.sqrt(4 / 5), math.sqrt(4 / 6)]
    assert factors(InverseSqrt(warmup=4), 6) == pytest.approx(expected)


@pytest.mark.parametrize(
    "schedule", [Cosine(10), Cosine(10, warmup=4), Linear(10), Linear(10, warmup=4), Step(3), InverseSqrt(4)]
)
def test_no_round_of_the_run_has_a_factor_of_zero_or_above_one(schedule):
    assert all(0 < factor <= 1 for factor in factors(schedule, 10))


def test_spans_that_make_no_sense_are_refused():
    for make in (lambda: Cosine(0), lambda: Linear(5, warmup=5), lambda: Step(0), lambda: InverseSqrt(0)):
        with pytest.raises(ValueError):
            make()
