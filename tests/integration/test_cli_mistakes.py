"""Mistakes on the command line: what was wrong is said, with what to do, before anything runs."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from command import Antiphon, Fault, in_fork, run_arguments
from world import World, write_source

from antiphon import config
from antiphon.experiment.folder import check_folder
from antiphon.recipes import recipe

# --- Settings and corpora -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("runs.fedavg.rounds.totl=3", "runs.fedavg.rounds: unknown key 'totl'; did you mean 'total'?"),
        ("runs.fedavgg.rounds.total=3", "did you mean 'fedavg'?"),
        ("runs.fedavg.algorithm.server=adm", "did you mean 'adam'?"),
        ("runs.fedavg.rounds.total=many", "runs.fedavg.rounds.total: expected int, not 'many'"),
        ("runs.fedavg.rounds.total=2.5", "runs.fedavg.rounds.total: expected int, not 2.5"),
        ("seed=yes", "seed: expected int, not 'yes'"),
        ("seed", "is not an assignment: write key=value"),
        ("runs.fedavg.rounds.total=0", "must be at least 1"),
        ("runs.fedavg.start_run=nobody", "starts from 'nobody'"),
        ("runs.fedavg.data=other", "data is seed, federated or both, not 'other'"),
    ],
)
def test_a_wrong_setting_is_refused_with_the_nearest_right_one(
    antiphon: Antiphon, world: World, tmp_path: Path, setting: str, message: str
) -> None:
    done = antiphon("run", "fedavg", "--data", world.corpus, "--out", tmp_path / "out", "--set", setting)
    assert done.code == 2
    assert message in " ".join(done.output.split())
    assert not (tmp_path / "out").exists()


def test_an_unknown_recipe_is_refused_with_the_nearest_one(antiphon: Antiphon, world: World) -> None:
    done = antiphon("run", "fedagv", "--data", world.corpus, "--out", "nowhere")
    assert done.code == 2
    assert "unknown recipe 'fedagv'; did you mean 'fedavg'?" in done.output


def test_a_missing_corpus_is_said(antiphon: Antiphon, tmp_path: Path) -> None:
    done = antiphon("run", "fedavg", "--data", tmp_path / "nothing", "--out", tmp_path / "out")
    assert done.code == 2
    assert "is not a corpus" in done.output
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("speakers.test=exam", "'exam'"),
        ("speakers.seed_fraction=1.0", "no utterance for 'federated'"),
        ("runs.fedavg.rounds.min_clients=5", "min_clients is 5 but there are 4 clients"),
        ("runs.fedavg.algorithm.trainable=decoder.*", "no parameter matches 'decoder.*'"),
    ],
)
def test_what_does_not_fit_the_corpus_is_refused_before_anything_runs(
    antiphon: Antiphon, world: World, tmp_path: Path, setting: str, message: str
) -> None:
    settings = ["runs.fedavg.rounds.cohort=5", setting]
    done = antiphon(*run_arguments(world.corpus, tmp_path / "out", settings=settings))
    assert done.code == 2, done.output
    assert message in " ".join(done.output.split())
    assert not (tmp_path / "out").exists()


def test_report_of_nothing_is_a_mistake_that_is_named(antiphon: Antiphon, tmp_path: Path) -> None:
    done = antiphon("report", tmp_path / "nothing")
    assert done.code == 2
    assert "nothing" in done.output


def test_brackets_in_names_are_shown_as_they_are(antiphon: Antiphon, tmp_path: Path) -> None:
    """Square brackets are markup to the terminal library: they must neither vanish nor crash."""
    folder = tmp_path / "data [old]" / "[" / "bold]"
    folder.mkdir(parents=True)
    done = antiphon("corpus", "show", folder)
    assert done.code == 2
    assert "data [old]/[/bold]" in done.output


def test_a_yaml_file_changes_a_recipe(antiphon: Antiphon, world: World, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("recipe: fedavg\nruns: {fedavg: {rounds: {totl: 4}}}\n")
    done = antiphon("run", tmp_path / "mine.yaml", "--data", world.corpus, "--out", tmp_path / "out")
    assert done.code == 2
    assert "did you mean 'total'?" in done.output


def test_a_device_that_there_is_not_is_named_with_those_that_there_are(
    antiphon: Antiphon, world: World, tmp_path: Path
) -> None:
    done = antiphon(*run_arguments(world.corpus, tmp_path / "out", "--device", "gpu"))
    assert done.code == 2
    assert done.output.startswith("error: no device 'gpu': cpu, cuda, cuda:1 … or auto")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("kind", "line"),
    [(signal.SIGINT, "Interrupted."), (signal.SIGTERM, "Terminated."), (signal.SIGHUP, "Hung up.")],
)
def test_a_signal_while_features_are_computed_is_one_line(
    kind: signal.Signals, line: str, world: World, tmp_path: Path
) -> None:
    fault = Fault("antiphon.experiment.preparation.compute_features", 1, kind)
    done = in_fork(run_arguments(world.corpus, tmp_path / "out"), tmp_path / "log", fault)
    assert (done.code, done.output.strip()) == (128 + kind, line)
    assert not (tmp_path / "out").exists()


# --- Folders that are there already ---------------------------------------------------------------


def test_a_folder_with_an_experiment_or_anything_else_in_it_is_not_overwritten(
    antiphon: Antiphon, world: World, finished: Path, tmp_path: Path
) -> None:
    done = antiphon(*run_arguments(world.corpus, finished))
    assert done.code == 2
    assert "add --resume to go on" in done.output
    (tmp_path / "thesis.tex").touch()
    done = antiphon(*run_arguments(world.corpus, tmp_path))
    assert done.code == 2
    assert "is not empty and holds no experiment" in done.output


@pytest.mark.parametrize("more", [(), ("--jobs", "2")])
def test_a_wrong_only_leaves_no_folder_that_would_block_the_right_one(
    antiphon: Antiphon, world: World, tmp_path: Path, more: tuple[str, ...]
) -> None:
    out = tmp_path / "out"
    done = antiphon(*run_arguments(world.corpus, out, *more, "--only", "fedagv"))
    assert done.code == 2
    assert "unknown run 'fedagv'; did you mean 'fedavg'?" in done.output
    done = antiphon(*run_arguments(world.corpus, out, *more, "--only", "fedavg"))
    assert done.code == 2
    assert "run 'fedavg' starts from 'seed', which has not finished in" in done.output
    assert "add --only seed (in Python: only=['seed', …]), or leave out --only" in done.output
    assert not out.exists()


def test_a_file_in_the_place_of_the_folder_is_named(antiphon: Antiphon, world: World, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("my work")
    done = antiphon(*run_arguments(world.corpus, tmp_path / "thesis.tex"))
    assert done.code == 2
    assert "thesis.tex is a file, not a folder: choose another folder" in done.output
    assert "Errno" not in done.output
    done = antiphon("demo", "--out", tmp_path / "thesis.tex" / "demo")
    assert "thesis.tex is a file" in done.output
    assert (tmp_path / "thesis.tex").read_text() == "my work"


@pytest.mark.parametrize(
    ("setting", "line"),
    [
        ("seed=5", "seed: was 0, now 5"),
        ("runs.fedavg.algorithm.local.lr=0.5", "runs.fedavg.algorithm.fed_avg.local.lr: was 0.05, now 0.5"),
        ("runs.fedavg.rounds.total=3", "runs.fedavg.rounds.total: was 4, now 3"),
        ("runs.seed.rounds.total=4", "runs.seed.rounds.total: was 3, now 4"),  # fedavg began from round 3
    ],
)
def test_resuming_with_another_configuration_is_refused_by_key(
    antiphon: Antiphon, world: World, finished: Path, setting: str, line: str
) -> None:
    done = antiphon(*run_arguments(world.corpus, finished, "--resume", settings=[setting]))
    assert done.code == 2
    assert "cannot be resumed with another configuration" in done.output
    assert line in " ".join(done.output.split())


def test_a_folder_of_before_a_setting_was_invented_can_be_resumed(tmp_path: Path) -> None:
    experiment = recipe("dga")
    body = config.to_dict(experiment)
    del body["runs"]["dga"]["labelled"], body["precision"]
    about = {"format": "antiphon-experiment/1", "runs": list(body["runs"]), "config": body}
    (tmp_path / "experiment.json").write_text(json.dumps(about))
    check_folder(tmp_path, experiment, resume=True)
    with pytest.raises(ValueError, match="precision: was 'float32', now 'bfloat16'"):
        check_folder(tmp_path, replace(experiment, precision="bfloat16"), resume=True)


def test_resuming_on_another_corpus_is_refused(
    antiphon: Antiphon, finished: Path, world: World, tmp_path: Path
) -> None:
    source = write_source(tmp_path / "source", num_utterances=3)
    assert antiphon("corpus", "import", source, tmp_path / "corpus").code == 0
    done = antiphon(*run_arguments(tmp_path / "corpus", finished, "--resume"))
    assert done.code == 2
    assert "is not the corpus it began with" in " ".join(done.output.split())


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (
            ["adapt", "seed", "--text", "a.txt", "--rehearse", "speech"],
            "sessions are at the sites",
        ),
        (["personalize", "--background", "a.txt"], "give one number of rounds"),
    ],
)
def test_what_cannot_be_done_with_sites_is_said(
    antiphon: Antiphon, tmp_path: Path, words: list[str], reason: str
) -> None:
    done = antiphon(*words, "--out", tmp_path / "out", "--federation", "kits/server")
    assert done.code == 2
    assert reason in " ".join(done.output.split())
    assert not (tmp_path / "out").exists()
