"""The model card of a finished run: numbers of its files, and nothing private."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from world import FRONTEND, MODELS, World

from antiphon.algorithms.central import Central
from antiphon.algorithms.dga_rl import DgaRl
from antiphon.algorithms.fedavg import dga, hierarchical
from antiphon.algorithms.private import Private
from antiphon.data.corruption.corrupted_clients import Corruption
from antiphon.data.partition import Iid
from antiphon.engine import Rounds
from antiphon.experiment import runner
from antiphon.experiment.settings import Experiment, Run, Speakers
from antiphon.privacy.participation import RoundRobin
from antiphon.report.model_card import model_card
from antiphon.tasks.local_training import LocalTraining
from antiphon.tasks.update_clipping import EachLayer

LOCAL = LocalTraining(lr=0.05, epochs=1, batch_seconds=1.5)
SECRET = "speaker/s00"  # a client that the settings name


@pytest.fixture(scope="module")
def out(world: World, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """An experiment whose settings name speakers."""
    folder = tmp_path_factory.mktemp("card")
    corpus = shutil.copytree(world.corpus, folder / "corpus")
    experiment = Experiment(
        "settings/tiny.yaml",
        frontend=FRONTEND,
        model=MODELS["ctc"],
        speakers=Speakers(seed_fraction=0.25),
        corruption=Corruption(names=(SECRET,), max_utterances=2),
        runs={
            "seed": Run(Central(LocalTraining(steps=2)), "seed", Iid(1), "", Rounds(total=1, cohort=1)),
            "dga": Run(
                DgaRl(dga(LOCAL), validation=("valid/s08", "valid/s09")), rounds=Rounds(total=1, cohort=4)
            ),
            "private": Run(
                Private(hierarchical(LOCAL), 4.0, clipping=EachLayer(0.2), cohorts=RoundRobin(2)),
                rounds=Rounds(total=2, cohort=3, min_clients=0),
            ),
        },
    )
    runner.run_experiment(experiment, corpus, folder / "out", device="cpu")
    yield folder / "out"
    torch.use_deterministic_algorithms(False)  # a run asks for them in the whole process


def test_a_finished_run_has_a_card_beside_its_model(out: Path) -> None:
    text = (out / "dga" / "model" / "README.md").read_text()
    assert text == model_card(out / "dga")
    training = json.loads((out / "dga" / "model" / "model.json").read_text())["notes"]["training"]
    assert training["clients"] == training["speakers"] == 6  # 8 of the pool, without a quarter for the seed
    row = f"| 6 | 6 | {training['utterances']} | {training['hours']:.2f} |"
    assert row in text
    assert "trained with antiphon by `dga_rl` in 1 round." in text
    assert re.search(r"\| algorithm: dga_rl\S*\.local\.lr \| 0\.05 \|", text)
    assert "| recipe | tiny.yaml |" in text
    assert "Differential privacy: none." in text


def test_the_card_and_the_results_of_a_private_run_state_what_it_guarantees(
    out: Path,
) -> None:
    text = (out / "private" / "model" / "README.md").read_text()
    results = (out / "RESULTS.md").read_text()
    for words in (
        "(ε = 4, δ = 1e-06) for every client, after 2 rounds",
        "clipped to an l2 norm of 0.2 (each_layer)",
        "drawn by round_robin (separation 2, slack 0)",
        "Not covered: the journal of the run (losses",
    ):
        assert words in text
        assert words in results
    assert "Differential privacy: none." not in text
    assert "simulation, and whoever knows the seed" not in text
    stated = results.split("## Differential privacy")[1].split("##")[0]
    assert "**private**" in stated
    assert "**dga**" not in stated


def test_results_are_those_of_the_scores(out: Path) -> None:
    scores = json.loads((out / "dga" / "evaluation" / "test" / "best" / "scores.json").read_text())
    words = scores["words"]
    errors = words["substitutions"] + words["deletions"] + words["insertions"]
    wer = 100 * errors / words["length"]
    text = model_card(out / "dga")
    assert f"| test | this model | {wer:.2f} [" in text
    metadata = yaml.safe_load(text.split("---\n")[1])
    (result,) = metadata["model-index"][0]["results"]
    assert result["metrics"][0] == {"type": "wer", "value": round(wer, 2)}
    assert metadata["pipeline_tag"] == "automatic-speech-recognition"


def test_a_card_names_no_speaker_and_quotes_no_text(out: Path, world: World) -> None:
    for run in ("seed", "dga"):
        text = model_card(out / run)
        assert not re.search(r"\bs\d\d\b", text)  # the speakers of the world
        assert str(out) not in text
        for index in range(len(world.store)):
            assert world.store.text(index) not in text
            assert world.store.id(index) not in text


def test_a_central_run_does_not_claim_to_be_federated(out: Path) -> None:
    assert "The model was trained in one place" in model_card(out / "seed")
    assert "clients sent changes" in model_card(out / "dga")


def test_a_model_without_its_run_has_a_card_that_says_so(out: Path, tmp_path: Path) -> None:
    shutil.copytree(out / "dga" / "model", tmp_path / "model")
    text = model_card(tmp_path / "model")
    assert "Its folder has no record of its training." in text
    assert "The model was not evaluated." in text


def test_an_older_run_counts_the_speech_in_its_journal(out: Path, tmp_path: Path) -> None:
    shutil.copytree(out / "dga", tmp_path / "dga")
    path = tmp_path / "dga" / "model" / "model.json"
    body = json.loads(path.read_text())
    body["notes"] = {"run": "dga", "round": 1}
    del body["sha256"]
    path.write_text(json.dumps(body))
    assert "6 clients; those that took part have 0.00 hours of speech." in model_card(tmp_path / "dga")
