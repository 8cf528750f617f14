"""Recipes: functions that return an `Experiment`. One for every algorithm, one for every table.

The speakers of the corpus's `pool` are split into those of the server, on which the seed model is trained,
and the clients. `heldout` speakers choose the best round; `test` speakers give the result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from antiphon import config
from antiphon.experiment.settings import Experiment
from antiphon.recipes import single_algorithm, speech
from antiphon.recipes.demo import demo, demo_filterbank
from antiphon.recipes.librispeech_tables import librispeech, pruning_librispeech, self_training
from antiphon.recipes.session_adaptation import session_adaptation
from antiphon.recipes.table1 import table1, table1_trials
from antiphon.records.reading import read_yaml

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
    return _recipe(name, ())


def _recipe(name: str, inside: tuple[str, ...]) -> Experiment:
    """Return a recipe; the files of settings `inside` begin from it."""
    if name in inside:
        raise ValueError(f"{name} begins from itself: name one of antiphon's recipes, such as recipe: dga")
    if not name.endswith((".yaml", ".yml")):
        if name not in RECIPES:
            raise config.unknown(name, RECIPES, "", "recipe")
        return replace(RECIPES[name](), recipe=name)
    settings = read_yaml(Path(name))
    if not isinstance(settings, dict) or not isinstance(settings.get("recipe"), str):
        raise ValueError(f"{name} must name the recipe it begins from: recipe: dga")
    try:
        return config.overlay(_recipe(settings["recipe"], (*inside, name)), settings)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
