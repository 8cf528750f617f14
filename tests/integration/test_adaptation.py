"""`antiphon adapt`: from text files and a trained model to an adapted one that everything loads."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from command import SETTINGS, Antiphon, Done
from safetensors.torch import load_file
from world import World

from antiphon import config
from antiphon.data.corpus import Corpus
from antiphon.experiment.runner import run_experiment
from antiphon.recipes import recipe

SPEAK = ["engines=espeak", "num_voices=3", "takes=1", "rehearse_hours=0.002", "valid_hours=0.001"]
SMALL = [
    "runs.*.rounds.valid_every=1",
    "runs.adapted.algorithm.local.steps=2",
    "runs.adapted.algorithm.inner.local.batch_seconds=4",
]


@pytest.fixture(scope="module")
def seed(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("espeakng_loader")
    pytest.importorskip("soxr")
    out = tmp_path_factory.mktemp("adaptation") / "out"
    tiny = config.override(recipe("fedavg"), [*SETTINGS, "runs.seed.rounds.total=1"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("antiphon.experiment.runner.write_report", lambda *args: None)
        run_experiment(replace(tiny, runs={"seed": tiny.runs["seed"]}), world.corpus, out)
    torch.use_deterministic_algorithms(False)
    return out / "seed"


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """Two sessions, one of which has test speech, and one that has nothing to say."""
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "s10.txt").write_text("A bad cab.\nWe sold 12 of them.\nDecade by decade!")
    (folder / "slides.txt").write_text("Add a bead")
    (folder / "empty.txt").write_text("2026\n***\n")
    return folder


def adapt(antiphon: Antiphon, seed: Path, world: World, texts: Path, out: Path, *more: str | Path) -> Done:
    speak = [word for one in SPEAK for word in ("--speak", one)]
    small = [word for one in SMALL for word in ("--set", one)]
    real = ["--rehearse", world.corpus, "--out", out, "--rounds", "2", "--device", "cpu"]
    return antiphon("adapt", seed, "--text", texts, *real, *speak, *small, *more)


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "model" / "model.safetensors")


@pytest.fixture(autouse=True)
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.experiment.runner.write_report", lambda *args: None)
    monkeypatch.setattr("os.cpu_count", lambda: 1)


def test_text_becomes_an_adapted_model_and_a_report_on_each_session(
    seed: Path, world: World, texts: Path, tmp_path: Path, antiphon: Antiphon
) -> None:
    (tmp_path / "organisation.txt").write_text("A cabbage.\nDad fed a bee.")
    more = ["--organisation", tmp_path / "organisation.txt"]
    done = adapt(antiphon, seed, world, texts, tmp_path / "out", *more)
    assert done.code == 0, done.output
    said = " ".join(done.output.split())
    assert "s10: 1 of 3 sentences skipped, characters outside the alphabet" in said
    assert "empty: no sentences left, the session is skipped" in said
    assert "times real time" in said

    runs = tmp_path / "out" / "runs"
    told = {row["session"]: row for row in json.loads((runs / "sessions.json").read_text())["sessions"]}
    assert set(told) == {"s10", "slides", "empty"}
    assert (told["s10"]["sentences"], told["s10"]["words"]) == (2, 6)
    pool = {w for u in Corpus.open(world.corpus).utterances() if u.split == "pool" for w in u.text.split()}
    assert told["s10"]["new_words"] == len({"a", "bad", "cab", "decade", "by"} - pool)
    assert told["s10"]["errors_before"][1] == told["s10"]["errors_after"][1] > 0
    assert told["slides"]["errors_before"] is None
    assert told["slides"]["loss_before"] > 0
    named = json.loads((runs / "sessions.json").read_text())["skipped"]
    assert [(one["where"], one["id"]) for one in named] == [
        *(("empty", f"sentence {number}") for number in (1, 2)),
        ("s10", "sentence 2"),
    ]
    assert told["empty"]["skipped"] == {"characters outside the alphabet": 1, "nothing to say": 1}
    assert (told["empty"]["seconds"], told["empty"]["loss_after"]) == (0, None)

    journal = [json.loads(line) for line in (runs / "adapted" / "journal.jsonl").read_text().splitlines()]
    assert set(journal[-1]["clients"]) == {"session/s10", "session/slides"}
    assert all("rehearsal_loss" in entry["metrics"] for entry in journal[1:])
    corpus = Corpus.open(tmp_path / "out" / "corpus")
    own = {(u.session, u.text) for u in corpus.utterances() if u.split == "sessions"}
    assert own == {("s10", "a bad cab"), ("s10", "decade by decade"), ("slides", "add a bead")}
    assert {u.session for u in corpus.utterances() if u.split == "test"} == {"s10"}
    heard = {u.speaker for u in corpus.utterances() if u.split in ("sessions", "organisation")}
    checked = {u.speaker for u in corpus.utterances() if u.split == "heldout" and u.id.startswith("tts-")}
    assert len(checked) == 1
    assert not checked & heard

    assert antiphon("evaluate", runs / "adapted", "--data", world.corpus).code == 0
    sound = next((world.corpus.parent / "source").glob("*.wav"))
    assert antiphon("transcribe", runs / "adapted", sound).code == 0


def test_a_stopped_adaptation_goes_on_and_says_nothing_twice(
    seed: Path, world: World, texts: Path, tmp_path: Path, antiphon: Antiphon
) -> None:
    whole = adapt(antiphon, seed, world, texts, tmp_path / "whole")
    assert whole.code == 0, whole.output
    only = adapt(antiphon, seed, world, texts, tmp_path / "parts", "--speech-only")
    assert only.code == 0, only.output
    assert not (tmp_path / "parts" / "runs").exists()
    first = adapt(antiphon, seed, world, texts, tmp_path / "parts", "--rounds", "1")
    assert "all sentences are in the corpus already" in first.output
    refused = adapt(antiphon, seed, world, texts, tmp_path / "parts")
    assert refused.code == 2
    assert "add --resume to go on" in refused.output
    longer = ["--set", "runs.adapted.rounds.total=2"]
    resumed = adapt(antiphon, seed, world, texts, tmp_path / "parts", "--rounds", "1", "--resume", *longer)
    assert resumed.code == 0, resumed.output
    ends = [weights(tmp_path / name / "runs" / "adapted") for name in ("whole", "parts")]
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


def test_only_the_part_asked_for_is_trained(
    seed: Path, world: World, texts: Path, tmp_path: Path, antiphon: Antiphon
) -> None:
    # Validation would keep the seed model if it were best: the last round is taken instead.
    more = ["--train", "decoder", "--set", "runs.adapted.rounds.valid_every=0"]
    done = adapt(antiphon, seed, world, texts, tmp_path / "out", *more)
    assert done.code == 0, done.output
    before, after = weights(seed), weights(tmp_path / "out" / "runs" / "adapted")
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"output.weight", "output.bias"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--train", "brain"], "unknown part 'brain'"),
        (["--train", "brain.*"], "'brain.*'"),
        (["--speak", "engines=parrot"], "unknown engine 'parrot'"),
        (["--speak", "takes=4"], "by 1 to 3 voices, not by 4"),
        (["--speak", "voices=4"], "unknown key 'voices'"),
        (["--organisation", "missing.txt"], "the text missing.txt does not exist"),
        (["--set", "runs.adapted.rounds.total=0"], "at least 1"),
    ],
)
def test_bad_input_is_refused_before_anything_is_said(
    arguments: list[str], said: str, seed: Path, world: World, texts: Path, tmp_path: Path, antiphon: Antiphon
) -> None:
    refused = adapt(antiphon, seed, world, texts, tmp_path / "out", *arguments)
    assert refused.code == 2, refused.output
    assert said in " ".join(refused.output.split())
    assert not (tmp_path / "out").exists()


def test_sessions_that_are_all_empty_are_refused_before_anything_is_said(
    seed: Path, world: World, texts: Path, tmp_path: Path, antiphon: Antiphon
) -> None:
    refused = adapt(antiphon, seed, world, texts / "empty.txt", tmp_path / "out")
    assert refused.code == 2
    assert "no session has a sentence that can be used" in " ".join(refused.output.split())
    assert not (tmp_path / "out").exists()


def test_text_of_the_test_speech_is_dropped(
    seed: Path, world: World, texts: Path, tmp_path: Path, antiphon: Antiphon
) -> None:
    """Utterances of the world have two words, so a longer one is made of the test speech's own."""
    from antiphon.data import session_texts

    tested = next(u.text for u in Corpus.open(world.corpus).utterances() if u.session == "s10")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session_texts, "MIN_WORDS", 2)
        (texts / "s10.txt").write_text(f"Cab.\n{tested}.\nA bed.\n")
        done = adapt(antiphon, seed, world, texts, tmp_path / "out", "--speech-only")
    assert done.code == 0, done.output
    assert "s10: 1 of 3 sentences skipped, in the test speech" in " ".join(done.output.split())
    said = {u.text for u in Corpus.open(tmp_path / "out" / "corpus").utterances() if u.split == "sessions"}
    assert "cab" in said
    assert tested not in said
