from __future__ import annotations

import jiwer
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.scoring.error_rate import (
    Edit,
    alignment,
    character_errors,
    token_errors,
    word_errors,
)

few = st.text("ab", max_size=12)
some = st.text("abc ", max_size=90)
pairs = st.one_of(
    st.tuples(few, few), st.tuples(some, some), st.tuples(st.text(max_size=20), st.text(max_size=20))
)


@st.composite
def corrupted(draw):
    """A text and a copy of it with a few characters changed, as a recogniser would."""
    text = draw(st.text("abcde ", max_size=150))
    copy = list(text)
    for place in draw(st.lists(st.integers(0, 149), max_size=15)):
        if place < len(copy):
            copy[place] = draw(st.sampled_from(["", "a", "b", " ", "ab"]))
    return text, "".join(copy)


def quadratic_distance(left, right):
    row = list(range(len(right) + 1))
    for i, token in enumerate(left, 1):
        before, row[0] = row[0], i
        for j, other in enumerate(right, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (token != other))
    return row[-1]


@settings(max_examples=300, deadline=None)
@given(pairs)
def test_the_total_is_the_edit_distance(pair):
    errors = token_errors(*pair)
    assert errors.total == quadratic_distance(*pair)
    assert errors.length + errors.insertions - errors.deletions == len(pair[1])


@settings(max_examples=300, deadline=None)
@given(corrupted())
def test_characters_are_those_of_the_words_with_single_spaces(pair):
    assert character_errors(*pair) == token_errors(*(" ".join(text.split()) for text in pair))


@settings(max_examples=300, deadline=None)
@given(corrupted())
def test_words_are_split_as_jiwer_splits_them(pair):
    reference, hypothesis = " ".join(pair[0].split()), " ".join(pair[1].split())
    if not reference:
        return
    theirs = jiwer.process_words(reference, hypothesis)
    ours = word_errors(*pair)
    assert (ours.substitutions, ours.deletions, ours.insertions) == (
        theirs.substitutions,
        theirs.deletions,
        theirs.insertions,
    )


@settings(max_examples=300, deadline=None)
@given(pairs)
def test_an_alignment_holds_both_texts_in_order(pair):
    rows = alignment(*pair)
    assert "".join(said for _, said, _ in rows if said is not None) == pair[0]
    assert "".join(heard for _, _, heard in rows if heard is not None) == pair[1]
    assert all((edit is Edit.MATCH) == (said == heard) for edit, said, heard in rows)
