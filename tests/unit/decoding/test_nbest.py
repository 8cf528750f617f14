from __future__ import annotations

import gzip
import json

import pytest

from antiphon.decoding.nbest import Hypothesis, NBest, read_nbest, write_nbest

LISTS = [
    NBest(
        "84-1",
        (
            Hypothesis("hello word", (5, 9), -3.1, {"acoustic": -2.0, "lm": -9.5, "words": 2.0}),
            Hypothesis("", (), -7.25, {"acoustic": -7.25, "lm": -1e-300, "words": 0.0}),
        ),
        reference="hello world",
        speaker="84",
        session="84-121",
        split="test",
    ),
    NBest("naïve ⁇", (Hypothesis("ça va", score=0.1 + 0.2),)),
]


@pytest.mark.parametrize("name", ["lists.jsonl", "lists.jsonl.gz"])
def test_lists_come_back_as_they_were_written(tmp_path, name):
    write_nbest(tmp_path / name, LISTS)
    assert list(read_nbest(tmp_path / name)) == LISTS


def test_the_lists_of_other_recognisers_are_read(tmp_path):
    rows = [
        {"id": "a", "split": "test", "speaker": 7, "session": "7-1", "ref": "x",
         "nbest": [{"text": "x", "score": -1.5, "ntok": 3}, {"text": "y", "score": -2, "ntok": 4}]},
        {"id": "b", "meeting": "EN1", "ref": "x",
         "hyps": [{"text": "x", "am": -19.5, "lm": -10.25, "score": -30.0}]},
    ]  # fmt: skip
    with gzip.open(tmp_path / "lists.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    first, second = read_nbest(tmp_path / "lists.jsonl.gz")
    assert (first.speaker, first.session, first.reference) == ("7", "7-1", "x")
    assert first.hypotheses[1] == Hypothesis("y", score=-2.0, parts={"ntok": 4.0})
    assert second.session == "EN1"
    assert second.hypotheses[0].parts == {"acoustic": -19.5, "lm": -10.25}


def test_parts_are_weighed_anew():
    hypothesis = Hypothesis("a b", score=0.0, parts={"acoustic": -4.0, "lm": -6.0, "words": 2.0})
    assert hypothesis.total({"acoustic": 1.0, "lm": 0.5, "words": 0.25}) == -6.5


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "lists.jsonl:2: not JSON"),
        ("[]", "lists.jsonl:2: not an object"),
        ('{"nbest": [{"text": "x", "score": 0}]}', "lists.jsonl:2: no field 'id'"),
        ('{"id": "b", "nbest": []}', "lists.jsonl:2: no hypotheses"),
        (
            '{"id": "b", "nbest": [{"text": "x", "score": 0}, 5]}',
            "lists.jsonl:2, hypothesis 2: not an object",
        ),
        ('{"id": "b", "nbest": [{"score": 0}]}', "hypothesis 1: 'text' is missing"),
        ('{"id": "b", "nbest": [{"text": "x"}]}', "hypothesis 1: 'score' is missing"),
        ('{"id": "b", "nbest": [{"text": "x", "score": NaN}]}', "'score' is nan, not a finite number"),
        ('{"id": "b", "nbest": [{"text": "x", "score": 0, "lm": "low"}]}', "'lm' is 'low', not a finite"),
        ('{"id": "b", "nbest": [{"text": "x", "score": 0, "tokens": [1.5]}]}', "not a list of token ids"),
        ('{"id": "a", "nbest": [{"text": "x", "score": 0}]}', "lists.jsonl:2: utterance 'a' has a list"),
        ('{"id": "b", "ref": [], "nbest": [{"text": "x", "score": 0}]}', "lists.jsonl:2: 'ref' is not text"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, message):
    path = tmp_path / "lists.jsonl"
    path.write_text('{"id": "a", "nbest": [{"text": "x", "score": 0}]}\n' + line + "\n")
    with pytest.raises(ValueError) as error:
        list(read_nbest(path))
    assert message in str(error.value)


def test_a_file_cut_short_is_an_error(tmp_path):
    path = tmp_path / "lists.jsonl.gz"
    write_nbest(path, LISTS)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match="damaged"):
        list(read_nbest(path))


def test_a_score_that_is_no_number_is_not_written(tmp_path):
    with pytest.raises(ValueError):
        write_nbest(tmp_path / "x.jsonl", [NBest("a", (Hypothesis("x", score=float("inf")),))])
