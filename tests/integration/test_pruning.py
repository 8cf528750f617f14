"""A run that is pruned leaves an ordinary model: what loads it later need not know."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from command import SETTINGS, Antiphon
from world import World

from antiphon import config
from antiphon.algorithms.pruning import FederatedPruning
from antiphon.algorithms.pruning_slices import HalfColumn, weights_of
from antiphon.data.partition import BySpeaker
from antiphon.engine import Rounds
from antiphon.experiment.folder import claim_folder
from antiphon.experiment.runner import run_experiment
from antiphon.experiment.settings import Experiment, Run
from antiphon.models.reduced import ReducedConfig, structure_of
from antiphon.recipes import recipe
from antiphon.recognizer import Recognizer
from antiphon.workflows.prune_model import PRESETS, plan_pruning, pruned_experiment


def experiment() -> Experiment:
    """A seed model, a pruned one from it, and a federated run that goes on with that."""
    tiny = config.override(recipe("fedavg"), [*SETTINGS, "runs.seed.rounds.total=1"])
    averaged = tiny.runs["fedavg"]
    short = Rounds(total=3, cohort=3)
    pruned = Run(FederatedPruning(averaged.algorithm, mask_every=1, fine_tune_from=2), rounds=short)  # type: ignore[arg-type]
    further = replace(averaged, start_run="pruned", rounds=replace(short, total=1))
    return replace(tiny, runs={"seed": tiny.runs["seed"], "pruned": pruned, "further": further})


@pytest.fixture(scope="module")
def done(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("pruning") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("antiphon.experiment.runner.write_report", lambda *args: None)
        run_experiment(experiment(), world.corpus, out)
    torch.use_deterministic_algorithms(False)
    return out


def parameters(run: Path) -> int:
    return sum(p.numel() for p in Recognizer.load(run).model.parameters())


def test_the_result_is_small_and_from_the_last_phase(done: Path) -> None:
    journal = [json.loads(line) for line in (done / "pruned" / "journal.jsonl").read_text().splitlines()]
    assert [entry["round"] for entry in journal] == [0, 1, 2, 3]
    about = json.loads((done / "pruned" / "model" / "model.json").read_text())
    assert about["notes"]["round"] in (2, 3)  # whatever rounds 0 and 1 scored
    assert "reduced" in about["blueprint"]["model"]
    ratio = parameters(done / "pruned") / parameters(done / "seed")
    assert ratio == pytest.approx(
        plan_pruning(done / "seed").bytes_after / plan_pruning(done / "seed").bytes_before
    )
    seed = Recognizer.load(done / "seed").model
    cost = sum(p.numel() for p in seed.parameters()) * 4
    assert all(entry["bytes_down"] < 0.7 * 3 * cost for entry in journal[1:])
    # The same tensors travel both ways; on the way down there are settings too, such as what is kept.
    assert {entry["bytes_up"] for entry in journal[1:]} == {3 * 4 * parameters(done / "pruned")}
    assert all(entry["bytes_down"] > entry["bytes_up"] for entry in journal[1:])


def test_a_further_run_starts_from_the_small_model_and_stays_small(done: Path) -> None:
    small, further = (Recognizer.load(done / name) for name in ("pruned", "further"))
    assert further.blueprint == small.blueprint
    assert isinstance(further.blueprint.model, ReducedConfig)
    before, after = (dict(r.model.named_parameters()) for r in (small, further))
    assert {n: p.shape for n, p in before.items()} == {n: p.shape for n, p in after.items()}
    assert (done / "further" / "evaluation" / "test" / "best" / "scores.json").exists()


def test_evaluate_and_transcribe_load_it(done: Path, world: World, antiphon: Antiphon) -> None:
    scored = antiphon("evaluate", done / "pruned", "--split", "test")
    assert scored.code == 0, scored.output
    again = json.loads((done / "pruned" / "evaluation" / "test" / "best" / "scores.json").read_text())
    assert f"{again['words']['substitutions']}/" in scored.output
    sound = next((world.corpus.parent / "source").glob("*.wav"))
    assert antiphon("transcribe", done / "pruned", sound).code == 0
    listed = antiphon("nbest", done / "pruned", "--split", "test", "--out", done / "lists.jsonl")
    assert listed.code == 0, listed.output


def test_prune_takes_a_run_of_another_folder(
    done: Path, tmp_path: Path, antiphon: Antiphon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("antiphon.experiment.runner.write_report", lambda *args: None)
    made = antiphon(
        "prune", done / "seed", "--out", tmp_path / "half", "--rounds", "2", "--set", "mask_every=1"
    )
    assert made.code == 0, made.output
    assert parameters(tmp_path / "half" / "pruned") == parameters(done / "pruned")
    refused = antiphon("prune", done / "pruned", "--out", tmp_path / "more")
    assert refused.code == 2
    assert "pruned already" in refused.output
    assert not (tmp_path / "more").exists()
    with pytest.raises(
        ValueError, match="'more' would prune the model of 'further', which is pruned already"
    ):
        replace(
            experiment(),
            runs={
                **experiment().runs,
                "more": Run(FederatedPruning(), start_run="further", rounds=Rounds(40)),
            },
        )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--sparsity", "1"], "sparsity is a share of at least 0 and below 1"),
        (["--sparsity", "0.99"], "would lose every unit"),
        (["--set", "layers=decoder.*"], "matches no layer that can be pruned"),
        (["--set", "pattern=quarter"], "unknown choice 'quarter'"),
    ],
)
def test_bad_input_is_refused_before_training(
    arguments: list[str], said: str, done: Path, tmp_path: Path, antiphon: Antiphon
) -> None:
    for more in (["--plan"], ["--out", str(tmp_path / "x")]):
        refused = antiphon("prune", done / "seed", *arguments, *more)
        assert refused.code == 2
        assert said in " ".join(refused.output.split())
    assert not (tmp_path / "x" / "pruned").exists()


def test_a_run_that_would_end_before_the_model_is_small_is_refused() -> None:
    with pytest.raises(ValueError, match=r"rounds\.total is 30, so the model would never be made small"):
        Run(FederatedPruning(), rounds=Rounds(total=30))


# Table 1 of the paper, for its 17 × 512 Conformer.
@pytest.mark.parametrize(
    ("sparsity", "ratio"), [(0.1, 0.136), (0.2, 0.264), (0.3, 0.384), (0.4, 0.496), (0.5, 0.600)]
)
def test_the_paper_s_zero_parameter_ratios(sparsity: float, ratio: float, antiphon: Antiphon) -> None:
    printed = antiphon("prune", "--plan", "transducer-published", "--sparsity", str(sparsity))
    assert printed.code == 0, printed.output
    assert f"zero-parameter ratio {ratio:.3f}" in printed.output


def test_a_plan_names_every_weight_with_what_is_kept(antiphon: Antiphon) -> None:
    printed = antiphon("prune", "--plan", "transducer-published", "--sparsity", "0.5").output
    line = next(row for row in printed.splitlines() if "layers.16.feed_forward_before.4" in row)
    sizes = "512 × 2048  256 × 1024   75.0 %  4,194,304   1,048,576"
    assert " ".join(line.split()[1:]) == " ".join(sizes.split())
    assert "convolution" not in printed
    assert antiphon("prune", "--plan", "conformer-huge").code == 2
    adaptive = antiphon("prune", "--plan", "las-small", "--set", "allocation=adaptive")
    assert "adaptive sparsity depends on the weights" in adaptive.output


@pytest.mark.parametrize("pattern", ["half_column", "half_row"])
def test_a_preset_has_no_weights_to_say_which_halves_go_together(pattern: str, antiphon: Antiphon) -> None:
    """A hidden unit is removed with both halves. Weights of 0 lose the same halves everywhere: 0.600."""
    refused = antiphon("prune", "--plan", "transducer-small", "--set", f"pattern={pattern}")
    assert refused.code == 2
    assert "the number of hidden units that are left depends on the weights" in refused.output
    # Layers without hidden units keep the same number of weights whichever halves are removed.
    plans = [plan_pruning("las-small", settings=[f"pattern={one}"]) for one in (pattern, "whole_column")]
    assert plans[0].zero_ratio == plans[1].zero_ratio


def test_random_weights_lose_a_quarter_of_the_hidden_units_by_halves() -> None:
    """Half of the halves go, independently: 0.4 · 0.5 + 0.4 · (1 − 0.5 · 0.75) + 0.2 · 0.5 = 0.55."""
    torch.manual_seed(0)
    model = PRESETS["transducer-small"].build(80, 500)
    params = {name: p.detach() for name, p in model.named_parameters()}
    pruning = FederatedPruning(structure=structure_of(model), pattern=HalfColumn())
    pieces = pruning.keep(params, 0.5).pieces(params)
    full = weights_of(params, pruning.slices)
    kept = sum(piece.of(full[name]).numel() for name in full for piece in pieces[name])
    assert 1 - kept / sum(weight.numel() for weight in full.values()) == pytest.approx(0.55, abs=0.005)


def test_after_a_run_of_a_federation_its_clients_prune_under_the_same_protection(tmp_path: Path) -> None:
    """Such an experiment has seed_fraction 1: all speakers of the corpus are the server's."""
    tiny = config.override(
        recipe("fedavg"),
        [*SETTINGS, "speakers.seed_fraction=1.0", "runs.fedavg.secure_aggregation={max_share: 0.4}"],
    )
    claim_folder(tmp_path / "out", tiny, tmp_path / "corpus", "fingerprint")
    for name, secure in (("seed", None), ("fedavg", tiny.runs["fedavg"].secure_aggregation)):
        pruned, corpus = pruned_experiment(tmp_path / "out" / name, 0.5, 4, (), is_away=True)
        assert corpus == tmp_path / "corpus"
        assert pruned.runs["pruned"].data == "federated"
        assert pruned.runs["pruned"].clients == BySpeaker()
        assert pruned.runs["pruned"].secure_aggregation == secure
    alone, _ = pruned_experiment(tmp_path / "out" / "seed", 0.5, 4, (), is_away=False)
    assert alone.runs["pruned"].data == "both"
