"""`antiphon new`: a project that runs, with the algorithm and the manifest that it was made with."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from command import SETTINGS, Antiphon, in_fork
from world import tones, write_wav

import antiphon as library
from antiphon.recipes import recipe


def record(folder: Path) -> Path:
    """Ten speakers, a folder each, with tones and their texts."""
    for number in range(10):
        generator, speaker = np.random.default_rng(number), folder / f"speaker{number}"
        speaker.mkdir(parents=True)
        for utterance in range(3):
            text = "".join(generator.choice(list("abc"), 3))
            write_wav(speaker / f"{utterance}.wav", tones(text, 1.0, generator))
            (speaker / f"{utterance}.txt").write_text(text + "\n")
    return folder


def test_a_project_runs_from_its_manifest_with_its_own_algorithm(antiphon: Antiphon, tmp_path: Path) -> None:
    recordings, project = record(tmp_path / "recordings"), tmp_path / "mine"
    done = antiphon("new", project, "--recipe", "fedavg", "--audio", recordings)
    assert done.code == 0, done.output
    assert "experiment.yaml, my_algorithm.py, test_my_algorithm.py, manifest.jsonl" in done.output
    assert "assumed: the speaker is the name of the first folder" in done.output
    assert len((project / "manifest.jsonl").read_text().splitlines()) == 30

    (command,) = (line for line in done.output.splitlines() if "corpus import" in line)
    words = shlex.split(command)[1:]
    words = [str(project / word) if word in ("manifest.jsonl", "corpus") and i > 1 else word
             for i, word in enumerate(words)]  # fmt: skip
    imported = antiphon(*words)
    assert imported.code == 0, imported.output
    assert "30 utterances, 10 speakers" in " ".join(imported.output.split())

    settings = [*SETTINGS, "runs.fedavg.rounds.total=2", "runs.fedavg.rounds.save_every=1"]
    settings = [s for s in settings if "runs.fedavg.algorithm" not in s]
    text = (project / "experiment.yaml").read_text()
    assert text.count("    # algorithm: my_algorithm:MyAlgorithm\n") == 1
    (project / "experiment.yaml").write_text(text.replace("# algorithm: my_", "algorithm: my_"))
    arguments = ["run", project / "experiment.yaml", "--data", project / "corpus", "--out", project / "out"]
    changes = [word for setting in settings for word in ("--set", setting)]
    run = in_fork([*map(str, arguments), *changes], tmp_path / "log", packages=[project])
    assert run.code == 0, run.output
    about = json.loads((project / "out" / "fedavg" / "run.json").read_text())
    assert list(about["config"]["algorithm"]) == ["my_algorithm:MyAlgorithm"]


def test_the_algorithms_own_test_passes(tmp_path: Path) -> None:
    project = library.new_project(tmp_path / "mine")
    assert project.files == ("experiment.yaml", "my_algorithm.py", "test_my_algorithm.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=project.folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


def test_the_settings_are_those_of_the_recipe(tmp_path: Path) -> None:
    folder = library.new_project(tmp_path / "mine", recipe="scaffold").folder
    assert recipe(str(folder / "experiment.yaml")) == recipe("scaffold")
    assert (
        "--set runs.scaffold.algorithm=my_algorithm:MyAlgorithm" in (folder / "my_algorithm.py").read_text()
    )
    text = (folder / "experiment.yaml").read_text()
    settings = yaml.safe_load(text.replace("# algorithm: my_algorithm", "algorithm: my_algorithm"))
    assert settings["runs"]["scaffold"]["algorithm"] == "my_algorithm:MyAlgorithm"
    assert settings["runs"]["seed"]["algorithm"] != "my_algorithm:MyAlgorithm"


def test_no_file_is_replaced_and_a_project_can_get_its_manifest_later(tmp_path: Path) -> None:
    recordings = record(tmp_path / "recordings")
    folder = library.new_project(tmp_path / "mine").folder
    (folder / "experiment.yaml").write_text("recipe: dga\nseed: 4\n")
    with pytest.raises(ValueError, match="is not empty: choose another folder"):
        library.new_project(folder)
    assert library.new_project(folder, audio=recordings).files == ("manifest.jsonl",)
    assert (folder / "experiment.yaml").read_text() == "recipe: dga\nseed: 4\n"
    with pytest.raises(ValueError, match=r"manifest\.jsonl exists"):
        library.new_project(folder, audio=recordings)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"recipe": "dgq"}, "did you mean 'dga'"), ({"audio": "nowhere"}, "nowhere is not a folder of audio")],
)
def test_a_wrong_project_leaves_no_folder(tmp_path: Path, options: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        library.new_project(tmp_path / "mine", **options)
    assert not (tmp_path / "mine").exists()
