from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.decoding.nbest import Hypothesis, NBest
from antiphon.decoding.rescoring import (
    Column,
    best_leaving_out,
    reranked,
    tabulate,
    tune,
    tune_leaving_out,
    united,
)
from antiphon.scoring.error_rate import Errors, word_errors


class Counting:
    """A language model that likes the word "right"."""

    def score_sentences(self, texts):
        return np.array([float(text.split().count("right")) for text in texts])


def entry(id, texts, scores, reference="right right", session=None):
    hypotheses = tuple(Hypothesis(text, score=score) for text, score in zip(texts, scores, strict=True))
    return NBest(id, hypotheses, reference=reference, session=session)


LISTS = [
    entry("a", ["wrong right", "right right", "wrong"], [-1.0, -2.0, -9.0], session="1"),
    entry("b", ["right", "right right extra", "right right"], [-1.0, -2.4, -2.5], session="1"),
    entry("c", ["right right"], [-3.0], session="2"),
]


def test_errors_of_first_pass_and_oracle_are_counted():
    lists = tabulate(LISTS, {})
    assert lists.count(lists.first()) == Errors(1, 1, 0, 6)
    assert lists.count(lists.oracle()) == Errors(0, 0, 0, 6)
    assert lists.oracle().tolist() == [1, 5, 6]
    assert lists.oracle(1).tolist() == lists.first().tolist() == [0, 3, 6]
    assert lists.oracle(2).tolist() == [1, 3, 6]
    assert lists.oracle(3).tolist() == [1, 5, 6]


def test_the_best_of_each_list_has_the_highest_weighted_sum():
    lists = tabulate(LISTS, {"counting": Counting()})
    assert lists.best({"score": 1.0}).tolist() == [0, 3, 6]
    # a: -1 + 2, -2 + 4, -9; b: -1 + 2, -2.4 + 4, -2.5 + 4; then with 1, 3 and 2 times -0.2 more
    assert lists.best({"score": 1.0, "counting": 2.0}).tolist() == [1, 4, 6]
    assert lists.best({"score": 1.0, "counting": 2.0, "words": -0.2}).tolist() == [1, 5, 6]


def test_among_equals_the_first_pass_holds():
    lists = tabulate(LISTS, {})
    assert lists.best({}).tolist() == lists.first().tolist()


def test_ranks_count_from_the_top():
    lists = tabulate(LISTS, {})
    rank = lists.values[:, lists.columns.index("rank")]
    assert np.allclose(rank, [0, -math.log(2), -math.log(3), 0, -math.log(2), -math.log(3), 0])


def test_tuning_finds_weights_that_make_no_error():
    lists = tabulate(LISTS, {"counting": Counting()})
    weights = tune(lists, [Column("score", 1.0, 0.0), Column("counting"), Column("words")])
    assert weights["score"] == 1.0
    assert lists.count(lists.best(weights)).total == 0


def test_no_weight_falls_below_its_bottom():
    class Misled:
        def score_sentences(self, texts):
            return -Counting().score_sentences(texts)

    lists = tabulate(LISTS, {"misled": Misled()})
    free = tune(lists, [Column("score", 1.0, 0.0), Column("misled")])
    held = tune(lists, [Column("score", 1.0, 0.0), Column("misled", lowest=0.0)])
    assert free["misled"] < 0 == held["misled"]


def test_a_model_that_does_not_help_gets_no_weight():
    class Useless:
        def score_sentences(self, texts):
            return np.zeros(len(texts))

    lists = tabulate(LISTS, {"useless": Useless()})
    assert tune(lists, [Column("score", 1.0, 0.0), Column("useless")]) == {"score": 1.0, "useless": 0.0}


@settings(max_examples=40)
@given(
    st.lists(
        st.lists(
            st.tuples(st.lists(st.sampled_from("abc"), max_size=4).map(" ".join), st.integers(-9, 0)),
            min_size=1,
            max_size=5,
        ),
        min_size=1,
        max_size=6,
    ),
)
def test_tuning_never_makes_its_own_lists_worse_nor_better_than_the_oracle(drawn):
    entries = [
        NBest(str(i), tuple(Hypothesis(t, score=float(s)) for t, s in rows), reference="a b")
        for i, rows in enumerate(drawn)
    ]
    lists = tabulate(entries, {"counting": Counting()})
    weights = tune(lists, [Column("score", 1.0, 0.0), Column("words"), Column("counting")])
    tuned = lists.count(lists.best(weights)).total
    assert lists.count(lists.oracle()).total <= tuned <= lists.count(lists.best({"score": 1.0})).total
    fewest = sum(min(word_errors("a b", t).total for t, _ in rows) for rows in drawn)
    assert lists.count(lists.oracle()).total == fewest


