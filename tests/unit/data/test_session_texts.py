from __future__ import annotations

import json
from pathlib import Path

import pytest

from antiphon.data.session_texts import (
    ForbiddenSequences,
    Sentence,
    SessionText,
    TextRules,
    read_session_texts,
    split_sentences,
)
from antiphon.data.transcripts import ALPHABETS, spoken_form, written_form

ALPHABET = ALPHABETS["en"]
RULES = TextRules(ALPHABET)


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("“Don’t stop!” she said.", "don't stop she said"),
        ("Tennessee—a state – of well-being/ease", "tennessee a state of well being ease"),
        ("• CEO's (first) slide…", "ceo's first slide"),
        ("'quoted' rock 'n' roll", "quoted rock n roll"),
        ("Straße in 1945", "straße in 1945"),  # left in, to be found
        ("*** --- ***", ""),
    ],
)
def test_a_sentence_is_written_as_transcripts_are(text: str, written: str) -> None:
    assert written_form(text) == written
    assert written_form(written_form(text)) == written_form(text)


def test_a_sentence_is_spoken_as_it_stands_without_orders_to_engines() -> None:
    assert spoken_form('The CEO, Mr. Smith: "well-done"!') == 'The CEO, Mr. Smith: "well-done"!'
    orders = "<speed level='200'>fast</speed> \\x [[f@st]] {x}"
    assert spoken_form(orders) == "speed level '200' fast speed x f st x"


def test_sentences_end_at_full_stops_but_not_after_titles_and_initials() -> None:
    text = 'Mr. J. Smith came. "He saw!" And then? Yes…  No'
    assert list(split_sentences(text, 99)) == ["Mr. J. Smith came.", '"He saw!"', "And then?", "Yes…", "No"]


def test_long_sentences_are_cut_at_pauses_and_lose_nothing() -> None:
    text = "one two, three four five six seven eight, nine"
    assert list(split_sentences(text, 4)) == ["one two,", "three four five six", "seven eight, nine"]
    for limit in range(1, 10):
        pieces = list(split_sentences(text, limit))
        assert " ".join(pieces) == text
        assert all(len(piece.split()) <= limit for piece in pieces)


def test_what_cannot_be_written_is_skipped_by_its_number_and_counted() -> None:
    text = RULES.read("slides", ["Good.  Sales: 12 %!", "…", "good", "Fine."])
    assert [sentence.written for sentence in text.sentences] == ["good", "fine"]  # said twice, taken once
    assert [(one.id, one.where, one.kind) for one in text.skipped] == [
        ("sentence 2", "slides", "characters outside the alphabet"),
        ("sentence 3", "slides", "nothing to say"),
    ]
    assert text.skipped[0].reason.endswith(": % 1 2")
    assert text.num_words == 2


def test_what_the_tokens_cannot_hold_is_skipped() -> None:
    rules = TextRules(None, holds=lambda written: "z" not in written)
    text = rules.read("one", ["a zebra", "a horse"])
    assert [sentence.written for sentence in text.sentences] == ["a horse"]
    assert text.skipped[0].kind == "characters that the model has no tokens for"


def test_wrapped_text_is_joined_within_paragraphs() -> None:
    lines = ["It was a", "dark night. The", "", "End"]
    assert [s.spoken for s in RULES.read("one", lines).sentences] == ["It was a", "dark night.", "The", "End"]
    wrapped = TextRules(ALPHABET, wrapped=True).read("one", lines)
    assert [s.spoken for s in wrapped.sentences] == ["It was a dark night.", "The", "End"]


def test_sentences_that_are_tested_on_are_dropped_and_counted() -> None:
    sentences = ("a b c d", "e f g h", "i j")
    text = SessionText("one", tuple(Sentence(s, s) for s in sentences))
    left = text.without(ForbiddenSequences.of(["z a b c d e f g h"]))
    assert [s.written for s in left.sentences] == ["i j"]
    assert [one.kind for one in left.skipped] == ["in the test speech"] * 2


def test_files_folders_and_json_lines_are_read(tmp_path: Path) -> None:
    (tmp_path / "many").mkdir()
    (tmp_path / "many" / "b.txt").write_text("Second.")
    (tmp_path / "many" / "a.txt").write_text("\ufeffFirst.\n\nOnce more.")
    (tmp_path / "more.jsonl").write_text(
        "".join(json.dumps({"session": s, "text": t}) + "\n" for s, t in (("c", "Third."), ("c", "And on.")))
    )
    texts = read_session_texts([tmp_path / "many", tmp_path / "more.jsonl"], RULES)
    assert {text.name: [s.written for s in text.sentences] for text in texts} == {
        "a": ["first", "once more"],
        "b": ["second"],
        "c": ["third", "and on"],
    }


def test_bad_files_are_refused_by_name(tmp_path: Path) -> None:
    for name, content, said in (
        ("x.jsonl", b'{"text": "no session"}\n', "x.jsonl:1: not an object with the fields"),
        ("x.txt", b"caf\xe9", "x.txt is not UTF-8 text"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=said):
            read_session_texts([tmp_path / name], RULES)
    with pytest.raises(ValueError, match=r"the text .*nothing\.txt does not exist"):
        read_session_texts([tmp_path / "nothing.txt"], RULES)
    (tmp_path / "one").mkdir()
    with pytest.raises(ValueError, match="holds no text"):
        read_session_texts([tmp_path / "one"], RULES)
    (tmp_path / "one" / "a.txt").write_text("A.")
    (tmp_path / "a.txt").write_text("B.")
    with pytest.raises(ValueError, match="the session 'a' exists already"):
        read_session_texts([tmp_path / "one", tmp_path / "a.txt"], RULES)
    with pytest.raises(ValueError, match="no text was given"):
        read_session_texts([], RULES)
