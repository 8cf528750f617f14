from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from antiphon.scoring.normalisation import Normalisation
from antiphon.scoring.trn import write_trn
from antiphon.workflows.compare_runs import Transcripts, read_transcripts, shared_normalisation
from antiphon.workflows.compare_runs import compare_transcripts as compare

LOWER = Normalisation(lower_case=True)
SAID = {("a", "1"): "one two three", ("a", "2"): "four five", ("b", "1"): "six"}


def write(folder: Path, heard: dict, said: dict = SAID, recorded: Normalisation | None = None) -> Path:
    folder.mkdir(parents=True)
    write_trn(folder / "ref.trn", [(text, *key) for key, text in said.items()])
    write_trn(folder / "hyp.trn", [(text, *key) for key, text in heard.items()])
    if recorded is not None:
        (folder / "scores.json").write_text(json.dumps({"normalisation": asdict(recorded)}))
    return folder


def read(source: Path, reference: Path | None = None) -> Transcripts:
    return read_transcripts(source, "test", "best", reference)


def test_a_run_an_evaluation_and_a_file_are_read_alike(tmp_path):
    evaluation = write(tmp_path / "dga" / "evaluation" / "test" / "best", SAID)
    rows = {key: (text, text) for key, text in SAID.items()}
    for source in (tmp_path / "dga", evaluation, evaluation / "hyp.trn"):
        found = read(source)
        assert (found.rows, found.folder, found.normalisation) == (rows, evaluation, None)


def test_a_file_takes_the_reference_given(tmp_path):
    folder = write(tmp_path / "x", SAID)
    reference = (folder / "ref.trn").rename(tmp_path / "said.trn")
    assert read(folder / "hyp.trn", reference).rows[("b", "1")] == ("six", "six")
    with pytest.raises(ValueError, match="name one with --ref"):
        read(folder / "hyp.trn")


def test_only_shared_utterances_are_compared_and_the_rest_is_counted(tmp_path):
    one = read(write(tmp_path / "one", {("a", "1"): "one two", ("a", "2"): "four five"}))
    other = read(write(tmp_path / "other", {("a", "1"): "one two three", ("b", "1"): "six"}))
    found = compare(one, other, Normalisation())
    assert found.left_out == (1, 1)
    assert [total.num_utterances for total in found.totals] == [1, 1]
    assert [total.words.total for total in found.totals] == [1, 0]
    assert (found.segments.num_segments, found.segments.mean) == (1, -1.0)


def test_another_reference_is_refused_by_the_name_of_its_utterance(tmp_path):
    one = read(write(tmp_path / "one", SAID))
    other = read(write(tmp_path / "other", SAID, {**SAID, ("a", "2"): "Four five"}))
    with pytest.raises(ValueError, match=r"utterance '2' of speaker 'a' has another reference in .*other"):
        compare(one, other, Normalisation())
    assert compare(one, other, LOWER).totals[0].words.total == 0


def test_nothing_in_common_is_refused(tmp_path):
    one = read(write(tmp_path / "one", {("a", "1"): "one"}))
    other = read(write(tmp_path / "other", {("b", "1"): "six"}))
    with pytest.raises(ValueError, match="have no utterance in common"):
        compare(one, other, Normalisation())


@pytest.mark.parametrize(
    ("heard", "message"),
    [
        ("one (a-1)\none (a-1)\n", "utterance '1' of 'a' is there twice"),
        ("one (a-9)\n", "utterance '9' of 'a' is not in .*ref.trn"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(tmp_path, heard, message):
    folder = write(tmp_path / "one", SAID)
    (folder / "hyp.trn").write_text(heard)
    with pytest.raises(ValueError, match=message):
        read(folder)


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"nothing is no run, evaluation folder or \.trn file"):
        read(tmp_path / "nothing")


def test_runs_scored_after_different_normalisation_are_refused(tmp_path):
    one = read(write(tmp_path / "one", SAID, recorded=LOWER))
    other = read(write(tmp_path / "other", SAID, recorded=Normalisation()))
    with pytest.raises(ValueError, match=r"different normalisation: .*one lower_case, .*other as is"):
        shared_normalisation(one, other)


def test_where_one_says_nothing_the_other_decides(tmp_path):
    one = read(write(tmp_path / "one", SAID, recorded=LOWER))
    other = read(write(tmp_path / "other", SAID))
    assert shared_normalisation(one, other) == shared_normalisation(other, one) == LOWER
    assert shared_normalisation(other, other) == Normalisation()


@pytest.mark.parametrize(
    ("first", "second", "names"),
    [
        ("out/seed", "out/dga", ("seed", "dga")),
        ("out/dga", "twin/dga", ("out/dga", "twin/dga")),
        ("seed/evaluation/test/best", "dga/evaluation/test/best", ("seed", "dga")),
        ("dga/evaluation/test/start", "dga/evaluation/test/best", ("start", "best")),
    ],
)
def test_names_are_as_short_as_tells_them_apart(tmp_path, first, second, names):
    one, other = (read(write(tmp_path / folder, SAID)) for folder in (first, second))
    assert compare(one, other, Normalisation()).names == names


def test_the_comparison_as_json_holds_everything_said(tmp_path):
    one, other = (read(write(tmp_path / name, SAID)) for name in ("one", "other"))
    found = json.loads(json.dumps(compare(one, other, LOWER).to_json()))
    assert found["format"] == "antiphon-comparison/1"
    assert found["normalisation"] == asdict(LOWER)
    assert [run["name"] for run in found["runs"]] == ["one", "other"]
    assert found["matched_pairs"]["p"] == 1.0
    assert found["bootstrap"]["difference"] == {"estimate": 0.0, "low": 0.0, "high": 0.0}
    assert found["verdict"].startswith("There is no difference")
