from __future__ import annotations

import pytest

from antiphon.scoring.trn import read_trn, write_trn

ROWS = [
    ("the cat sat", "84", "84-121123-0001"),
    ("", "84", "84-121123-0002"),
    ("(uh) {a / b} 100% @ ok", "mary_ann-2", "take (3) %41"),
    (";; not a comment", "é", "1"),
]


def test_rows_come_back_as_they_were(tmp_path):
    write_trn(tmp_path / "ref.trn", ROWS)
    assert read_trn(tmp_path / "ref.trn") == ROWS


def test_a_line_is_text_and_then_speaker_and_utterance_in_parentheses(tmp_path):
    write_trn(tmp_path / "ref.trn", ROWS)
    lines = (tmp_path / "ref.trn").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "the cat sat (84-84-121123-0001)"
    assert lines[1] == "(84-84-121123-0002)"
    # What sclite reads in its own way is encoded, and everything before the first - or _ is the speaker.
    assert lines[2] == "%28uh%29 %7Ba / b%7D 100%25 %40 ok (mary%5Fann%2D2-take%20%283%29%20%2541)"
    assert not lines[3].startswith(";;")


def test_line_breaks_in_a_text_do_not_make_lines(tmp_path):
    write_trn(tmp_path / "ref.trn", [("one\ntwo\u2028three", "a", "b")])
    assert read_trn(tmp_path / "ref.trn") == [("one two three", "a", "b")]


def test_comments_and_empty_lines_are_skipped_and_others_must_end_in_an_id(tmp_path):
    path = tmp_path / "hyp.trn"
    path.write_text(";; made by hand\n\na b (s-1)\n")
    assert read_trn(path) == [("a b", "s", "1")]
    path.write_text("a b (s-1)\nno id here\n")
    with pytest.raises(ValueError, match=r"hyp\.trn: line 2"):
        read_trn(path)


def test_a_row_without_speaker_is_refused(tmp_path):
    with pytest.raises(ValueError, match="needs a speaker"):
        write_trn(tmp_path / "ref.trn", [("a", "", "u")])
