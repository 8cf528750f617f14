"""`antiphon compare` and `antiphon alignments`, as typed, on tiny run folders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from antiphon.cli.scoring_commands import alignments_command, compare_command
from antiphon.scoring.trn import write_trn

SPEAKERS, UTTERANCES = range(12), range(6)
SAID = "the cat sat on the mat"


@pytest.fixture
def command(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    app = typer.Typer()
    app.command("compare")(compare_command)
    app.command("alignments")(alignments_command)

    def run(*arguments):
        return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)

    return run


def write_run(folder: Path, wrong: int) -> Path:
    """In `wrong` of every speaker's utterances the cat is taken for a hat, and the mat is missed."""
    target = folder / "evaluation" / "test" / "best"
    target.mkdir(parents=True)
    keys = [(speaker, place) for speaker in SPEAKERS for place in UTTERANCES]
    write_trn(target / "ref.trn", [(SAID, f"s{s}", f"u{u}") for s, u in keys])
    heard = {True: "the hat sat on the", False: SAID}
    write_trn(target / "hyp.trn", [(heard[u < wrong], f"s{s}", f"u{u}") for s, u in keys])
    (target / "scores.json").write_text(json.dumps({"normalisation": {"lower_case": False}}))
    return folder


@pytest.fixture
def runs(tmp_path):
    return write_run(tmp_path / "seed", 5), write_run(tmp_path / "dga", 2)


def test_compare_says_that_a_difference_is_real_and_writes_why(command, runs, tmp_path):
    done = command("compare", *runs, "--out", tmp_path / "comparison.json")
    assert done.exit_code == 0
    assert "72 utterances that both have" in done.output
    assert "text       as is\n" in done.output
    # 12 speakers × 5 (and 2) utterances with a substitution and a deletion, of 12 × 6 × 6 words;
    # 5 of 22 characters of a wrong utterance.
    assert [line.split() for line in done.output.splitlines() if "/0" in line] == [
        ["seed", "432", "27.78", "60/60/0", "18.94"],
        ["dga", "432", "11.11", "24/24/0", "7.58"],
    ]
    # Each wrong utterance is two segments, "sat on the" between them.
    assert "MAPSSWE    p < 0.0001 over 120 segments: dga is better, more than by chance" in done.output
    assert "dga − seed = −16.67 [−16.67, −16.67] points over 12 speakers" in done.output
    assert "The difference is real: dga makes fewer errors than seed." in done.output
    written = json.loads((tmp_path / "comparison.json").read_text())
    assert written["verdict"] == "The difference is real: dga makes fewer errors than seed."
    assert written["runs"][1]["words"]["deletions"] == 24


def test_compare_takes_files_and_a_reference(command, runs, tmp_path):
    files = [run / "evaluation" / "test" / "best" / "hyp.trn" for run in runs]
    reference = files[0].with_name("ref.trn").rename(tmp_path / "said.trn")
    again = [file.rename(tmp_path / f"{run.name}.trn") for file, run in zip(files, runs, strict=True)]
    done = command("compare", *again, "--ref", reference)
    assert done.exit_code == 0
    assert "The difference is real: dga.trn makes fewer errors than seed.trn." in done.output


def test_compare_counts_what_only_one_has(command, runs):
    hypothesis = runs[1] / "evaluation" / "test" / "best" / "hyp.trn"
    hypothesis.write_text("".join(hypothesis.read_text().splitlines(keepends=True)[1:]))
    assert "left out: 1 utterance that only seed has" in command("compare", *runs).output


def test_compare_refuses_different_normalisation_until_both_are_scored_alike(command, runs):
    scores = runs[0] / "evaluation" / "test" / "best" / "scores.json"
    scores.write_text(json.dumps({"normalisation": {"lower_case": True}}))
    with pytest.raises(ValueError, match="different normalisation"):
        command("compare", *runs)
    done = command("compare", *runs, "--normalise", "nfc", "--normalise", "lower_case")
    assert "text       nfc, lower_case\n" in done.output


def test_alignments_lists_utterances_and_the_words_confused_most(command, runs):
    done = command("alignments", runs[1])
    folder = runs[1] / "evaluation" / "test" / "best"
    assert done.exit_code == 0
    rows = [line.split() for line in done.output.splitlines()]
    assert ["s3", "36", "11.11", "2/2/0", "7.58"] in rows
    assert ["all", "432", "11.11", "24/24/0", "7.58"] in rows
    assert ["24", "cat", "→", "hat", "24", "mat"] in rows
    listing = (folder / "alignments.txt").read_text()
    assert (
        "REF:  the CAT sat on the MAT \nHYP:  the HAT sat on the *** \nEval:     S              D   \n"
        in listing
    )
    assert "   1:   24  ->  cat ==> hat\n" in (folder / "confusions.txt").read_text()


def test_alignments_goes_where_it_is_told_and_shows_as_much_as_asked(command, runs, tmp_path):
    done = command("alignments", runs[1], "--out", tmp_path / "there", "--top", "0")
    assert (tmp_path / "there" / "alignments.txt").exists()
    assert "cat → hat" not in done.output
