from __future__ import annotations

import math

import jiwer
import pytest

from antiphon.scoring.error_rate import Errors, Tally, alignment, character_errors, word_errors
from antiphon.scoring.trn import read_trn, write_trn


def test_substitutions_deletions_and_insertions_are_counted_apart():
    errors = word_errors("the cat sat on the mat", "a cat sat the mat today")
    assert errors == Errors(substitutions=1, deletions=1, insertions=1, length=6)
    assert (errors.total, errors.rate) == (3, 0.5)


def test_characters_include_spaces():
    assert character_errors("ab c", "abc") == Errors(deletions=1, length=4)


def test_white_space_around_words_does_not_count():
    assert word_errors("  a  b ", "a b\n").total == 0
    assert character_errors("  a  b ", "a b\n") == Errors(length=3)


SPACED = [("the cat sat", " the  cat  sa "), ("a b", "ab"), (" on a  mat", "an a mat  t"), ("yes", "")]


def test_character_errors_are_jiwers():
    single = jiwer.Compose([jiwer.RemoveMultipleSpaces(), jiwer.Strip(), jiwer.ReduceToListOfListOfChars()])
    references, hypotheses = map(list, zip(*SPACED, strict=True))
    theirs = jiwer.process_characters(references, hypotheses, single, single)
    ours = sum((character_errors(*pair) for pair in SPACED), Errors())
    assert ours.rate == theirs.cer
    kinds = (ours.substitutions, ours.deletions, ours.insertions)
    assert kinds == (theirs.substitutions, theirs.deletions, theirs.insertions)


@pytest.mark.parametrize(("reference", "hypothesis"), SPACED)
def test_a_file_of_transcripts_keeps_the_errors(tmp_path, reference, hypothesis):
    for name, text in (("ref", reference), ("hyp", hypothesis)):
        write_trn(tmp_path / name, [(text, "ada", "1")])
    texts = [read_trn(tmp_path / name)[0][0] for name in ("ref", "hyp")]
    assert Tally.of(*texts) == Tally.of(reference, hypothesis)


def test_an_empty_hypothesis_deletes_everything():
    assert word_errors("a b", "") == Errors(deletions=2, length=2)


def test_an_empty_reference_makes_everything_an_insertion():
    errors = word_errors("", "a b")
    assert errors == Errors(insertions=2, length=0)
    assert errors.rate == math.inf


def test_nothing_said_and_nothing_heard_is_no_error():
    assert word_errors("", "").rate == 0.0
    assert alignment("", "") == []


def test_errors_add_up():
    assert Errors(1, 2, 3, 10) + Errors(1, 0, 1, 5) == Errors(2, 2, 4, 15)
    assert sum([Errors(1, 0, 0, 2)] * 3, Errors()).rate == 0.5


def test_an_alignment_sets_every_token_beside_its_partner():
    assert alignment(["the", "cat", "sat", "on", "a", "mat"], ["cat", "sat", "in", "a", "big", "mat"]) == [
        ("deletion", "the", None),
        ("match", "cat", "cat"),
        ("match", "sat", "sat"),
        ("substitution", "on", "in"),
        ("match", "a", "a"),
        ("insertion", None, "big"),
        ("match", "mat", "mat"),
    ]


def test_the_split_is_jiwers():
    references = ["a b c a b", "b b a", "c", "a a a b c d", "d c b a"]
    hypotheses = ["b a b c", "a b", "a b c", "a b c d d", "a b c d"]
    theirs = jiwer.process_words(references, hypotheses)
    ours = sum(map(word_errors, references, hypotheses), Errors())
    assert ours == Errors(
        theirs.substitutions,
        theirs.deletions,
        theirs.insertions,
        length=sum(len(r.split()) for r in references),
    )
    assert ours.rate == theirs.wer
