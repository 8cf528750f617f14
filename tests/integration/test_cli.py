"""The command line as a user types it, on a small corpus of tones."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from command import SETTINGS, Antiphon, run_arguments, script_in_fork
from world import World, tones, write_source, write_wav

from antiphon import config
from antiphon.data.corpus import Corpus
from antiphon.decoding.recognizer import Recognizer
from antiphon.recipes import RECIPES, recipe
from antiphon.recipes.folder import check_folder
from antiphon.report.trn import read_trn


@pytest.fixture(scope="session")
def finished(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An experiment that a real process ran from end to end."""
    out = tmp_path_factory.mktemp("finished") / "out"
    command = [sys.executable, "-m", "antiphon", *run_arguments(world.corpus, out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    assert "WER %" in done.stdout
    assert "report.html" in done.stdout
    return out


# --- Finding one's way ----------------------------------------------------------------------------


def test_help_names_every_command(antiphon: Antiphon) -> None:
    done = antiphon("--help")
    assert done.code == 0
    training = ("demo", "corpus", "recipes", "run", "evaluate", "transcribe", "report")
    decoding = ("compare", "alignments", "nbest", "rescore", "lm")
    for command in (*training, *decoding):
        assert command in done.output


def test_recipes_lists_each_with_what_it_is(antiphon: Antiphon) -> None:
    done = antiphon("recipes")
    assert done.code == 0
    for name, make in RECIPES.items():
        line = next(line for line in done.output.splitlines() if line.startswith(name + " "))
        assert (make.__doc__ or "").split()[0] in line


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_s_settings_are_yaml_that_makes_the_recipe_again(
    antiphon: Antiphon, name: str, tmp_path: Path
) -> None:
    done = antiphon("recipes", name)
    assert done.code == 0
    (tmp_path / "mine.yaml").write_text(done.output)
    again = recipe(str(tmp_path / "mine.yaml"))
    assert config.to_dict(again) == yaml.safe_load(done.output)
    assert config.to_dict(again)["runs"] == config.to_dict(RECIPES[name]())["runs"]


# --- Corpora --------------------------------------------------------------------------------------


def test_corpus_import_and_show(antiphon: Antiphon, tmp_path: Path) -> None:
    source = write_source(tmp_path / "source", num_utterances=3)
    (source / "s00-0.wav").write_bytes(b"this is not sound")
    done = antiphon("corpus", "import", source, tmp_path / "corpus")
    assert done.code == 0, done.output
    assert "12 speakers" in done.output
    assert "1 skipped" in done.output
    corpus = Corpus.open(tmp_path / "corpus")
    assert len(corpus) == 29
    shown = antiphon("corpus", "show", tmp_path / "corpus")
    assert shown.code == 0, shown.output
    for split in ("pool", "heldout", "test"):
        assert split in shown.output
    assert (tmp_path / "corpus-clients.png").stat().st_size > 1000


def test_corpus_import_refuses_a_destination_that_is_there(antiphon: Antiphon, world: World) -> None:
    done = antiphon("corpus", "import", world.corpus.parent / "source", world.corpus)
    assert done.code == 2
    assert "exists already" in done.output


def test_corpus_import_can_part_speakers_and_rename_splits(antiphon: Antiphon, tmp_path: Path) -> None:
    source = write_source(tmp_path / "source", num_utterances=2)
    done = antiphon("corpus", "import", source, tmp_path / "corpus", "--rename-split", "heldout=dev")
    assert done.code == 0, done.output
    assert {u.split for u in Corpus.open(tmp_path / "corpus").utterances()} == {"pool", "dev", "test"}


def test_corpus_show_of_something_else_says_what_to_do(antiphon: Antiphon, tmp_path: Path) -> None:
    done = antiphon("corpus", "show", tmp_path)
    assert done.code == 2
    assert "is not a corpus" in done.output
    assert "antiphon corpus import" in done.output


# --- Mistakes -------------------------------------------------------------------------------------


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
        ("runs.fedavg.start=nobody", "starts from 'nobody'"),
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
    del body["runs"]["dga"]["labelled"], body["bfloat16"]
    (tmp_path / "experiment.json").write_text(json.dumps({"config": body}))
    check_folder(tmp_path, experiment, resume=True)
    with pytest.raises(ValueError, match="bfloat16: was False, now True"):
        check_folder(tmp_path, replace(experiment, bfloat16=True), resume=True)


def test_resuming_on_another_corpus_is_refused(
    antiphon: Antiphon, finished: Path, world: World, tmp_path: Path
) -> None:
    source = write_source(tmp_path / "source", num_utterances=3)
    assert antiphon("corpus", "import", source, tmp_path / "corpus").code == 0
    done = antiphon(*run_arguments(tmp_path / "corpus", finished, "--resume"))
    assert done.code == 2
    assert "is not the corpus it began with" in " ".join(done.output.split())


# --- What a run needs -----------------------------------------------------------------------------

SLOW_TO_IMPORT = """
import sys
from antiphon import cli
from antiphon.recipes import launch

launch.write_report = lambda *arguments: None
try:
    cli.main()
finally:
    print("imported:", sorted({"matplotlib", "torch._dynamo", "torch._inductor"} & sys.modules.keys()))
"""


def test_a_run_waits_neither_for_torch_s_compiler_nor_for_a_drawing(world: World, tmp_path: Path) -> None:
    """Two seconds at every start, in every process."""
    (tmp_path / "script.py").write_text(SLOW_TO_IMPORT)
    arguments = run_arguments(world.corpus, tmp_path / "out")
    done = script_in_fork(tmp_path / "script.py", arguments, tmp_path / "log")
    assert done.code == 0, done.output
    assert done.output.endswith("imported: []\n")


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
