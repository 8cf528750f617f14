"""Experiments with clients that have no transcripts, from settings to results, on the tiny world."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from world import FRONTEND, MODELS, World

from antiphon import config
from antiphon.algorithms.central import Central
from antiphon.algorithms.dga_rl import DgaRl
from antiphon.algorithms.fedavg import dga
from antiphon.algorithms.geometric_median import GeometricMedian
from antiphon.algorithms.rehearsal import Rehearsed
from antiphon.algorithms.self_training import CurrentModel, MovingAverage, OtherModel, SelfTrained
from antiphon.data.partition import Iid
from antiphon.engine import Rounds
from antiphon.experiment import runner
from antiphon.experiment.preparation import prepare
from antiphon.experiment.settings import Experiment, Run, Speakers
from antiphon.experiment.teaching import unlabelled_clients
from antiphon.models.conformer import ConformerConfig
from antiphon.models.ctc import CtcConfig
from antiphon.recipes import recipe
from antiphon.records.journal import read
from antiphon.tasks.local_training import LocalTraining
from antiphon.tasks.pseudo_labels import Labelling, Ngram

LOCAL = LocalTraining(lr=0.05, epochs=1, batch_seconds=1.5)
HEARD = Labelling(num_hypotheses=3, width=4)
TEACHER = "runs.taught.algorithm.teacher"
STUDENT = CtcConfig(ConformerConfig(dim=8, num_layers=1, num_heads=2, kernel_size=3, stack=2))
SEED = Run(Central(LocalTraining(lr=3e-3, steps=15)), "seed", Iid(1), "", Rounds(total=1, cohort=1))


def experiment(algorithm: SelfTrained, total: int = 2, labelled: float = 0.0, **more: Any) -> Experiment:
    rounds = Rounds(total=total, cohort=3, valid_every=0)  # the result is the last model
    taught = Run(algorithm, rounds=rounds, labelled=labelled)
    return Experiment(
        "tiny",
        frontend=FRONTEND,
        model=MODELS["ctc"],  # type: ignore[arg-type]
        speakers=Speakers(seed_fraction=0.25),
        runs={"seed": SEED, "taught": taught, **more},
    )


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(runner, "write_report", lambda *arguments: None)
    yield
    torch.use_deterministic_algorithms(False)  # a run asks for them in the whole process


def run(chosen: Experiment, corpus: Path, out: Path, **more: Any) -> dict[str, Any]:
    """What an experiment leaves behind: the models and the journals of all runs."""
    runner.run_experiment(chosen, corpus, out, device="cpu", **more)
    return {
        name: (
            {key: p.tolist() for key, p in load_file(out / name / "model" / "model.safetensors").items()},
            read(out / name / "journal.jsonl"),
        )
        for name in chosen.runs
    }


# --- Transcripts ----------------------------------------------------------------------------------


def test_no_bit_of_the_result_depends_on_a_transcript_that_is_not_there(world: World, tmp_path: Path) -> None:
    algorithm = SelfTrained(Rehearsed(dga(LOCAL), LocalTraining(steps=2)), HEARD, CurrentModel())
    chosen = experiment(algorithm, labelled=0.5)
    before = prepare(chosen, world.corpus, "cpu")
    hidden = unlabelled_clients(chosen.runs["taught"], list(before.clients["taught"]), chosen.seed)
    assert len(hidden) == len(before.clients["taught"]) / 2
    places = {int(index) for name in hidden for index in before.clients["taught"][name]}

    other = shutil.copytree(world.corpus, tmp_path / "corpus")
    rows = [json.loads(line) for line in (other / "utterances.jsonl").read_text().splitlines()]
    for place in places:
        rows[place]["text"] = "eeeee eeeee"
    (other / "utterances.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    about = json.loads((other / "corpus.json").read_text())
    del about["files"], about["sha256"]  # as older versions wrote it
    (other / "corpus.json").write_text(json.dumps(about))
    after = prepare(chosen, other, "cpu")
    assert {after.store.text(place) for place in places} == {"eeeee eeeee"}  # it could have been read

    first, second = (
        run(chosen, corpus, tmp_path / name) for corpus, name in ((world.corpus, "a"), (other, "b"))
    )
    assert first == second
    assert first["taught"][1][-1]["metrics"]["num_labelled"] > 0


@pytest.mark.parametrize(
    "inner", [DgaRl(dga(LOCAL)), GeometricMedian(), Rehearsed(GeometricMedian(), LocalTraining(steps=1))]
)
def test_weights_may_be_learnt_or_those_of_a_median(world: World, tmp_path: Path, inner: Any) -> None:
    """Validation clients and counts of labels find their way through every layer."""
    found = run(experiment(SelfTrained(inner, HEARD, CurrentModel())), world.corpus, tmp_path / "out")
    last = found["taught"][1][-1]
    assert last["metrics"]["num_labelled"] > 0
    assert ("reward" in last["metrics"]) == isinstance(inner, DgaRl)
    assert ("rehearsal_loss" in last["metrics"]) == isinstance(inner, Rehearsed)
    assert found["taught"][0] != found["seed"][0]


def test_a_transcript_that_is_there_does_matter(world: World, tmp_path: Path) -> None:
    chosen = experiment(SelfTrained(dga(LOCAL), HEARD))
    hidden, seen = run(chosen, world.corpus, tmp_path / "a"), replace(chosen.runs["taught"], labelled=0.5)
    mixed = run(replace(chosen, runs={**chosen.runs, "taught": seen}), world.corpus, tmp_path / "b")
    assert hidden["seed"] == mixed["seed"]
    assert hidden["taught"][0] != mixed["taught"][0]


# --- Runs -----------------------------------------------------------------------------------------


def test_a_run_that_was_stopped_goes_on_to_the_same_bits(world: World, tmp_path: Path) -> None:
    averaged = SelfTrained(dga(LOCAL), replace(HEARD, lm=Ngram(order=2)), MovingAverage(0.5, update_every=2))
    # Folders with names of one length: the path of the language model is among the bytes that travel.
    straight = run(experiment(averaged, total=4), world.corpus, tmp_path / "straight")
    run(experiment(averaged, total=1), world.corpus, tmp_path / "resuming")
    resumed = run(experiment(averaged, total=4), world.corpus, tmp_path / "resuming", resume=True)
    assert straight == resumed
    assert (tmp_path / "resuming" / "taught" / "lm.arpa").exists()


def test_a_student_learns_from_a_larger_teacher_of_the_same_experiment(world: World, tmp_path: Path) -> None:
    own = replace(SEED, model=STUDENT)
    chosen = experiment(SelfTrained(dga(LOCAL), HEARD, OtherModel("seed")), **{"student-seed": own})
    student = replace(chosen.runs["taught"], start_run="student-seed", model=STUDENT)
    chosen = replace(chosen, runs={"seed": SEED, "student-seed": own, "student": student})
    found = run(chosen, world.corpus, tmp_path / "out")
    sizes = {
        name: sum(torch.tensor(p).numel() for p in params.values()) for name, (params, _) in found.items()
    }
    assert sizes["student"] == sizes["student-seed"] < sizes["seed"]
    assert found["student"][1][-1]["metrics"]["num_labelled"] > 0
    about = json.loads((tmp_path / "out" / "student" / "run.json").read_text())
    assert about["num_parameters"] == sizes["student"]
    assert about["config"]["model"]["ctc"]["encoder"]["conformer"]["dim"] == 8

    # The same teacher from its folder: the same student.
    elsewhere = SelfTrained(dga(LOCAL), HEARD, OtherModel(folder=str(tmp_path / "out" / "seed")))
    again = replace(chosen, runs={**chosen.runs, "student": replace(student, algorithm=elsewhere)})
    assert run(again, world.corpus, tmp_path / "folder")["student"] == found["student"]


def test_the_share_of_clients_with_texts_is_as_asked_and_always_the_same(world: World) -> None:
    names = [f"speaker/{number}" for number in range(10)]
    taught = experiment(SelfTrained()).runs["taught"]
    found = {
        share: unlabelled_clients(replace(taught, labelled=share), names, 3) for share in (0.0, 0.3, 1.0)
    }
    assert [len(unlabelled) for unlabelled in found.values()] == [10, 7, 0]
    assert found[0.3] == unlabelled_clients(replace(taught, labelled=0.3), names[::-1], 3)
    assert found[0.3] != unlabelled_clients(replace(taught, labelled=0.3), names, 4)


def test_the_recipe_is_what_its_page_says() -> None:
    chosen = recipe("self-training")
    assert config.from_dict(Experiment, config.to_dict(chosen)) == chosen
    sizes = [
        sum(p.numel() for p in chosen.model_of(name).build(288, 30).parameters())
        for name in ("student-seed", "seed")
    ]
    assert 0.3 < sizes[0] / sizes[1] < 0.35


def test_every_row_of_the_recipe_adds_one_thing_to_the_row_before_it() -> None:
    runs = recipe("self-training").runs
    names = ("hard", "soft", "confident", "rehearsed", "dga", "lm", "books", "current", "student")
    hard, soft, confident, rehearsed, best, lm, books, current, student = (
        runs[name].algorithm for name in names
    )
    assert soft == replace(hard, labels=replace(hard.labels, num_hypotheses=soft.labels.num_hypotheses))
    assert confident == replace(soft, labels=replace(soft.labels, confidence=confident.labels.confidence))
    assert rehearsed == replace(confident, inner=replace(rehearsed.inner, inner=confident.inner))
    weighting = replace(rehearsed.inner.inner, weighting=best.inner.inner.weighting)
    assert best == replace(rehearsed, inner=replace(rehearsed.inner, inner=weighting)) != rehearsed
    assert lm == replace(best, labels=lm.labels)
    filtered = replace(lm.labels, confidence=books.labels.confidence)  # that of a better language model
    assert books == replace(lm, labels=replace(filtered, lm=books.labels.lm))
    assert current == replace(best, teacher=current.teacher)
    assert student == replace(books, teacher=OtherModel("seed"))
    assert runs["labelled"].algorithm == best.inner
    settings = [f"runs.dga-rehearsal.algorithm.inner.server.lr={best.inner.inner.server.lr}"]
    known = config.override(recipe("librispeech"), settings).runs["dga-rehearsal"]
    assert known.algorithm == best.inner


def test_the_example_gives_the_rows_that_need_them_their_n_grams() -> None:
    example = Path(__file__).parents[3] / "docs" / "examples" / "self-training-books.yaml"
    plain, given = recipe("self-training").runs, recipe(str(example)).runs
    changed = [name for name in plain if plain[name] != given[name]]
    assert changed == ["books", "books-current", "student"]
    for name in changed:
        before, after = (runs[name].algorithm.labels.lm for runs in (plain, given))
        assert after == replace(before, path="books")


# --- Refused before anything starts ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["runs.taught.labelled=2"], "between 0 and 1"),
        (["runs.taught.algorithm=fed_avg"], "only self_trained can train on"),
        (["runs.taught.data=both"], "labelled below 1 is for data=federated"),
        (
            ["runs.taught.algorithm.teacher=other_model", "runs.taught.algorithm.teacher.run=later"],
            "'later'",
        ),
        (["runs.taught.model=las"], "which has another model"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config.override(experiment(SelfTrained()), settings)


@pytest.mark.parametrize(
    ("algorithm", "labelled", "message"),
    [
        (SelfTrained(), 1.0, "there is nothing to label"),
        (SelfTrained(teacher=OtherModel(folder="no/where")), 0.0, "holds no model"),
        (SelfTrained(labels=Labelling(lm=Ngram("no/where.arpa"))), 0.0, "No such file"),
    ],
)
def test_what_cannot_work_is_refused_before_any_run(
    world: World, algorithm: SelfTrained, labelled: float, message: str
) -> None:
    with pytest.raises((ValueError, OSError), match=message):
        prepare(experiment(algorithm, labelled=labelled), world.corpus, "cpu")


def test_a_teacher_that_has_not_learnt_yet_is_refused(world: World, tmp_path: Path) -> None:
    taught = Run(SelfTrained(teacher=OtherModel("large")), labelled=0.0)
    chosen = replace(experiment(SelfTrained()), runs={"seed": SEED, "large": SEED, "taught": taught})
    with pytest.raises(ValueError, match="taught by 'large', which has not finished"):
        run(chosen, world.corpus, tmp_path / "out", only=["seed", "taught"])


def test_a_teacher_that_hears_otherwise_is_refused(world: World, tmp_path: Path) -> None:
    run(replace(experiment(SelfTrained()), runs={"seed": SEED}), world.corpus, tmp_path / "out")
    deaf = replace(
        experiment(SelfTrained(teacher=OtherModel(folder=str(tmp_path / "out" / "seed")))),
        frontend=replace(FRONTEND, dim=12),
    )
    corpus = shutil.copytree(world.corpus, tmp_path / "corpus")
    with pytest.raises(ValueError, match="has another front end"):
        prepare(deaf, corpus, "cpu")
