"""`antiphon lm` and `antiphon rescore`, from files to tables."""

from __future__ import annotations

import pytest
import typer
from typer.testing import CliRunner

from antiphon.cli_decoding import lm_commands, load_sentence_model, rescore_command
from antiphon.decoding.hypothesis import Hypothesis, NBest, read_nbest, write_nbest

TEXT = "the cat sat\nthe dog sat\na dog sat on the mat\nthe cat ran\n" * 5


@pytest.fixture
def command(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    app = typer.Typer()
    app.add_typer(lm_commands, name="lm")
    app.command("rescore")(rescore_command)

    def run(*arguments):
        return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)

    return run


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


@pytest.fixture
def lists(tmp_path):
    """The first pass hears hats; a model of the text would not."""
    path = tmp_path / "lists.jsonl"
    write_nbest(
        path,
        [
            NBest(
                f"{session}-{i}",
                (Hypothesis(f"the {wrong} sat", score=-1.0), Hypothesis(f"the {right} sat", score=-2.0)),
                reference=f"the {right} sat",
                session=str(session),
                split="heldout" if session == 0 else "test",
            )
            for session in range(3)
            for i, (wrong, right) in enumerate([("hat", "cat"), ("fog", "dog")])
        ],
    )
    return path


@pytest.mark.parametrize("name", ["books.arpa", "books.arpa.gz", "books"])
def test_an_ngram_model_is_estimated_measured_and_used(command, text, lists, tmp_path, name):
    result = command("lm", "ngram", text, "--out", tmp_path / name, "--order", 3, "--heldout", text)
    assert result.exit_code == 0
    out = tmp_path / "again.jsonl"
    result = command("rescore", lists, "--lm", tmp_path / name, "--weight", "books=1", "--weight", "score=1",
                     "--out", out)  # fmt: skip
    assert result.exit_code == 0
    again = list(read_nbest(out))
    assert all(entry.hypotheses[0].text == entry.reference for entry in again)
    assert {*again[0].hypotheses[0].parts} == {"first_pass", "rank", "words", "books"}


def test_a_transformer_is_trained_saved_and_used(command, text, lists, tmp_path):
    result = command("lm", "train", text, "--out", tmp_path / "lm", "--subwords", 0, "--steps", 3,
                     "--batch-tokens", 64)  # fmt: skip
    assert result.exit_code == 0
    assert load_sentence_model(tmp_path / "lm").score_sentences(["the cat sat"])[0] < 0
    assert command("rescore", lists, "--lm", f"own={tmp_path / 'lm'}").exit_code == 0


def test_weights_are_found_on_one_split_and_scored_on_another(command, text, lists, tmp_path, capfd):
    command("lm", "ngram", text, "--out", tmp_path / "books", "--order", 2)
    arguments = ["rescore", lists, "--lm", tmp_path / "books", "--tune", "heldout", "--split", "test"]
    assert command(*arguments).exit_code == 0
    with pytest.raises(ValueError, match="no lists of split 'dev': there are heldout, test"):
        command(*arguments[:-1], "dev")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--weight", "words"], "--weight takes a name and a number"),
        (["--search", "words=far"], "--search takes a name and a number"),
        (["--search", "lm"], "no column 'lm'"),
    ],
)
def test_mistakes_are_named(command, lists, arguments, message):
    with pytest.raises(ValueError, match=message):
        command("rescore", lists, *arguments)


def test_counts_that_are_none_are_refused(command, text, tmp_path):
    with pytest.raises(ValueError, match="--min-counts"):
        command("lm", "ngram", text, "--out", tmp_path / "x", "--min-counts", "few")
