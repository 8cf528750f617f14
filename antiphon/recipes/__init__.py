"""Recipes: functions that return an `Experiment`. One for every algorithm, one for every table.

The speakers of the corpus's `pool` are split into those of the server, on which the seed model is trained,
and the clients. `heldout` speakers choose the best round; `test` speakers give the result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import yaml

from antiphon import config
from antiphon.experiment.settings import Experiment
from antiphon.recipes import single_algorithm, speech
from antiphon.recipes.demo import demo, demo_filterbank
from antiphon.recipes.librispeech_tables import librispeech, pruning_librispeech, self_training
from antiphon.recipes.session_adaptation import session_adaptation
from antiphon.recipes.table1 import table1, table1_trials

RECIPES: dict[str, Callable[[], Experiment]] = {
    "demo": demo,
    "demo-filterbank": demo_filterbank,
    **{name: single_algorithm.after_seed(name) for name in single_algorithm.AFTER_SEED},
    "pruning-librispeech": pruning_librispeech,
    "librispeech": librispeech,
    "table1": table1,
    "table1-trials": table1_trials,
    "self-training": self_training,
    "speech-ctc": speech.speech_ctc,
    "speech-las": speech.speech_las,
    "speech-transducer": speech.speech_transducer,
    "session-adaptation": session_adaptation,
}


def recipe(name: str) -> Experiment:
    """Return a recipe by name, or that of a YAML file: `recipe: NAME` and the settings that differ.

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
