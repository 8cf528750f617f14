from __future__ import annotations

import json

import numpy as np
import pytest

from antiphon.report.run_folder import RunFolder, load_runs, runs_of


def test_a_folder_is_read_whole(make_run, tmp_path):
    run = RunFolder.load(make_run(tmp_path / "fedavg", rounds=6, validate_every=2, splits=("test", "dev")))
    assert run.label == "fedavg"
    assert (run.num_finished, run.num_planned, run.num_clients, run.cohort_size) == (6, 6, 10, 4)
    assert run.validation["wer"][0].tolist() == [0, 2, 4, 6]
    assert set(run.evaluations) == {"test", "dev"}
    start = run.evaluations["test"]["start"]
    assert start.overall.words.total == sum(person.words.total for person in start.speakers.values())
    assert run.total_seconds == pytest.approx(sum(entry["seconds"] for entry in run.clock))
    assert run.total_bytes == sum(e["bytes_down"] + e["bytes_up"] for e in run.trained)


def test_speech_of_a_client_counts_once(make_run, tmp_path):
    run = RunFolder.load(make_run(tmp_path / "a", rounds=9, num_clients=2, cohort_size=2, failure_rate=0))
    held = {name: stats["seconds"] for entry in run.trained for name, stats in entry["clients"].items()}
    assert run.speech_seconds == pytest.approx(sum(held.values()))


def test_a_folder_that_is_no_run_is_refused_by_name(tmp_path):
    with pytest.raises(ValueError, match="is not a run folder"):
        RunFolder.load(tmp_path)


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("run.json", "{", r"run\.json is not JSON"),
        ("run.json", "[]", r"run\.json is not a JSON object"),
        ("run.json", '{"format": "antiphon-run/9"}', "has format 'antiphon-run/9'"),
        (
            "run.json",
            '{"format": "antiphon-run/1", "name": "x"}',
            r"run\.json is damaged \(recipe: it is",
        ),
        ("journal.jsonl", '{"round": 1}\n}\n', r"journal\.jsonl: line 2"),
        ("journal.jsonl", '{"loss": 1}\n', r"journal\.jsonl: line 1 is damaged \(round: it is missing\)"),
        ("clock.jsonl", "nonsense\n", r"clock\.jsonl: line 1"),
        ("evaluation/test/best/scores.json", "{}", r"best.scores\.json is damaged \(split: it is missing\)"),
        ("evaluation/test/best/scores.json", "", r"best.scores\.json is not JSON"),
    ],
)
def test_a_damaged_file_is_named(make_run, tmp_path, file, text, message):
    folder = make_run(tmp_path / "a")
    (folder / file).write_text(text)
    with pytest.raises(ValueError, match=message):
        RunFolder.load(folder)


def test_a_run_that_has_just_begun_has_notes_and_no_rounds(make_run, tmp_path):
    folder = make_run(tmp_path / "a", rounds=0, splits=())
    (folder / "journal.jsonl").unlink()
    (folder / "clock.jsonl").write_text('{"round": 1, "sec')
    run = RunFolder.load(folder)
    assert run.num_finished == 0
    assert run.total_bytes is run.speech_seconds is None
    assert len(run.notes) == 2


def test_a_loss_that_is_null_is_no_point_of_a_curve(make_run, tmp_path):
    folder = make_run(tmp_path / "a", rounds=1, validate_every=0)
    with (folder / "journal.jsonl").open("a") as file:
        file.write(json.dumps({"round": 2, "valid": {"wer": None, "cer": 0.5}}) + "\n")
    validation = RunFolder.load(folder).validation
    assert len(validation["wer"][0]) == 0
    np.testing.assert_array_equal(validation["cer"], ([2], [0.5]))


def test_an_experiment_is_its_runs_in_order_those_not_begun_left_out(make_run, tmp_path):
    for name in ("b", "a"):
        make_run(tmp_path / name)
    about = {"format": "antiphon-experiment/1", "runs": ["b", "a", "later"], "config": {}}
    (tmp_path / "experiment.json").write_text(json.dumps(about))
    assert [run.label for run in load_runs([tmp_path])] == ["b", "a"]
    (tmp_path / "experiment.json").write_text(json.dumps({**about, "runs": ["later"]}))
    with pytest.raises(ValueError, match="none of the runs"):
        runs_of(tmp_path)


def test_runs_of_one_name_get_labels_that_differ(make_run, tmp_path):
    paths = [make_run(tmp_path / where / "fedavg") for where in ("one", "two")]
    labels = [run.label for run in load_runs([*paths, paths[0]])]
    assert labels[:2] == ["one/fedavg", "two/fedavg"]
    assert len(set(labels)) == 3
