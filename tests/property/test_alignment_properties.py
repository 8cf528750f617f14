from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.scoring.alignment import align_words, find_confusions
from antiphon.scoring.error_rate import Errors, alignment, word_errors
from antiphon.scoring.significance import error_segments

words = st.lists(st.sampled_from("abcd"), max_size=14).map(" ".join)


@settings(max_examples=300)
@given(st.lists(st.tuples(words, words), max_size=4))
def test_alignments_and_confusions_count_what_the_error_rate_counts(pairs):
    utterances = [align_words("s", str(number), *pair) for number, pair in enumerate(pairs)]
    assert [utterance.errors for utterance in utterances] == [word_errors(*pair) for pair in pairs]
    found, errors = find_confusions(utterances), sum((word_errors(*pair) for pair in pairs), Errors())
    assert found.substitutions.total() == errors.substitutions
    assert found.deletions.total() == errors.deletions
    assert found.insertions.total() == errors.insertions


@settings(max_examples=300)
@given(words, words, words)
def test_segments_hold_every_error_of_both_and_each_holds_one(said, first, second):
    found = error_segments(*(alignment(said.split(), heard.split()) for heard in (first, second)))
    assert sum(a for a, _ in found) == word_errors(said, first).total
    assert sum(b for _, b in found) == word_errors(said, second).total
    assert all(a + b > 0 for a, b in found)
