from __future__ import annotations

import gzip

import pytest

from antiphon.data.transcripts import read_sentences


def test_sentences_stand_after_the_last_tab_and_have_one_form(tmp_path):
    path = tmp_path / "books.tsv.gz"
    path.write_bytes(gzip.compress(b"Clara_1864\tI  do\n\nbook\tDON'T\nno tab here\n"))
    assert list(read_sentences(path)) == ["i do", "don't", "no tab here"]


def test_json_lines_have_a_field_for_the_text(tmp_path):
    path = tmp_path / "ami.jsonl"
    path.write_text('{"id": 1, "text": "Okay so"}\n{"text": ""}\n')
    assert list(read_sentences(path)) == ["okay so"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"fine\n\xff\xfe\n", "a.txt:2: not UTF-8"),
        ("a.jsonl", b'{"text": "x"}\n{"words": 3}\n', "a.jsonl:2: not an object with a field 'text'"),
        ("a.jsonl", b"[]\n", "a.jsonl:1: not an object"),
        ("a.txt.gz", gzip.compress(b"hello " * 99, mtime=0)[:-9], "damaged"),
    ],
)
def test_a_bad_file_is_named(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError) as error:
        list(read_sentences(tmp_path / name))
    assert message in str(error.value)
