"""Settings of tables that need a GPU: every run of them works, on a tiny corpus for one round."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from command import script_in_fork
from world import FRONTEND, MASKS, MODELS, World

from antiphon.algorithms.central import Central
from antiphon.algorithms.fedbuff import FedBuff
from antiphon.engine import Rounds
from antiphon.experiment.runner import run_experiment
from antiphon.experiment.settings import Experiment, Run
from antiphon.recipes import recipe

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def tiny(name: str) -> Experiment:
    """Return a file of benchmarks/ for the tiny world: its own runs and their seed model, for a round."""
    whole, of_recipe = recipe(str(BENCHMARKS / f"{name}.yaml")), recipe("librispeech")
    assert whole.recipe == "librispeech"
    runs = {name: small(run) for name, run in whole.runs.items() if name not in of_recipe.runs}
    local = replace(whole.runs["seed"].algorithm.local, steps=2, batch_seconds=1.5)
    central = replace(whole.runs["seed"], algorithm=Central(local), rounds=Rounds(total=1, cohort=1))
    frontend: Any = {"frontend": FRONTEND, "model": MODELS["ctc"], "augment": MASKS}
    return replace(whole, runs={"seed": central, **runs}, **frontend)


def small(run: Run) -> Run:
    assert run.start_run == "seed"
    assert run.rounds.total > 1
    algorithm: Any = run.algorithm
    if isinstance(algorithm, FedBuff):
        algorithm = replace(algorithm, buffer=2)
    return replace(run, algorithm=algorithm, rounds=replace(run.rounds, total=1, cohort=3, valid_every=0))


def test_all_pairs_of_optimisers_train_from_one_seed_model(world: World, tmp_path: Path) -> None:
    settings = tiny("optimizer-pairs-librispeech")
    kinds = ("sgd", "adam", "lamb", "lars")
    clients = ("sgd", "momentum", "adam", "adamw")
    assert set(settings.runs) == {"seed", *(f"{client}-{server}" for client in clients for server in kinds)}
    scores = run_experiment(settings, world.corpus, tmp_path / "out", device="cpu")
    assert scores.keys() == settings.runs.keys()


def test_costs_of_devices_are_a_table_of_all_runs(world: World, tmp_path: Path) -> None:
    settings = tiny("devices-librispeech")
    run_experiment(settings, world.corpus, tmp_path / "out", device="cpu")
    options = ["--baseline", "float32", "--classes", "partial", "--out", tmp_path / "devices.json"]
    log = tmp_path / "devices.log"
    done = script_in_fork(BENCHMARKS / "devices.py", list(map(str, [tmp_path / "out", *options])), log)
    assert done.code == 0, done.output
    found = json.loads((tmp_path / "devices.json").read_text())
    costs = {name: row["costs"] for name, row in found["runs"].items()}
    assert costs.keys() == settings.runs.keys()
    up = [costs[name]["up"] for name in ("float32", "int8", "int4")]
    assert up == sorted(up, reverse=True)
    assert costs["int4-down-4"]["down"] < costs["int4"]["down"]
    assert costs["adapters"]["down"] < costs["float32"]["down"]
    assert costs["adapters-int8"]["up"] < costs["adapters"]["up"]
    assert costs["six-bits"]["stored"] < costs["float32"]["down"]
    assert costs["partial"]["up"] < costs["float32"]["up"]
    assert all(costs[name]["hours"] > 0 for name in costs if name != "seed")
    assert found["classes"]["partial"].keys() == found["classes"]["float32"].keys() == {"strong", "weak"}


def test_cohorts_of_all_sizes_and_the_model_of_the_papers_train(world: World, tmp_path: Path) -> None:
    cohorts = tiny("cohorts-librispeech")
    sizes = {
        name: run.rounds.cohort
        for name, run in recipe(str(BENCHMARKS / "cohorts-librispeech.yaml")).runs.items()
    }
    assert {f"cohort-{sizes[name]}" for name in cohorts.runs if name != "seed"} == {*cohorts.runs} - {"seed"}
    scores = run_experiment(cohorts, world.corpus, tmp_path / "cohorts", device="cpu")
    assert scores.keys() == cohorts.runs.keys()
    las = recipe(str(BENCHMARKS / "las-librispeech.yaml"))
    assert las.runs.keys() == recipe("librispeech").runs.keys()
    kept = {name: las.runs[name] for name in ("seed", "hierarchical")}
    local = replace(kept["seed"].algorithm.local, steps=1, batch_seconds=1.5)
    kept["seed"] = replace(kept["seed"], algorithm=Central(local), rounds=Rounds(total=1, cohort=1))
    kept["hierarchical"] = small(kept["hierarchical"])
    changed = replace(las, runs=kept, frontend=FRONTEND, tokens=replace(las.tokens, size=32), augment=MASKS)
    scores = run_experiment(changed, world.corpus, tmp_path / "las", device="cpu")
    assert scores.keys() == kept.keys()
