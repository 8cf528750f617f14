"""`antiphon lm`, `antiphon nbest` and `antiphon rescore`, from files to tables."""

from __future__ import annotations

import re

import pytest
import torch
import typer
from typer.testing import CliRunner
from world import FRONTEND, MODELS

from antiphon.cli.decoding_commands import lm_commands, nbest_command, rescore_command
from antiphon.decoding.nbest import Hypothesis, NBest, read_nbest, write_nbest
from antiphon.lm.neural_lm import load_sentence_model
from antiphon.recognizer import Blueprint, Recognizer
from antiphon.workflows import run_decoder

TEXT = "the cat sat\nthe dog sat\na dog sat on the mat\nthe cat ran\n" * 5


@pytest.fixture
def command(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    app = typer.Typer()
    app.add_typer(lm_commands, name="lm")
    app.command("rescore")(rescore_command)
    app.command("nbest")(nbest_command)

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


def test_weights_are_found_on_one_split_and_scored_on_another(command, text, lists, tmp_path, monkeypatch):
    command("lm", "ngram", text, "--out", tmp_path / "books", "--order", 2)
    arguments = ["rescore", lists, "--lm", tmp_path / "books", "--tune", "heldout", "--split", "test"]
    assert command(*arguments, "--out", tmp_path / "ranked.jsonl").exit_code == 0
    ranked = list(read_nbest(tmp_path / "ranked.jsonl"))
    assert [entry.split for entry in ranked] == [entry.split for entry in read_nbest(lists)]  # both
    assert all("books" in hypothesis.parts for entry in ranked for hypothesis in entry.hypotheses)
    monkeypatch.setattr("antiphon.decoding.rescoring.tabulate", None)  # nothing is scored before it is known
    for place in (4, 6):
        wrong = [*arguments[: place + 1], "dev", *arguments[place + 2 :]]
        with pytest.raises(ValueError, match="no lists of split 'dev': there are heldout, test"):
            command(*wrong)


def test_oracles_are_told_at_depths_that_the_lists_have(command, tmp_path):
    texts = ["a hat", "a bat", "the hat", "the bat", "hats", "the cat"]
    found = tuple(Hypothesis(text, score=-float(rank)) for rank, text in enumerate(texts))
    write_nbest(tmp_path / "lists.jsonl", [NBest("1", found, reference="the cat")])
    told = command("rescore", tmp_path / "lists.jsonl").output
    rates = dict(re.findall(r"^ ?(first pass|oracle(?: of \d+)?) +(\d+\.\d\d)", told, re.MULTILINE))
    assert rates == {"first pass": "100.00", "oracle of 5": "50.00", "oracle": "0.00"}


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


@pytest.fixture
def run_of(world, tmp_path):
    """The folder of a run, as far as a search needs it."""

    def make(name):
        recognizer = Recognizer(Blueprint(FRONTEND, MODELS[name]), world.tokens, world.runtime(name).model)
        recognizer.save(tmp_path / name / "model")
        return tmp_path / name

    yield make
    torch.use_deterministic_algorithms(False)  # a search asks for them in the whole process


@pytest.mark.parametrize("name", MODELS)
def test_any_model_is_searched_with_a_language_model(command, world, run_of, tmp_path, name):
    (tmp_path / "letters.txt").write_text("ab cd\nabc d\nde a\n" * 3)
    command("lm", "ngram", tmp_path / "letters.txt", "--out", tmp_path / "letters", "--order", 2)
    out = tmp_path / "lists.jsonl"
    result = command("nbest", run_of(name), "--out", out, "--data", world.corpus, "--beam", 3,
                     "--lm", tmp_path / "letters", "--lm-weight", 0.5, "--word-bonus", 0.25)  # fmt: skip
    assert result.exit_code == 0
    lists = list(read_nbest(out))
    assert len(lists) == len(world.store.where("test"))
    for hypothesis in (hypothesis for entry in lists for hypothesis in entry.hypotheses):
        total = hypothesis.total({"acoustic": 1.0, "lm": 0.5, "words": 0.25})
        assert hypothesis.score == pytest.approx(total, abs=1e-4)


@pytest.mark.parametrize("name", ["ctc", "las"])
def test_weights_of_a_search_are_found_on_another_split(command, world, run_of, tmp_path, name):
    (tmp_path / "letters.txt").write_text("ab cd\nabc d\nde a\n" * 3)
    command("lm", "ngram", tmp_path / "letters.txt", "--out", tmp_path / "letters", "--order", 2)
    out = tmp_path / "lists.jsonl"
    result = command("nbest", run_of(name), "--out", out, "--data", world.corpus, "--beam", 2,
                     "--lm", tmp_path / "letters", "--tune", "heldout")  # fmt: skip
    trials = re.findall(r"(\d+) errors: lm (\S+), word bonus ([^\s,]+)(?:, coverage (\S+))?\n", result.output)
    found = re.search(r"heldout: lm (\S+), word bonus ([^\s,]+)(?:, coverage (\S+))?\n", result.output)
    assert found is not None
    assert len(trials) > 4
    fewest = min(int(errors) for errors, *_ in trials)
    assert found.groups("") in [tuple(weights) for errors, *weights in trials if int(errors) == fewest]
    weights = dict(zip(("lm", "words", "coverage"), (float(w or 0) for w in found.groups()), strict=True))
    for hypothesis in (hypothesis for entry in read_nbest(out) for hypothesis in entry.hypotheses):
        used = {name: weight for name, weight in weights.items() if weight}
        assert hypothesis.score == pytest.approx(hypothesis.total({"acoustic": 1.0, **used}), abs=1e-4)


@pytest.mark.parametrize("name", ["ctc", "las"])
def test_processes_that_share_the_speech_find_the_same(command, world, run_of, tmp_path, name, monkeypatch):
    monkeypatch.setattr(run_decoder, "PART", 2)
    (tmp_path / "letters.txt").write_text("ab cd\nabc d\nde a\n" * 3)
    command("lm", "ngram", tmp_path / "letters.txt", "--out", tmp_path / "letters", "--order", 2)
    arguments = ["nbest", run_of(name), "--data", world.corpus, "--beam", 3, "--lm", tmp_path / "letters"]
    for workers in (1, 2):
        out = tmp_path / f"{workers}.jsonl"
        assert command(*arguments, "--out", out, "--workers", workers).exit_code == 0
    alone, shared = (list(read_nbest(tmp_path / f"{workers}.jsonl")) for workers in (1, 2))
    assert [entry.id for entry in alone] == [entry.id for entry in shared]
    for one, other in zip(alone, shared, strict=True):
        assert [h.text for h in one.hypotheses] == [h.text for h in other.hypotheses]
        scores = [[h.score for h in entry.hypotheses] for entry in (one, other)]
        assert scores[0] == pytest.approx(scores[1], abs=1e-4)


def test_other_recognisers_hear_the_texts_of_two_searches(command, world, run_of, tmp_path):
    for name in ("ctc", "transducer"):
        arguments = ["nbest", run_of(name), "--out", tmp_path / f"{name}.jsonl", "--data", world.corpus]
        assert command(*arguments, "--beam", 3).exit_code == 0
    paths = [tmp_path / "ctc.jsonl", tmp_path / "transducer.jsonl"]
    runs = [part for name in ("ctc", "transducer") for part in ("--recogniser", tmp_path / name)]
    out = tmp_path / "both.jsonl"
    weights = ["--weight", "ctc=1", "--weight", "transducer=0.5"]
    result = command("rescore", *paths, *runs, "--data", world.corpus, *weights, "--out", out)
    assert result.exit_code == 0
    single = [{entry.id: {h.text for h in entry.hypotheses} for entry in read_nbest(path)} for path in paths]
    for entry in read_nbest(out):
        assert {h.text for h in entry.hypotheses} == single[0][entry.id] | single[1][entry.id]
        for hypothesis in entry.hypotheses:
            expected = hypothesis.parts["ctc"] + 0.5 * hypothesis.parts["transducer"]
            assert hypothesis.score == pytest.approx(expected, abs=1e-6)
    write_nbest(paths[0], [NBest("elsewhere", (Hypothesis("a"),), reference="a")])
    with pytest.raises(ValueError, match="no speech of utterance 'elsewhere'"):
        command("rescore", paths[0], *runs[:2], "--data", world.corpus)


def test_penalties_of_an_attention_model_are_options(command, world, run_of, tmp_path):
    out, run = tmp_path / "lists.jsonl", run_of("las")
    arguments = ["nbest", run, "--out", out, "--data", world.corpus, "--beam", 3]
    result = command(*arguments, "--length-normalisation", 0.5, "--token-bonus", 0.25, "--coverage", 0.125)
    assert result.exit_code == 0
    for entry in read_nbest(out):
        for hypothesis in entry.hypotheses:
            parts = hypothesis.parts
            normalised = parts["acoustic"] / ((5 + parts["length"]) / 6) ** 0.5
            expected = normalised + 0.25 * parts["length"] + 0.125 * parts["coverage"]
            assert hypothesis.score == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("option", ["--length-normalisation", "--token-bonus", "--coverage"])
def test_penalties_are_refused_where_the_model_has_no_use_for_them(command, world, run_of, tmp_path, option):
    with pytest.raises(ValueError, match="a Ctc has no use for them"):
        command("nbest", run_of("ctc"), "--out", tmp_path / "x", "--data", world.corpus, option, 0.5)
