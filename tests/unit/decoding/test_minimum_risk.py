"""Expected word errors over a list, counted by hand and by brute force."""

from __future__ import annotations

import math

import jiwer
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.decoding.nbest import Hypothesis, NBest
from antiphon.decoding.rescoring import SCORE, SHARPNESSES, MinimumRisk, tabulate
from antiphon.scoring.error_rate import word_distances

WEIGHTS = {SCORE: 1.0}
texts = st.lists(st.sampled_from("abc"), min_size=1, max_size=5).map(" ".join)
lists_of = st.lists(st.tuples(texts, st.floats(-9, 0)), min_size=1, max_size=6)


def entry(scored: list[tuple[str, float]], reference: str = "a b c", number: int = 0) -> NBest:
    hypotheses = tuple(Hypothesis(text, score=score) for text, score in scored)
    return NBest(str(number), hypotheses, session=f"session {number}", reference=reference)


def test_one_in_the_middle_of_many_beats_the_likeliest() -> None:
    """Three texts agree in all but a word each; the likeliest has nothing in common with any of them."""
    scored = [("x y z", 0.3), ("a b c", 0.25), ("a b d", 0.25), ("a e c", 0.2)]
    apart = MinimumRisk.measure(tabulate([entry([(text, math.log(p)) for text, p in scored])], {}))
    assert apart.best(WEIGHTS, np.inf).tolist() == [0]
    # 0.7 · 3 words; 0.3 · 3 + 0.45 · 1; 0.3 · 3 + 0.25 · 1 + 0.2 · 2; 0.3 · 3 + 0.25 · 1 + 0.25 · 2.
    assert apart.best(WEIGHTS, 1.0).tolist() == [1]
    assert apart.tune(WEIGHTS) == 1.0  # the sharpest of those that choose what was said


@settings(deadline=None, max_examples=60)
@given(lists_of, st.sampled_from([0.25, 1.0, 2.0]))
def test_nothing_in_the_list_has_fewer_expected_errors(scored: list[tuple[str, float]], sharp: float) -> None:
    apart = MinimumRisk.measure(tabulate([entry(scored)], {}))
    (chosen,) = apart.best(WEIGHTS, sharp)
    odds = [math.exp(sharp * score) for _, score in scored]

    def expected(text: str) -> float:
        return sum(
            p * (found.substitutions + found.deletions + found.insertions)
            for p, (other, _) in zip(odds, scored, strict=True)
            for found in [jiwer.process_words(other, text)]
        )

    assert expected(scored[chosen][0]) <= min(expected(text) for text, _ in scored) + 1e-9


@settings(deadline=None, max_examples=30)
@given(st.lists(lists_of, min_size=1, max_size=5))
def test_tuning_never_leaves_more_errors_than_the_likeliest_texts(
    drawn: list[list[tuple[str, float]]],
) -> None:
    lists = tabulate([entry(scored, number=number) for number, scored in enumerate(drawn)], {})
    apart = MinimumRisk.measure(lists)
    sharpness = apart.tune(WEIGHTS)
    errors = {value: lists.count(apart.best(WEIGHTS, value)).total for value in SHARPNESSES}
    assert errors[sharpness] == min(errors.values()) <= lists.count(lists.best(WEIGHTS)).total


def test_a_session_s_sharpness_is_found_on_the_others() -> None:
    """Two sessions whose middle text is right and one whose likeliest is: each follows the other two."""
    middle = [
        ("x y z", math.log(0.3)),
        ("a b c", math.log(0.25)),
        ("a b d", math.log(0.25)),
        ("a e c", math.log(0.2)),
    ]
    drawn = [entry(middle, "a b c", 0), entry(middle, "a b c", 1), entry(middle, "x y z", 2)]
    apart = MinimumRisk.measure(tabulate(drawn, {}))
    weights = {one.session: WEIGHTS for one in drawn}
    # Left out 0 or 1: three errors less here and three more there, so the sharpest; left out 2: the middle.
    errors_of = [apart.of([1, 2]), apart.of([0, 2]), apart.of([0, 1])]
    assert [own.tune(WEIGHTS) for own in errors_of] == [np.inf, np.inf, 1.0]
    assert apart.best_leaving_out(weights).tolist() == [0, 4, 9]


def test_distances_are_of_words_not_of_letters() -> None:
    found = word_distances(["abc def", "abd def", "def", ""])
    assert found.tolist() == [[0, 1, 1, 2], [1, 0, 1, 2], [1, 1, 0, 1], [2, 2, 1, 0]]
