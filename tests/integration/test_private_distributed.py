"""A whole simulated run whose clients add the noise themselves, from the settings of the documentation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from command import SETTINGS
from world import World

from antiphon import config
from antiphon.experiment.runner import run_experiment
from antiphon.experiment.settings import Experiment
from antiphon.recipes import recipe
from antiphon.recognizer import Recognizer
from antiphon.records.reading import read_yaml

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "private_distributed.yaml"


def experiment() -> Experiment:
    """The settings of the example, for a tiny model."""
    tiny = config.override(recipe("fedavg"), [s for s in SETTINGS if "runs.fedavg" not in s])
    settings = read_yaml(EXAMPLE)["runs"]["fedavg"]
    written = config.to_dict(tiny)
    written["runs"]["fedavg"] |= settings
    return config.from_dict(Experiment, written)


@pytest.fixture(scope="module")
def out(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("distributed")
    for name in ("one", "two"):
        run_experiment(experiment(), world.corpus, folder / name, device="cpu")
    yield folder
    torch.use_deterministic_algorithms(False)  # a run asks for them in the whole process


def test_two_runs_have_the_same_bits_though_masks_differ(out: Path) -> None:
    one, two = (Recognizer.load(out / name / "fedavg").model.state_dict() for name in ("one", "two"))
    assert all(torch.equal(one[name], two[name]) for name in one)
    journals = [(out / name / "fedavg" / "journal.jsonl").read_text().splitlines() for name in ("one", "two")]
    assert [json.loads(line).get("metrics") for line in journals[0]] == [
        json.loads(line).get("metrics") for line in journals[1]
    ]


def test_the_run_spends_its_budget_and_its_card_says_what_it_guarantees(out: Path) -> None:
    run = out / "one" / "fedavg"
    entries = [json.loads(line) for line in (run / "journal.jsonl").read_text().splitlines()]
    spent = [entry["metrics"]["epsilon"] for entry in entries if "epsilon" in entry.get("metrics", {})]
    assert len(spent) == 4
    assert 7.99 < spent[-1] <= 8.0
    assert any(entry.get("clients") for entry in entries)
    card = (run / "model" / "README.md").read_text()
    for words in ("(ε = 8, δ = 1e-06)", "against the server, too", "1 at most tell others", "simulation"):
        assert words in card
