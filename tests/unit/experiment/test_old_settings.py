"""Settings by the names they once had: in files, in `--set`, and in recipes that a file changes."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon import config
from antiphon.algorithms.pruning import FederatedPruning, PrunedState
from antiphon.algorithms.self_training import CurrentModel, MovingAverage, OtherModel, SelfTrained
from antiphon.core import ServerState
from antiphon.data.corruption.corrupted_clients import Corruption
from antiphon.experiment.settings import Experiment, Run, Speakers
from antiphon.models.ctc import CtcConfig
from antiphon.models.reduced import ReducedConfig
from antiphon.records.checkpoint import pack, unpack
from antiphon.tasks.pseudo_labels import (
    Labelling,
    LowEntropy,
    SentenceProbability,
    TokenProbability,
    TopPosterior,
)
from antiphon.tasks.submodel import Submodel, SubmodelLinear

SUBMODEL = Submodel({"output": SubmodelLinear(inputs="0-1")})

OLD = [
    (Speakers, {"parting": 7}, Speakers(split_seed=7)),
    (TopPosterior, {"least": 0.5}, TopPosterior(threshold=0.5)),
    (LowEntropy, {"least": 0.5}, LowEntropy(threshold=0.5)),
    (TokenProbability, {"least": 0.5}, TokenProbability(threshold=0.5)),
    (SentenceProbability, {"least": 0.5}, SentenceProbability(threshold=0.5)),
    (Labelling, {"num": 2}, Labelling(num_hypotheses=2)),
    (Corruption, {"most": 3, "fraction": 0.5}, Corruption(0.5, max_utterances=3)),
    (FederatedPruning, {"every": 2}, FederatedPruning(mask_every=2)),
    (FederatedPruning, {"spared": ["output"]}, FederatedPruning(exclude=("output",))),
    (CurrentModel, {"every": 3}, CurrentModel(update_every=3)),
    (MovingAverage, {"every": 3}, MovingAverage(update_every=3)),
    (OtherModel, {"model": "large"}, OtherModel(run="large")),
    (OtherModel, {"model": "out/large"}, OtherModel(folder="out/large")),
    (Run, {"start": "dga"}, Run(start_run="dga")),
    (Run, {"start": "out/dga"}, Run(start_folder="out/dga")),
    (Run, {"start": ""}, Run(start_run="")),
    (Run, {"data": "both"}, Run(data="both")),
    (Run, {"data": "seed+organisation"}, Run(data={"seed": 1, "organisation": 1})),
    (Run, {"data": "4*seed+organisation"}, Run(data={"seed": 4, "organisation": 1})),
]


@pytest.mark.parametrize(
    ("cls", "old", "new"), OLD, ids=lambda case: str(case) if isinstance(case, dict) else ""
)
def test_an_old_key_is_read(cls: type, old: dict[str, Any], new: Any) -> None:
    assert config.from_dict(cls, old) == new
    assert config.overlay(cls(), old) == new
    assignments = [f"{key}={','.join(v) if isinstance(v, list) else v}" for key, v in old.items()]
    assert config.override(cls(), assignments) == new
    assert not old.keys() & config.to_dict(new).keys() - {"data", "fraction"}


@pytest.mark.parametrize(
    ("assignment", "run"),
    [
        ("runs.one.data=both", Run(data="both", start_run="")),
        ("runs.one.data={seed: 3, organisation: 1}", Run(data={"seed": 3, "organisation": 1}, start_run="")),
        ("runs.one.data=3*seed+organisation", Run(data={"seed": 3, "organisation": 1}, start_run="")),
        ("runs.*.start=out/dga", Run(start_folder="out/dga")),
        ("runs.one.start_folder=out/dga", Run(start_folder="out/dga")),
    ],
)
def test_an_assignment_says_where_a_run_starts_and_on_what(assignment: str, run: Run) -> None:
    speakers = Speakers(organisation="organisation")
    before = Experiment(speakers=speakers, runs={"one": Run(start_run="")})
    assert config.override(before, [assignment]).runs["one"] == run


def test_a_run_starts_from_one_model() -> None:
    assert Run(start_folder="out/dga").start_run == ""
    with pytest.raises(ValueError, match="set start_run or start_folder to nothing"):
        Run(start_run="dga", start_folder="out/dga")
    with pytest.raises(ValueError, match="'start' is the old name of 'start_run': set one of them"):
        config.from_dict(Run, {"start": "dga", "start_run": "seed"})


def test_groups_are_taken_in_one_order() -> None:
    assert list(Run(data={"organisation": 1, "seed": 2}).times) == ["seed", "organisation"]


def test_a_teacher_in_a_folder_is_no_run() -> None:
    assert Run(SelfTrained(teacher=OtherModel(folder="out/large"))).teacher_run == ""
    assert Run(SelfTrained(teacher=OtherModel("large"))).teacher_run == "large"


def test_a_pruned_model_of_old_is_read() -> None:
    full = config.to_dict(CtcConfig())
    old = {"full": {"ctc": full}, "kept": {"layers": {"output": {"kept_linear": {"inputs": "0-1"}}}}}
    assert config.from_dict(ReducedConfig, old) == ReducedConfig(CtcConfig(), SUBMODEL)
    assert '"kept_linear"' in SUBMODEL.write()  # as it travels and is stored


def test_a_checkpoint_of_a_pruned_run_of_old_is_read() -> None:
    state = PrunedState(ServerState(3, {}), submodel=SUBMODEL.write(), sparsity=0.5)
    tree = pack(state, "state", {})
    tree["kept"] = tree.pop("submodel")
    assert unpack(tree, {}, PrunedState(ServerState(0, {}))) == state
