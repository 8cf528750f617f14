"""Experiments with corrupted clients, from settings to run.json, on the tiny world."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from world import FRONTEND, MODELS, World, assert_same

from antiphon import config
from antiphon.algorithms.central import Central
from antiphon.algorithms.fedavg import dga
from antiphon.clients.stacked.stacked_worker import StackedWorker
from antiphon.clients.worker import SpeechWorker
from antiphon.core import Task
from antiphon.data.corruption.corrupted_clients import Corruption
from antiphon.data.corruption.distortion import Babble, Distortion
from antiphon.data.corruption.wrong_transcripts import Shuffled
from antiphon.data.partition import BySpeaker, Iid
from antiphon.engine import Rounds
from antiphon.experiment import runner
from antiphon.experiment.preparation import Prepared, prepare
from antiphon.experiment.settings import Experiment, Run, Speakers
from antiphon.records.journal import read
from antiphon.tasks.local_training import LocalTraining

LOCAL = LocalTraining(lr=0.05, epochs=1, batch_seconds=1.5)
BABBLE = Corruption(0.5, audio=Distortion(noise=Babble(0.0, 3)))
SHUFFLED = Corruption(0.5, transcripts=Shuffled())
FEWER = Corruption(0.5, max_utterances=2)
KINDS = {"babble": BABBLE, "shuffled": SHUFFLED, "fewer": FEWER}
every_kind = pytest.mark.parametrize("corruption", KINDS.values(), ids=list(KINDS))


def experiment(corruption: Corruption, total: int = 1, clients: Any = BySpeaker()) -> Experiment:
    runs = {
        "seed": Run(Central(LocalTraining(steps=2)), "seed", Iid(1), "", Rounds(total=1, cohort=1)),
        "dga": Run(dga(LOCAL), clients=clients, rounds=Rounds(total=total, cohort=4)),
        "both": Run(Central(LocalTraining(steps=2)), "both", Iid(1), "", Rounds(total=1, cohort=1)),
    }
    speakers = Speakers(seed_fraction=0.25)
    return Experiment(
        "tiny", frontend=FRONTEND, model=MODELS["ctc"], speakers=speakers, corruption=corruption, runs=runs
    )


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(runner, "write_report", lambda *arguments: None)
    yield
    torch.use_deterministic_algorithms(False)  # a run asks for them in the whole process


@pytest.fixture(scope="module")
def corpus(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shutil.copytree(world.corpus, tmp_path_factory.mktemp("corrupted") / "corpus")


def contents(prepared: Prepared, indices: np.ndarray) -> list[tuple[str, bytes]]:
    store = prepared.store
    return [(store.text(int(index)), store.features(int(index)).tobytes()) for index in indices]


# --- Data -----------------------------------------------------------------------------------------


@every_kind
def test_seed_validation_test_and_clean_clients_have_what_they_had(
    corpus: Path, corruption: Corruption
) -> None:
    clean, bad = (prepare(experiment(kind), corpus, "cpu") for kind in (Corruption(), corruption))
    for group in ("seed", "valid", "test"):
        np.testing.assert_array_equal(clean.groups[group], bad.groups[group])
        assert contents(clean, clean.groups[group]) == contents(bad, bad.groups[group]), group
    assert len(bad.corrupted.clients) == 3
    for name, indices in clean.clients["dga"].items():
        same = contents(clean, indices) == contents(bad, bad.clients["dga"][name])
        assert same == (name not in bad.corrupted.clients), name


def test_runs_with_other_clients_train_on_the_same_bad_utterances(corpus: Path) -> None:
    by_speaker = prepare(experiment(FEWER), corpus, "cpu")
    by_part = prepare(experiment(FEWER, clients=Iid(4)), corpus, "cpu")
    seen = [np.sort(np.concatenate(list(p.clients["dga"].values()))) for p in (by_speaker, by_part)]
    np.testing.assert_array_equal(*seen)
    seed = by_part.groups["seed"]
    np.testing.assert_array_equal(np.sort(by_part.clients["both"]["part/0"]), np.union1d(seed, seen[0]))


def test_parts_of_a_run_are_the_same_with_and_without_fewer_utterances(corpus: Path) -> None:
    parts = replace(FEWER, clients=Iid(4))
    clean, bad = (prepare(experiment(kind, clients=Iid(4)), corpus, "cpu") for kind in (Corruption(), parts))
    for name, indices in clean.clients["dga"].items():
        if name in bad.corrupted.clients:
            assert len(bad.clients["dga"][name]) == 2
            assert set(bad.clients["dga"][name]) < set(indices)
        else:
            np.testing.assert_array_equal(bad.clients["dga"][name], indices)


# --- Workers --------------------------------------------------------------------------------------


def updates(prepared: Prepared, world: World, kind: type) -> dict[str, Any]:
    """What every client answers to one task."""
    runtime = replace(world, store=prepared.store).exact_runtime()
    task = Task("train", runtime.base, {**LOCAL.to_task(), "round": 1, "seed": 3})
    worker = kind(runtime, prepared.clients["dga"])
    return {update.reports[0].client: update for update in worker.run(task, list(prepared.clients["dga"]))}


@every_kind
def test_workers_of_both_kinds_see_the_same_data_and_clean_clients_train_as_ever(
    corpus: Path, world: World, corruption: Corruption
) -> None:
    clean, bad = (prepare(experiment(kind), corpus, "cpu") for kind in (Corruption(), corruption))
    before, after = updates(clean, world, SpeechWorker), updates(bad, world, SpeechWorker)
    at_once = updates(bad, world, StackedWorker)
    for name in after:
        assert_same(after[name].mean, at_once[name].mean, tolerance=1e-9)
        if name in bad.corrupted.clients:
            assert before[name].reports[0].stats["loss"] != after[name].reports[0].stats["loss"]
        else:
            assert_same(before[name], after[name])


# --- Runs -----------------------------------------------------------------------------------------


def test_a_run_says_who_was_corrupted_and_goes_on_after_a_stop(corpus: Path, tmp_path: Path) -> None:
    both = replace(BABBLE, transcripts=Shuffled(), keep=0.8)
    runner.run_experiment(experiment(both, total=3), corpus, tmp_path / "straight", device="cpu")
    runner.run_experiment(experiment(both, total=1), corpus, tmp_path / "again", device="cpu")
    runner.run_experiment(experiment(both, total=3), corpus, tmp_path / "again", resume=True, device="cpu")
    journals = [read(tmp_path / name / "dga" / "journal.jsonl") for name in ("straight", "again")]
    assert journals[0] == journals[1]
    about = json.loads((tmp_path / "straight" / "dga" / "run.json").read_text())
    prepared = prepare(experiment(both), corpus, "cpu")
    assert about["corrupted"] == dict.fromkeys(prepared.corrupted.clients, 1.0)
    assert config.from_dict(Corruption, about["config"]["corruption"]) == both
    assert json.loads((tmp_path / "straight" / "seed" / "run.json").read_text())["corrupted"] == {}
    central = json.loads((tmp_path / "straight" / "both" / "run.json").read_text())["corrupted"]
    assert 0 < central["part/0"] < 1


def test_an_experiment_is_not_resumed_with_another_corruption(corpus: Path, tmp_path: Path) -> None:
    runner.run_experiment(experiment(SHUFFLED), corpus, tmp_path / "out", device="cpu", only=["seed"])
    other = experiment(replace(SHUFFLED, fraction=0.25))
    with pytest.raises(ValueError, match=r"corruption.fraction: was 0.5, now 0.25"):
        runner.run_experiment(other, corpus, tmp_path / "out", resume=True, device="cpu")


def test_the_first_round_of_clean_clients_is_that_of_a_run_without_corruption(
    corpus: Path, tmp_path: Path
) -> None:
    rounds = []
    for name, kind in (("clean", Corruption()), ("bad", SHUFFLED)):
        runner.run_experiment(experiment(kind), corpus, tmp_path / name, device="cpu")
        rounds.append(read(tmp_path / name / "dga" / "journal.jsonl")[1])
    corrupted = json.loads((tmp_path / "bad" / "dga" / "run.json").read_text())["corrupted"]
    assert rounds[0]["cohort"] == rounds[1]["cohort"]
    clean = [name for name in rounds[0]["clients"] if name not in corrupted]
    assert 0 < len(clean) < 4
    for name in rounds[0]["clients"]:
        losses = [one["clients"][name]["loss"] for one in rounds]
        assert (losses[0] == losses[1]) == (name in clean)
