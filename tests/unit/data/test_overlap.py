from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from antiphon.data.session_texts import MIN_WORDS, ForbiddenSequences

words = st.lists(st.sampled_from("ab"), max_size=14).map(" ".join)


def overlaps_by_hand(tested: list[str], sentences: list[str], length: int) -> set[int]:
    """Every stretch of the sentences, read as one text, against every stretch of every tested text."""
    owners = [index for index, sentence in enumerate(sentences) for _ in sentence.split()]
    said = " ".join(sentences).split()
    found: set[int] = set()
    for text in tested:
        own = text.split()
        n = length if len(own) >= length else len(own)
        if n < min(MIN_WORDS, length):
            continue
        for start in range(len(own) - n + 1):
            for at in range(len(said) - n + 1):
                if all(own[start + i] == said[at + i] for i in range(n)):
                    found |= set(owners[at : at + n])
    return found


@given(st.lists(words, max_size=3), st.lists(words, max_size=4), st.integers(4, 8))
def test_overlaps_are_those_that_a_search_by_hand_finds(
    tested: list[str], sentences: list[str], length: int
) -> None:
    overlaps = ForbiddenSequences.of(tested, length).overlaps(sentences)
    assert overlaps == overlaps_by_hand(tested, sentences, length)


def test_a_sequence_across_two_sentences_is_found_in_both() -> None:
    forbidden = ForbiddenSequences.of(["one two three four five six seven eight nine"])
    assert forbidden.overlaps(["zero", "two three four five", "six seven eight nine", "ten"]) == {1, 2}
    assert forbidden.overlaps(["two three four five six seven eight", "ten nine"]) == set()


def test_short_utterances_are_looked_for_whole() -> None:
    forbidden = ForbiddenSequences.of(["yes it was he", "yes it was"])
    assert forbidden.overlaps(["oh yes it was he then", "yes it was she"]) == {0}
