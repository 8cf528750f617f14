"""`antiphon personalize` on lists small enough to check by hand."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from antiphon.cli import terminal
from antiphon.cli.personalisation_commands import personalize_command
from antiphon.decoding.nbest import Hypothesis, NBest, write_nbest
from antiphon.lm.arpa import save_ngram
from antiphon.lm.kneser_ney import estimate

TEXT = "the cat sat\nthe dog sat\na dog sat on the mat\nthe cat ran\n" * 5


@pytest.fixture
def command(monkeypatch):
    monkeypatch.setattr(terminal.console, "_width", 200)  # the variable COLUMNS is read once
    app = typer.Typer()
    app.command()(personalize_command)
    return lambda *arguments: CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)


@pytest.fixture
def files(tmp_path):
    """Every meeting has a word of its own, heard right at first and then twice as "dog"."""
    (tmp_path / "text.txt").write_text(TEXT)
    save_ngram(estimate(TEXT.splitlines(), order=2), tmp_path / "lm.arpa")
    lists = []
    for split, word in (("heldout", "fog"), ("heldout", "bog"), ("test", "log"), ("test", "hog")):
        clear = [Hypothesis(f"{word} the {word}", score=-1.0, parts={"lm": -5.0})]
        unclear = [Hypothesis(f"the {heard} sat", score=-1.0 - 0.1 * rank, parts={"lm": -5.0})
                   for rank, heard in enumerate(("dog", word))]  # fmt: skip
        for number, hypotheses in enumerate((clear, unclear, unclear)):
            said = hypotheses[-1].text
            lists.append(NBest(f"{word}{number}", tuple(hypotheses), said, session=word, split=split))
    write_nbest(tmp_path / "lists.jsonl", lists)
    return tmp_path


def options(files, *more):
    model = f"own={files / 'lm.arpa'}"
    weights = ("--weight", "own=1", "--weight", "score=1")
    splits = ("--tune", "heldout", "--split", "test")
    return (
        files / "lists.jsonl",
        "--background",
        files / "text.txt",
        "--lm",
        model,
        *weights,
        *splits,
        *more,
    )


def test_meetings_learn_their_words(command, files):
    result = command(*options(files, "--rounds", "1,2", "--out", files / "out"))
    assert result.exit_code == 0
    pattern = r"^ ?(background model|T = \d|oracle) +(\d+\.\d\d) \["
    rates = {name: float(rate) for name, rate in re.findall(pattern, result.output, re.MULTILINE)}
    # Two of nine words of each meeting are wrong; with T = 1 only the third list is decoded knowing the word.
    assert rates["background model"] == pytest.approx(100 * 2 / 9, abs=0.01)
    assert rates["T = 1"] == pytest.approx(100 * 1 / 9, abs=0.01)
    assert rates["T = 2"] == rates["oracle"] == 0.0
    assert "2 clients win, 0 lose, 0 stay" in result.output
    found = json.loads((files / "out" / "results.json").read_text())
    assert found["clients"]["log"] == {"words": 9, "before": 2, "after": 0}
    assert (files / "out" / "clients.svg").read_text().startswith("<svg")


def test_agreement_is_noted_with_the_results(command, files):
    result = command(*options(files, "--rounds", "2", "--agreement", "4", "--out", files / "out"))
    assert result.exit_code == 0
    found = json.loads((files / "out" / "results.json").read_text())
    assert found["agreement"] == 4
    assert found["clients"]["log"]["after"] == 0  # its word stood in the only hypothesis of its first list


def test_a_part_of_the_lists_can_be_what_is_adapted(command, files):
    result = command(files / "lists.jsonl", "--background", files / "text.txt", "--adapt", "lm", "--weight",
    "lm=1",
                     "--weight", "score=1", "--rounds", "2", "--every-utterance")  # fmt: skip
    assert result.exit_code == 0
    assert "4 clients win" in result.output


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--alpha", "much"), "--alpha takes numbers"),
        (("--adapt", "nothing"), "no column 'nothing'"),
        (("--split", "train"), "no lists of split 'train'"),
        (("--client", "colour"), "not 'colour'"),
        (("--rounds", "-1"), "rounds and cohort"),
        (("--rounds", "1.5"), "--rounds takes whole numbers"),
    ],
)
def test_what_cannot_be_is_refused_in_words(command, files, more, message):
    with pytest.raises(ValueError, match=message):
        command(*options(files, *more))


def test_lists_without_scores_are_refused_by_their_line(command, files):
    (files / "bad.jsonl").write_text('{"id": "1", "meeting": "m", "ref": "a", "hyps": [{"text": "a"}]}\n')
    with pytest.raises(ValueError, match=r"bad\.jsonl:1, hypothesis 1: 'score' is missing"):
        command(files / "bad.jsonl", "--background", files / "text.txt", "--adapt", "score")


def test_noise_has_a_table_with_the_papers_claim_and_the_honest_totals(command, files):
    noise = ("--private", "paper=1000", "--private", "gaussian=2", "--private", "laplace=0.5", "--cap", "2")
    mixed = ("--alpha", "0.25", "--beta", "0.5", "--rounds", "2", "--noise-seeds", "2")
    result = command(*options(files, *mixed, *noise, "--out", files / "out"))
    assert result.exit_code == 0
    found = json.loads((files / "out" / "private.json").read_text())["rows"]
    assert [(row["name"], row["epsilon"], len(row["rates"])) for row in found] == [
        ("paper", 1000.0, 2),
        ("gaussian", 2.0, 2),
        ("laplace", 0.5, 2),
    ]
    assert found[0]["rates"] == [0.0, 0.0]  # noise of a thousandth of a word, rounded up to a step
    totals = {
        row["name"]: {c["unit"]: c["epsilon"] for c in row["claims"] if c["composition"] == "renyi"}
        for row in found
    }
    assert "one client" not in totals["paper"]  # nothing bounds what a client adds
    assert totals["gaussian"]["one client"] == pytest.approx(2.0, rel=0.01)
    assert re.search(r"laplace, ε 0\.5 +2 .* 0\.5 *$", result.output, re.MULTILINE)
    assert re.search(r"paper, ε 1000 +2 .* ∞ *$", result.output, re.MULTILINE)


def test_a_population_divides_the_noise_and_not_the_claim(command, files):
    noise = ("--private", "gaussian=2", "--cap", "2", "--population", "1,1000000")
    command(*options(files, "--rounds", "2", *noise, "--noise-seeds", "1", "--out", files / "out"))
    one, many = json.loads((files / "out" / "private.json").read_text())["rows"]
    assert many["rates"] == [0.0]
    assert many["claims"][-1]["epsilon"] == pytest.approx(one["claims"][-1]["epsilon"], rel=0.02)


@pytest.mark.parametrize("text", ["salt=1", "paper", "laplace=much"])
def test_unknown_noise_is_refused(command, files, text):
    with pytest.raises(ValueError, match="--private"):
        command(*options(files, "--rounds", "2", "--private", text))


def test_clients_of_before_cost_one_more_release(command, files):
    noise = ("--private", "gaussian=2", "--private", "laplace=2", "--earlier", "heldout")
    result = command(*options(files, "--rounds", "2", *noise, "--noise-seeds", "1", "--out", files / "out"))
    assert result.exit_code == 0  # a budget for two releases would have stopped the third
    rows = json.loads((files / "out" / "private.json").read_text())["rows"]
    assert {claim["rounds"] for row in rows for claim in row["claims"]} == {1, 3}
    assert re.search(r"gaussian, ε 2 +4 ", result.output)


def test_what_is_to_be_adapted_has_to_be_named_and_to_weigh_something(command, files):
    with pytest.raises(ValueError, match="nothing to adapt"):
        command(files / "lists.jsonl", "--background", files / "text.txt")
    result = command(files / "lists.jsonl", "--background", files / "text.txt", "--adapt", "lm")
    assert "lm has no weight: adapting it changes nothing" in result.output
    assert "settings are found on lists that are scored" in result.output


def test_rounds_in_a_folder_are_continued_only_if_asked_for(command, files):
    arguments = options(files, "--rounds", "1,2", "--out", files / "out")
    assert command(*arguments).exit_code == 0
    results = (files / "out" / "results.json").read_bytes()
    with pytest.raises(ValueError, match=r"rounds exists: continue its rounds \(--resume\)"):
        command(*arguments)
    (files / "out" / "results.json").unlink()
    assert command(*arguments, "--resume").exit_code == 0
    assert (files / "out" / "results.json").read_bytes() == results
    with pytest.raises(ValueError, match="no folder to resume from"):
        command(*options(files, "--rounds", "2", "--resume"))


def test_two_processes_give_the_results_and_the_journals_of_one(command, files):
    def words(out):
        return options(files, "--rounds", "1,2", "--out", out, "--private", "gaussian=2")

    def written(out):
        journals = {path.relative_to(out): path.read_bytes() for path in out.rglob("journal.jsonl")}
        return journals, [(out / name).read_bytes() for name in ("results.json", "private.json")]

    assert command(*words(files / "one")).exit_code == 0
    together = map(str, ("personalize", *words(files / "two"), "--workers", "2"))
    program = [sys.executable, "-m", "antiphon", *together]
    done = subprocess.run(program, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    one, two = written(files / "one"), written(files / "two")
    assert one[0]
    assert one == two


def test_under_torchrun_rounds_are_continued_only_if_asked_for(files):
    arguments = ("personalize", *options(files, "--rounds", "1,2", "--out", files / "out"))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]

    def run(*more):
        command = [*torchrun, "-m", "antiphon", *map(str, arguments), *more]
        return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)

    first, refused = run(), run()
    assert first.returncode == 0, first.stdout + first.stderr
    results = (files / "out" / "results.json").read_bytes()
    assert refused.returncode != 0
    assert refused.stderr.count("rounds exists: continue its rounds (--resume)") == 1
    assert run("--resume").returncode == 0
    assert (files / "out" / "results.json").read_bytes() == results


def test_secure_noise_is_for_one_process(command, files):
    secure = ("--private", "gaussian=2", "--secure", "--workers", "2")
    with pytest.raises(ValueError, match="secure noise is drawn by one process"):
        command(*options(files, "--rounds", "2", *secure))
