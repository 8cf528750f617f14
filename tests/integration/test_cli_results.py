"""What a run on the command line leaves behind, and the commands that look at it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from command import SETTINGS, Antiphon
from world import tones, write_wav

from antiphon.recognizer import Recognizer
from antiphon.scoring.trn import read_trn

# --- What a run leaves behind ---------------------------------------------------------------------


def test_an_experiment_leaves_runs_a_page_and_figures(finished: Path) -> None:
    about = json.loads((finished / "experiment.json").read_text())
    assert about["runs"] == ["seed", "fedavg"]
    page, figures = (finished / "report.html").read_text(), (finished / "RESULTS.md").read_text()
    assert "WER" in page
    assert "WER" in figures
    for run in about["runs"]:
        assert run in figures
        assert (finished / run / "model" / "model.safetensors").exists()
        assert list((finished / run / "tensorboard").iterdir())


def test_training_helps_even_here(finished: Path) -> None:
    def wrong(run: str, which: str) -> float:
        words = json.loads((finished / run / "evaluation" / "test" / which / "scores.json").read_text())[
            "words"
        ]
        return words["substitutions"] + words["deletions"] + words["insertions"]

    assert wrong("seed", "best") < wrong("seed", "start")
    assert wrong("fedavg", "start") == wrong("seed", "best")


def test_run_json_says_where_the_result_comes_from(finished: Path) -> None:
    about = json.loads((finished / "fedavg" / "run.json").read_text())
    assert about["started_from"] == "seed"
    assert about["num_clients"] == 4
    assert about["cohort_size"] == 3
    assert {"antiphon", "torch", "python"} <= about["versions"].keys()
    for setting in SETTINGS:
        path, _, value = setting.removeprefix("runs.fedavg.").partition("=")
        if not path.startswith("runs."):
            assert str(look_up(about["config"], path.split("."))) == value, path


def look_up(tree: object, keys: list[str]) -> object:
    """A value by its path, passing through the names of choices."""
    for key in keys:
        assert isinstance(tree, dict)
        tree = tree[key] if key in tree else next(iter(tree.values()))[key]
    return tree


# --- Commands that look at it ---------------------------------------------------------------------


def test_evaluate_scores_another_split(antiphon: Antiphon, finished: Path) -> None:
    done = antiphon("evaluate", finished / "fedavg", "--split", "heldout")
    assert done.code == 0, done.output
    assert "WER %" in done.output
    folder = finished / "fedavg" / "evaluation" / "heldout" / "best"
    scores = json.loads((folder / "scores.json").read_text())
    journal = (finished / "fedavg" / "journal.jsonl").read_text().splitlines()
    best = json.loads(journal[scores["round"]])["valid"]
    words = scores["words"]
    wrong = words["substitutions"] + words["deletions"] + words["insertions"]
    assert wrong / words["length"] == pytest.approx(best["wer"])
    assert len(read_trn(folder / "hyp.trn")) == scores["num_utterances"] == 9


def test_evaluate_of_an_unfinished_run_says_so(antiphon: Antiphon, tmp_path: Path) -> None:
    done = antiphon("evaluate", tmp_path)
    assert done.code == 2
    assert "holds no model" in done.output


def test_transcribe_prints_what_it_hears(antiphon: Antiphon, finished: Path, tmp_path: Path) -> None:
    samples = tones("abc de", 1.0, np.random.default_rng(0))
    wav = write_wav(tmp_path / "speech.wav", samples)
    done = antiphon("transcribe", finished / "fedavg", wav)
    assert done.code == 0, done.output
    heard = Recognizer.load(finished / "fedavg").transcribe(samples / np.float32(32768))
    assert done.output == heard + "\n"
    assert heard


def test_transcribe_goes_on_after_a_file_it_cannot_read(
    antiphon: Antiphon, finished: Path, tmp_path: Path
) -> None:
    good = write_wav(tmp_path / "good.wav", tones("abc", 1.0, np.random.default_rng(0)))
    bad = tmp_path / "bad.wav"
    bad.write_bytes(b"no sound")
    done = antiphon("transcribe", finished / "seed", bad, tmp_path / "missing.wav", good)
    assert done.code == 1
    assert f"{good}\t" in done.output
    assert str(bad) in done.output.replace("\n", "")
    assert "missing.wav" in done.output


def test_a_comparison_replaces_no_file_that_antiphon_did_not_write(
    antiphon: Antiphon, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    own = tmp_path / "RESULTS.md"
    own.write_text("# Results of my thesis\n")
    runs = (finished / "seed", finished / "fedavg")
    for _ in range(2):  # its own files are replaced
        done = antiphon("report", *runs, "--out", "comparison.html")
        assert (done.code, done.output) == (0, "wrote comparison.html and comparison.md\n")
    assert "WER" in (tmp_path / "comparison.md").read_text()
    assert own.read_text() == "# Results of my thesis\n"
    done = antiphon("report", *runs)  # report.html would have its figures in RESULTS.md
    assert done.code == 2
    assert "RESULTS.md exists, and antiphon did not write it: name another page with --out" in done.output
    assert own.read_text() == "# Results of my thesis\n"
    (tmp_path / "page.html").write_text("<html>my page</html>")
    done = antiphon("report", *runs, "--out", "page.html")
    assert done.code == 2
    assert "such as --out page-2.html" in done.output.replace("\n", " ")
    assert (tmp_path / "page.html").read_text() == "<html>my page</html>"
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "RESULTS.md", "comparison.html", "comparison.md", "page.html",
    ]  # fmt: skip


def test_figures_that_an_older_version_wrote_are_replaced(
    antiphon: Antiphon, finished: Path, tmp_path: Path
) -> None:
    (tmp_path / "RESULTS.md").write_text("# Results: seed\n\n## What was run\n")
    done = antiphon("report", finished / "seed", "--out", tmp_path)
    assert done.code == 0, done.output
    assert "WER" in (tmp_path / "RESULTS.md").read_text()


def test_report_of_one_run_and_of_several(antiphon: Antiphon, finished: Path, tmp_path: Path) -> None:
    done = antiphon("report", finished / "fedavg", "--out", tmp_path / "one" / "page.html")
    assert done.code == 0, done.output
    assert "WER" in (tmp_path / "one" / "page.html").read_text()
    several = antiphon("report", finished / "seed", finished / "fedavg", "--out", tmp_path / "two")
    assert several.code == 0, several.output
    figures = (tmp_path / "two" / "RESULTS.md").read_text()
    assert "WER" in figures
    assert "seed" in figures
    assert "fedavg" in figures
    assert "http://" not in (tmp_path / "two" / "report.html").read_text().replace("http://www.w3.org", "")
