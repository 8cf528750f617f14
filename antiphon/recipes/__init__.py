"""Recipes: functions that return an `Experiment`. One for every algorithm, one for every table.

The corpus gives the speakers: its `pool` is parted into the server's own (on which the seed model is
trained) and the clients; `heldout` speakers choose the best round; `test` speakers give the result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import yaml

from antiphon import config
from antiphon.experiment.settings import Experiment
from antiphon.recipes.demo import demo
from antiphon.recipes.librispeech_gap import librispeech
from antiphon.recipes.pruning import pruning_librispeech
from antiphon.recipes.self_training import self_training
from antiphon.recipes.session_adaptation import session_adaptation
from antiphon.recipes.single_algorithm import (
    bmuf_blocks,
    central_training,
    dga_reinforced,
    dga_softmax,
    ditto,
    encoder_only,
    federated_averaging,
    federated_pruning,
    federated_sgd,
    geometric_median,
    hierarchical_optimisation,
    layer_clipping,
    norm_weighting,
    personal_layers,
    q_fedavg,
    scaffold,
    server_rehearsal,
)
from antiphon.recipes.speech import speech_ctc, speech_las, speech_transducer
from antiphon.recipes.table1 import table1, table1_trials

RECIPES: dict[str, Callable[[], Experiment]] = {
    "demo": demo,
    "central": central_training,
    "fedsgd": federated_sgd,
    "fedavg": federated_averaging,
    "hierarchical": hierarchical_optimisation,
    "bmuf": bmuf_blocks,
    "dga": dga_softmax,
    "dga-rl": dga_reinforced,
    "norm": norm_weighting,
    "median": geometric_median,
    "layer-clip": layer_clipping,
    "rehearsal": server_rehearsal,
    "subspace": encoder_only,
    "scaffold": scaffold,
    "q-fedavg": q_fedavg,
    "personal-layers": personal_layers,
    "ditto": ditto,
    "pruning": federated_pruning,
    "pruning-librispeech": pruning_librispeech,
    "librispeech": librispeech,
    "table1": table1,
    "table1-trials": table1_trials,
    "self-training": self_training,
    "speech-ctc": speech_ctc,
    "speech-las": speech_las,
    "speech-transducer": speech_transducer,
    "session-adaptation": session_adaptation,
}


def recipe(name: str) -> Experiment:
    """A recipe by name, or a YAML file: `recipe: NAME` and whatever settings differ from it.

    >>> recipe("dga").runs["dga"].rounds.cohort
    10
    """
    if not name.endswith((".yaml", ".yml")):
        if name not in RECIPES:
            raise config.unknown(name, RECIPES, "", "recipe")
        return replace(RECIPES[name](), recipe=name)
    try:
        settings = yaml.safe_load(Path(name).read_text())
    except (OSError, yaml.YAMLError) as error:
        raise ValueError(f"cannot read the settings in {name}: {error}") from error
    if not isinstance(settings, dict) or "recipe" not in settings:
        raise ValueError(f"{name} must name the recipe it begins from: recipe: dga")
    return config.overlay(recipe(str(settings["recipe"])), settings)
