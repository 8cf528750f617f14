from __future__ import annotations

import json

import pytest

from antiphon.report import tables
from antiphon.report.run_folder import load_runs


def write_scores(folder, which, errors):
    """Speaker → (errors, words); characters the same, all errors substitutions."""
    counts = {
        name: {"substitutions": wrong, "deletions": 0, "insertions": 0, "length": length}
        for name, (wrong, length) in errors.items()
    }
    total = {key: sum(count[key] for count in counts.values()) for key in counts[next(iter(counts))]}
    people = {name: {"words": c, "characters": c, "num_utterances": 1} for name, c in counts.items()}
    scores = {"split": "test", "which": which, "round": 0, "num_utterances": len(counts), "words": total,
              "characters": total, "speakers": people}  # fmt: skip
    path = folder / "evaluation" / "test" / which / "scores.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(scores))


@pytest.fixture
def pair(make_run, tmp_path):
    """Two runs from the same start, by hand: a is better than b."""
    folders = [make_run(tmp_path / name, splits=()) for name in ("b", "a")]
    for folder, after in zip(
        folders, ({"x": (4, 10), "y": (2, 10)}, {"x": (3, 10), "y": (1, 10)}), strict=True
    ):
        write_scores(folder, "start", {"x": (5, 10), "y": (5, 10)})
        write_scores(folder, "best", after)
    return folders


def test_a_common_start_is_one_row_and_changes_are_against_it(pair):
    rows = tables.results(load_runs(pair), "test")
    assert [row.label for row in rows] == ["start", "b", "a"]
    assert [row.evaluation.overall.words.rate for row in rows] == [0.5, 0.3, 0.2]
    assert rows[1].change.estimate == pytest.approx(-0.4)
    assert rows[2].change.estimate == pytest.approx(-0.6)
    assert rows[1].against_first is None
    assert rows[2].against_first.estimate == pytest.approx(-0.1)
    assert (rows[2].against_first.low, rows[2].against_first.high) == pytest.approx((-0.1, -0.1))


def test_different_starts_are_named_apart(pair):
    write_scores(pair[1], "start", {"x": (6, 10), "y": (5, 10)})
    labels = [row.label for row in tables.results(load_runs(pair), "test")]
    assert labels == ["b: start", "a: start", "b", "a"]


def test_runs_on_different_speakers_are_not_compared(pair):
    write_scores(pair[1], "best", {"x": (3, 10), "z": (1, 10)})
    row = tables.results(load_runs(pair), "test")[-1]
    assert row.against_first is row.change is None
    assert {
        person.name: person.rates for person in tables.speaker_rows(tables.results(load_runs(pair), "test"))
    } == {
        "x": [0.5, 0.4, 0.3],
        "y": [0.5, 0.2, None],
        "z": [None, None, 0.1],
    }


def test_the_worst_decile_is_pooled_before_and_after(pair):
    row = tables.worst_deciles(load_runs(pair), "test")[1]
    assert (row.label, row.names, row.before, row.after, row.median) == ("a", ["x"], 0.5, 0.3, 0.2)
    assert row.num_worse == 0


def write_curve(folder, values):
    lines = [json.dumps({"round": k, "valid": {"wer": value}}) for k, value in enumerate(values)]
    (folder / "journal.jsonl").write_text("\n".join(lines) + "\n")


def test_the_common_target_is_the_weakest_best_of_the_runs_that_improved(pair):
    write_curve(pair[0], [0.5, 0.4, 0.35, 0.36])
    write_curve(pair[1], [0.5, 0.34, 0.3])
    runs = load_runs(pair)
    assert tables.common_target(runs) == 0.35
    rows = tables.results(runs, "test")[1:]
    assert [(row.rounds_to_best, row.rounds_to_target) for row in rows] == [(2, 2), (2, 1)]
    write_curve(pair[0], [0.5, 0.9])
    assert tables.common_target(load_runs(pair)) == 0.3


def test_failures_are_gathered_by_client_and_reason_most_frequent_first(make_run, tmp_path):
    folder = make_run(tmp_path / "a", rounds=0, splits=())
    lines = [
        {"round": 1, "failures": {"x": "NaN", "y": "dropped"}},
        {"round": 3, "failures": {"y": "dropped"}},
    ]
    (folder / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    rows = tables.failures(load_runs([folder]))
    assert [(row.client, row.reason, row.rounds) for row in rows] == [
        ("y", "dropped", [1, 3]),
        ("x", "NaN", [1]),
    ]


def test_only_settings_that_differ_are_listed(make_run, tmp_path):
    configs = ({"algorithm": {"name": "a", "beta": 1}}, {"algorithm": {"name": "a"}, "lr": 0.1})
    folders = [make_run(tmp_path / str(k), config=config) for k, config in enumerate(configs)]
    assert tables.differences(load_runs(folders)) == [("algorithm.beta", ["1", None]), ("lr", [None, "0.1"])]