def test_a_session_never_sees_weights_found_on_itself():
    # In session 1 the first pass is right and the model wrong, in session 2 the other way round.
    lists = tabulate(
        [
            entry("a", ["right", "wrong right"], [0.0, -0.3], reference="right", session="1"),
            entry("b", ["wrong wrong", "right right"], [0.0, -0.5], session="2"),
        ],
        {"counting": Counting()},
    )
    columns = [Column("score", 1.0, 0.0), Column("counting")]
    weights = tune_leaving_out(lists, columns)
    assert weights["1"] == tune(lists.of([1]), columns)
    assert weights["2"] == tune(lists.of([0]), columns)
    assert best_leaving_out(lists, weights).tolist() == [0, 2]


def test_one_session_cannot_be_left_out():
    with pytest.raises(ValueError, match="at least two"):
        tune_leaving_out(tabulate(LISTS[:2], {}), [Column("score")])


def test_some_of_the_lists_are_as_they_were():
    lists = tabulate(LISTS, {}).of([2, 1])
    assert [entry.id for entry in lists.entries] == ["c", "b"]
    assert lists.count(lists.first()) == Errors(0, 1, 0, 4)
    assert lists.first().tolist() == [0, 1]


def test_reranked_lists_are_best_first_and_keep_every_part():
    lists = tabulate(LISTS, {"counting": Counting()})
    weights = {"score": 1.0, "counting": 2.0}
    first = reranked(lists, weights)[0]
    assert [h.text for h in first.hypotheses] == ["right right", "wrong right", "wrong"]
    assert [h.score for h in first.hypotheses] == [2.0, 1.0, -9.0]
    assert first.hypotheses[0].parts == {
        "first_pass": -2.0,
        "rank": -math.log(2),
        "words": 2.0,
        "counting": 2.0,
    }


def test_parts_that_all_hypotheses_have_are_columns():
    hypotheses = (
        Hypothesis("x", score=0.0, parts={"lm": -1.0, "am": -2.0, "words": 9.0}),
        Hypothesis("y z", score=0.0, parts={"lm": -3.0}),
    )
    lists = tabulate([NBest("a", hypotheses, reference="x")], {})
    assert lists.columns == ("score", "rank", "words", "lm")
    assert lists.values[:, 2:].tolist() == [[1.0, -1.0], [2.0, -3.0]]


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="no lists"):
        tabulate([], {})
    with pytest.raises(ValueError, match="utterance 'x' has no reference"):
        tabulate([NBest("x", (Hypothesis("a"),))], {})
    with pytest.raises(ValueError, match="part 'words' already"):
        tabulate(LISTS, {"words": Counting()})
    with pytest.raises(ValueError, match="no column 'lm' in the lists: there are score, rank, words"):
        tune(tabulate(LISTS, {}), [Column("lm")])


def test_lists_of_two_searches_become_one_ranked_by_the_better_place() -> None:
    def entry(*texts: str, split: str | None = None) -> NBest:
        found = (Hypothesis(text, score=7.0, parts={"acoustic": 1.0}) for text in texts)
        return NBest("1", tuple(found), reference="b", split=split)

    (both,) = united([[entry("a", "b", "c", split="test")], [entry("b", "d", split="other")]])
    assert (both.reference, both.split) == ("b", "test")
    assert {h.text: h.score for h in both.hypotheses} == pytest.approx(
        {"a": 0.0, "b": 0.0, "c": -math.log(3), "d": -math.log(2)}
    )
    assert [h.text for h in both.hypotheses] == ["a", "b", "c", "d"]
    assert not any(h.parts for h in both.hypotheses)
    (alone,) = united([[entry("a", "b")]])
    assert alone == entry("a", "b")
    with pytest.raises(ValueError, match="lists number 2 have none of utterance '1'"):
        united([[entry("a")], []])


def test_a_recogniser_s_opinion_is_a_column_as_that_of_a_language_model() -> None:
    entries = [NBest(str(i), (Hypothesis("a"), Hypothesis("b")), reference="b") for i in range(2)]
    lists = tabulate(
        entries, {}, {"ctc": lambda given: [float(h.text == "b") for e in given for h in e.hypotheses]}
    )
    assert lists.columns[-1] == "ctc"
    assert lists.count(lists.best({"ctc": 1.0})).total == 0
    with pytest.raises(ValueError, match="a part 'words' already"):
        tabulate(entries, {}, {"words": lambda given: [0.0] * 4})
