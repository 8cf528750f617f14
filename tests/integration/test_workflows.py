"""Workflows called from Python give and write what their commands do, on a small corpus of tones."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from command import SETTINGS, Antiphon, kept_files
from safetensors.torch import load_file
from tiny_kokoro import write_tiny_kokoro
from world import World, assert_same, write_source

import antiphon as library
from antiphon.data.corpus import Corpus
from antiphon.decoding.nbest import read_nbest

TEXT = "ab cd\nabc d\nde a\n" * 5


@pytest.fixture(autouse=True)
def undrawn(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("antiphon.experiment.runner.write_report", lambda *arguments: None)
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    yield
    torch.use_deterministic_algorithms(False)  # a run asks for them in the whole process


@pytest.fixture
def copy(finished: Path, tmp_path: Path) -> Path:
    """An experiment that a test may write into."""
    shutil.copytree(finished, tmp_path / "out")
    return tmp_path / "out"


class Steps:
    """A progress function that remembers what it was called with."""

    def __init__(self) -> None:
        self.last: dict[str, tuple[int, int | None]] = {}

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        self.last[stage] = done, total


def same_files(made: Path, written: Path) -> None:
    names = sorted(path.relative_to(made) for path in made.rglob("*") if path.is_file())
    assert names == sorted(path.relative_to(written) for path in written.rglob("*") if path.is_file())
    for name in names:
        assert (made / name).read_bytes() == (written / name).read_bytes(), name


def check_kept_files(out: Path, finished: Path) -> None:
    """Other tests may have evaluated the finished runs on more splits."""
    made, reference = kept_files(out), kept_files(finished)
    assert made == {name: reference[name] for name in made}


def untimed(scores: dict[str, Any]) -> dict[str, Any]:
    """Scores without their time, and without the checksums that they have in a file."""
    timed = ("real_time_factor", "files", "sha256")
    return {key: value for key, value in scores.items() if key not in timed}


# --- Runs -----------------------------------------------------------------------------------------


def test_run_leaves_what_the_command_leaves(world: World, finished: Path, tmp_path: Path) -> None:
    steps = Steps()
    scores = library.run("fedavg", world.corpus, tmp_path / "out", settings=SETTINGS, progress=steps)
    check_kept_files(tmp_path / "out", finished)
    path = finished / "fedavg" / "evaluation" / "test" / "best" / "scores.json"
    assert untimed(scores["fedavg"]) == untimed(json.loads(path.read_text()))
    assert steps.last["seed"] == (3, 3)
    assert steps.last["fedavg"] == (4, 4)


def test_run_takes_an_experiment_and_resumes(world: World, finished: Path, tmp_path: Path) -> None:
    experiment, out = library.override(library.recipe("fedavg"), SETTINGS), tmp_path / "out"
    assert set(library.run(experiment, world.corpus, out, settings="seed=0", only="seed")) == {"seed"}
    with pytest.raises(ValueError, match=r"holds an experiment already: .* \(in Python: resume=True\)"):
        library.run(experiment, world.corpus, out)
    library.run(experiment, world.corpus, out, resume=True)
    check_kept_files(out, finished)


class Events(library.Listener):
    """A listener that remembers."""

    def __init__(self, run: library.RunInfo) -> None:
        self.run = run
        self.rounds: list[Any] = []
        self.clock: list[Any] = []
        self.clients: list[str] = []
        self.ends: list[Any] = []
        self.resumed_after: list[int] = []

    def resumed(self, round: int) -> None:
        self.resumed_after.append(round)

    def replied(self, client: str) -> None:
        self.clients.append(client)

    def finished(self, entry: Mapping[str, Any], clock: Mapping[str, Any]) -> None:
        self.rounds.append(entry)
        self.clock.append(clock)
        if len(self.rounds) == 3 and self.run.name == "fedavg":
            raise ValueError("enough")

    def ended(self, scores: Mapping[str, Any] | None) -> None:
        self.ends.append(scores)


@dataclass
class Heard:
    """A listener for every run; remembers what it heard of each."""

    runs: list[Events] = field(default_factory=list)

    def __call__(self, run: library.RunInfo) -> library.Listener:
        self.runs.append(Events(run))
        return self.runs[-1]


def lines_of(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_listeners_hear_the_rounds_and_the_end_of_each_run(world: World, tmp_path: Path) -> None:
    heard, out = Heard(), tmp_path / "out"
    with pytest.raises(ValueError, match="enough"):  # an exception of a listener stops the run
        library.run("fedavg", world.corpus, out, settings=SETTINGS, listeners=[heard])
    seed, fedavg = heard.runs
    assert (seed.run.name, seed.run.num_rounds, seed.run.folder) == ("seed", 3, out / "seed")
    assert fedavg.run.settings["rounds"]["total"] == 4
    assert seed.rounds == lines_of(out / "seed" / "journal.jsonl")
    clock = lines_of(out / "seed" / "clock.jsonl")
    checksums = {"journal_sha256", "sha256"}
    assert seed.clock == [{key: line[key] for key in line if key not in checksums} for line in clock]
    scores = json.loads((out / "seed" / "evaluation/test/best/scores.json").read_text())
    assert list(map(untimed, seed.ends)) == [untimed(scores)]
    assert fedavg.ends == [None]
    assert set(fedavg.clients) > set(fedavg.rounds[-1]["clients"])  # validation speakers too
    before = len(lines_of(out / "fedavg" / "journal.jsonl"))
    scores = library.run("fedavg", world.corpus, out, settings=SETTINGS, resume=True, listeners=[heard])
    resumed = heard.runs[-1]
    assert resumed.resumed_after == [before - 1]
    assert resumed.ends == [scores["fedavg"]]


def test_run_refuses_two_ways_of_using_processes(world: World, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--jobs is for runs of one process each"):
        library.run("fedavg", world.corpus, tmp_path / "out", jobs=2, num_processes=2)
    with pytest.raises(ValueError, match="at least 1 process and 1 job, not 1 and 0"):
        library.run("fedavg", world.corpus, tmp_path / "out", jobs=0)


def test_the_demo_is_its_recipe_on_a_corpus_that_it_makes(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def synthesise(path: Path, splits: Any, sentences: int, seed: int, progress: Callable[..., None]) -> None:
        shutil.copytree(world.corpus, path)
        progress(sentences, sentences)

    monkeypatch.setattr("antiphon.data.tts.demo_corpus.synthesise_corpus", synthesise)
    small = ["frontend=filterbank", "frontend.dim=8", "model.encoder.dim=8", "runs.*.rounds.total=1"]
    steps = Steps()
    scores = library.demo(tmp_path, settings=[*small, "runs.*.rounds.cohort=1"], progress=steps)
    assert steps.last["synthesis"] == (20, 20)
    assert set(scores) == set(library.recipe("demo").runs)
    assert (tmp_path / "runs" / "experiment.json").exists()


def test_recipes_are_listed(antiphon: Antiphon) -> None:
    shown = " ".join(antiphon("recipes").output.split())
    for name, text in library.list_recipes().items():
        assert f"{name} {text}" in shown


def test_report_writes_the_command_s_page(antiphon: Antiphon, finished: Path, tmp_path: Path) -> None:
    page = library.report(finished / "fedavg", tmp_path / "function.html")
    assert page == tmp_path / "function.html"
    assert antiphon("report", finished / "fedavg", "--out", tmp_path / "command.html").code == 0
    assert page.read_text() == (tmp_path / "command.html").read_text()


# --- Scores ---------------------------------------------------------------------------------------


def test_evaluate(antiphon: Antiphon, copy: Path) -> None:
    steps = Steps()
    evaluation = library.evaluate(copy / "fedavg", split="heldout", normalise=["lower_case"], progress=steps)
    assert steps.last["evaluate"][0] == steps.last["evaluate"][1] == evaluation.scores["num_utterances"]
    assert evaluation.folder == copy / "fedavg" / "evaluation" / "heldout" / "best"
    files = {file.name: file.read_bytes() for file in evaluation.folder.iterdir()}
    assert untimed(json.loads(files.pop("scores.json"))) == untimed(evaluation.scores)
    done = antiphon("evaluate", copy / "fedavg", "--split", "heldout", "--normalise", "lower_case")
    assert done.code == 0, done.output
    scores = json.loads((evaluation.folder / "scores.json").read_text())
    assert untimed(scores) == untimed(evaluation.scores)
    assert all((evaluation.folder / name).read_bytes() == body for name, body in files.items())


def test_transcribe(antiphon: Antiphon, finished: Path, world: World, tmp_path: Path) -> None:
    files = sorted((world.corpus.parent / "source").glob("*.wav"))[:2]
    steps = Steps()
    heard = list(library.transcribe(finished / "fedavg", [*files, tmp_path / "missing.wav"], progress=steps))
    assert steps.last == {"transcribe": (3, 3)}
    assert list(library.transcribe(finished / "fedavg", files[0])) == heard[:1]
    assert [one.file for one in heard] == [*files, tmp_path / "missing.wav"]
    assert "No such file" in heard[2].error
    printed = antiphon("transcribe", finished / "fedavg", *files).output
    assert printed == "".join(f"{one.file}\t{one.text}\n" for one in heard[:2])


def test_compare(antiphon: Antiphon, finished: Path, tmp_path: Path) -> None:
    comparison = library.compare(finished / "seed", finished / "fedavg", out=tmp_path / "function.json")
    done = antiphon("compare", finished / "seed", finished / "fedavg", "--out", tmp_path / "command.json")
    assert comparison.verdict in done.output
    assert (tmp_path / "function.json").read_text() == (tmp_path / "command.json").read_text()


def test_alignments(antiphon: Antiphon, finished: Path, tmp_path: Path) -> None:
    errors = library.alignments(finished / "fedavg", out=tmp_path / "function")
    assert antiphon("alignments", finished / "fedavg", "--out", tmp_path / "command").code == 0
    same_files(tmp_path / "function", tmp_path / "command")
    assert sum(tally.num_utterances for tally in errors.speakers.values()) == 9


# --- Corpora and language models ------------------------------------------------------------------


def test_import_and_describe_a_corpus(antiphon: Antiphon, tmp_path: Path) -> None:
    source = write_source(tmp_path / "source", num_utterances=3)
    options = library.ImportOptions(split_speakers=(0.5, 0.25, 0.25), seed=3)
    done = []
    summary = library.import_corpus(
        source, tmp_path / "function", options, lambda *numbers: done.append(numbers)
    )
    assert done[-1] == ("import", summary.num_utterances, summary.num_utterances)
    fractions = ["--split-speakers", "0.5,0.25,0.25", "--seed", "3"]
    assert antiphon("corpus", "import", source, tmp_path / "command", *fractions).code == 0
    same_files(tmp_path / "function", tmp_path / "command")
    described = library.describe_corpus(tmp_path / "function", plot=tmp_path / "plot.png")
    assert sum(split.num_utterances for split in described.splits) == summary.num_utterances
    assert antiphon("corpus", "show", tmp_path / "function").code == 0
    assert (tmp_path / "plot.png").read_bytes() == (tmp_path / "function-clients.png").read_bytes()


def test_language_models(antiphon: Antiphon, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    steps: list[tuple[str, int, int | None]] = []
    training = library.train_ngram_lm(
        text, tmp_path / "function.arpa", order=2, heldout=[text], progress=lambda *step: steps.append(step)
    )
    assert steps == [("estimation", done, 4) for done in (1, 2, 3, 4)]
    shown = antiphon(
        "lm", "ngram", text, "--out", tmp_path / "command.arpa", "--order", "2", "--heldout", text
    )
    assert f"perplexity {training.perplexities[text].value:.1f} per word" in shown.output
    assert (tmp_path / "function.arpa").read_text() == (tmp_path / "command.arpa").read_text()
    steps = Steps()
    small = {"subwords": 0, "steps": 3, "batch_tokens": 64}
    library.train_transformer_lm([text], tmp_path / "function", **small, progress=steps)
    assert steps.last["training"][1] == 3
    options = ["--subwords", "0", "--steps", "3", "--batch-tokens", "64"]
    assert antiphon("lm", "train", text, "--out", tmp_path / "command", *options).code == 0
    same_files(tmp_path / "function", tmp_path / "command")


# --- N-best lists ---------------------------------------------------------------------------------


@pytest.fixture
def lm(tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_text(TEXT)
    library.train_ngram_lm([tmp_path / "text.txt"], tmp_path / "letters.arpa", order=2)
    return tmp_path / "letters.arpa"


def test_nbest_and_rescore(antiphon: Antiphon, finished: Path, lm: Path, tmp_path: Path) -> None:
    run, steps, lines = finished / "fedavg", Steps(), []
    decoding = library.nbest(
        run, tmp_path / "function.jsonl", beam=3, lm=lm, tune="heldout", progress=steps, notify=lines.append
    )
    options = ["--beam", "3", "--lm", lm, "--tune", "heldout"]
    done = antiphon("nbest", run, "--out", tmp_path / "command.jsonl", *options)
    assert (tmp_path / "function.jsonl").read_bytes() == (tmp_path / "command.jsonl").read_bytes()
    assert all(line in done.output for line in lines)
    assert [len(decoding.lists)] * 2 == [*steps.last["search"]]
    assert decoding.lists == tuple(read_nbest(tmp_path / "function.jsonl"))

    lists = tmp_path / "function.jsonl"
    rescoring = library.rescore(
        lists, lm={"letters": lm}, recognisers={"seed": finished / "seed"},
        weights={"letters": 0.5, "score": 1.0}, search={"words": 1.0, "seed": 1.0},
        out=tmp_path / "again.jsonl", progress=steps,
    )  # fmt: skip
    assert steps.last["seed"] == (len(decoding.lists), len(decoding.lists))
    options = [
        "--lm",
        lm,
        "--recogniser",
        finished / "seed",
        "--weight",
        "letters=0.5",
        "--weight",
        "score=1",
    ]
    options += ["--search", "words", "--search", "seed", "--out", tmp_path / "command-again.jsonl"]
    done = antiphon("rescore", lists, *options)
    assert (tmp_path / "again.jsonl").read_bytes() == (tmp_path / "command-again.jsonl").read_bytes()
    assert rescoring.leave_one_out
    for choice in rescoring.scores.choices:
        assert f"{choice.name} " in done.output
        assert f"{100 * choice.errors.rate:.2f}" in done.output


def check_heard_rounds(heard: Heard, folder: Path) -> None:
    """Each run of rounds is announced once, though its rounds are used several times."""
    names = [events.run.name for events in heard.runs]
    assert sorted(names) == sorted(path.name for path in folder.iterdir())
    for events in heard.runs:
        assert events.run.folder == folder / events.run.name
        assert events.rounds == lines_of(events.run.folder / "journal.jsonl")
        assert len(events.rounds) == events.run.num_rounds == events.run.settings["rounds"]["total"]
        assert events.run.num_clients == len(events.rounds[0]["cohort"])
        assert events.ends == [{}]


def test_personalize(antiphon: Antiphon, finished: Path, lm: Path, tmp_path: Path) -> None:
    lists, text, lines = tmp_path / "lists.jsonl", tmp_path / "text.txt", []
    library.nbest(finished / "fedavg", lists, beam=4, lm=lm)
    noise = library.NoiseSettings(("gaussian=2",), cap=2.0, num_seeds=2)
    result = library.personalize(
        lists, [text], lm={"letters": lm}, client="speaker", rounds=[1, 2], noise=noise,
        out=tmp_path / "function", notify=lines.append, listeners=[heard := Heard()],
    )  # fmt: skip
    check_heard_rounds(heard, tmp_path / "function" / "rounds")
    options = ["--background", text, "--lm", lm, "--client", "speaker", "--rounds", "1,2", "--private"]
    options += ["gaussian=2", "--cap", "2", "--noise-seeds", "2", "--out", tmp_path / "command"]
    done = antiphon("personalize", lists, *options)
    assert done.code == 0, done.output
    assert all(line in done.output for line in lines)
    for name in ("results.json", "private.json"):
        assert (tmp_path / "function" / name).read_bytes() == (tmp_path / "command" / name).read_bytes()
    assert result.private is not None
    body = json.loads((tmp_path / "function" / "private.json").read_text())
    assert result.private.rows[0].rates == tuple(body["rows"][0]["rates"])
    clients = json.loads((tmp_path / "function" / "results.json").read_text())["clients"]
    for client in result.clients:
        assert clients[client.name] == {"words": client.words, "before": client.before, "after": client.after}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"noise": ("salt=1",)}, "--private takes paper, laplace, gaussian"),
        ({"noise": ("paper=1",), "populations": (0,)}, "a population must be at least 1"),
    ],
)
def test_noise_that_cannot_be_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        library.NoiseSettings(**settings)


# --- New models from old ones ---------------------------------------------------------------------


def test_prune_and_its_plan(antiphon: Antiphon, finished: Path, tmp_path: Path) -> None:
    plan = library.plan_pruning(finished / "fedavg", sparsity=0.5)
    shown = antiphon("prune", finished / "fedavg", "--plan").output
    assert f"zero-parameter ratio {plan.zero_ratio:.3f}" in shown
    steps = Steps()
    scores = library.prune(
        finished / "fedavg", tmp_path / "function", rounds=2, progress=steps, listeners=[heard := Heard()]
    )
    assert steps.last["pruned"] == (2, 2)
    (pruned,) = heard.runs
    assert pruned.run.folder == tmp_path / "function" / "pruned"
    assert pruned.rounds == lines_of(pruned.run.folder / "journal.jsonl")
    assert pruned.ends == [scores["pruned"]]
    with pytest.raises(ValueError, match="at least 2 rounds, not 1"):
        library.prune(finished / "fedavg", tmp_path / "other", rounds=1)
    done = antiphon("prune", finished / "fedavg", "--rounds", "2", "--out", tmp_path / "command")
    assert done.code == 0, done.output
    one, other = (
        load_file(tmp_path / name / "pruned" / "model" / "model.safetensors")
        for name in ("function", "command")
    )
    assert_same(one, other, "pruned")
    assert set(scores) == {"pruned"}


def test_adapt(antiphon: Antiphon, finished: Path, world: World, tmp_path: Path) -> None:
    pytest.importorskip("espeakng_loader")
    pytest.importorskip("soxr")
    text, lines, steps = tmp_path / "s10.txt", [], Steps()
    text.write_text("A bad cab.\nWe sold 12 of them.\nDecade by decade!")
    speak = ["engines=espeak", "num_voices=3", "takes=1", "rehearse_hours=0.002", "valid_hours=0.001"]
    small = ["runs.*.rounds.valid_every=1", "runs.adapted.algorithm.local.steps=2"]
    adaptation = library.adapt(
        finished / "seed", [text], world.corpus, tmp_path / "function", rounds=1, speaking=speak,
        settings=small, notify=lines.append, progress=steps, listeners=[heard := Heard()],
    )  # fmt: skip
    (adapted,) = heard.runs
    assert (adapted.run.folder, adapted.ends) == (adaptation.model, [adaptation.scores["adapted"]])
    assert adapted.rounds == lines_of(adaptation.model / "journal.jsonl")
    assert steps.last["adapted"] == (1, 1)
    assert {"synthesis", "features"} <= steps.last.keys()
    assert "s10: 1 of 3 sentences skipped, characters outside the alphabet" in lines
    assert adaptation.corpus == Corpus.open(tmp_path / "function" / "corpus").path
    options = [word for one in speak for word in ("--speak", one)]
    options += [word for one in small for word in ("--set", one)]
    done = antiphon(
        "adapt", finished / "seed", "--text", text, "--rehearse", world.corpus, "--out", tmp_path / "command",
        "--rounds", "1", *options,
    )  # fmt: skip
    assert done.code == 0, done.output
    runs = [tmp_path / name / "runs" for name in ("function", "command")]
    assert adaptation.model == runs[0] / "adapted"
    assert (runs[0] / "sessions.json").read_text() == (runs[1] / "sessions.json").read_text()
    one, other = (load_file(run / "adapted" / "model" / "model.safetensors") for run in runs)
    assert_same(one, other, "adapted")
    assert [report.session for report in adaptation.sessions] == ["s10"]


def test_adapt_to_mixtures_of_voices(
    finished: Path, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("espeakng_loader", "soxr"):
        pytest.importorskip(package)
    monkeypatch.setenv("ANTIPHON_KOKORO", str(write_tiny_kokoro(tmp_path / "kokoro")))
    (tmp_path / "s10.txt").write_text("A bad cab.\nDecade by decade!")
    speak = ["engines=kokoro", "num_voices=8", "takes=8", "rehearse_hours=0.002", "valid_hours=0.001"]
    adaptation = library.adapt(
        finished / "seed", [tmp_path / "s10.txt"], world.corpus, tmp_path / "out", rounds=1, speaking=speak,
        settings=["runs.adapted.algorithm.local.steps=1"], processes=2,
    )  # fmt: skip
    assert set(adaptation.scores) == {"adapted"}
    plan = json.loads((adaptation.corpus / "plan.json").read_text())
    assert [*plan["engines"]] == ["kokoro"]
    assert sum("+" in voice["name"] for voice in plan["voices"]) == 8 - 3  # three are of the folder
    spoken = [u for u in Corpus.open(adaptation.corpus).utterances() if u.split == "sessions"]
    assert len({u.speaker for u in spoken}) == 8
