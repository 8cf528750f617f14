"""antiphon: federated learning of speech recognition.

Every command of the command line is a function here: `antiphon run` is `antiphon.run`. A name is loaded
when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from antiphon.config import override
    from antiphon.data.corpus import Corpus
    from antiphon.data.importing.candidates import ImportOptions
    from antiphon.data.importing.conversion import import_corpus
    from antiphon.experiment.runner import run_experiment
    from antiphon.recipes import recipe
    from antiphon.recognizer import Recognizer
    from antiphon.report import report, write_report
    from antiphon.workflows.adapt_model import adapt
    from antiphon.workflows.compare_runs import alignments, compare
    from antiphon.workflows.decode_speech import nbest
    from antiphon.workflows.describe_corpus import describe_corpus
    from antiphon.workflows.evaluate_run import evaluate, transcribe
    from antiphon.workflows.personalize_lists import NoiseSettings, personalize
    from antiphon.workflows.prune_model import plan_pruning, prune
    from antiphon.workflows.rescore_lists import rescore
    from antiphon.workflows.run_recipe import demo, list_recipes, run
    from antiphon.workflows.train_lm import train_ngram_lm, train_transformer_lm

__version__ = "0.1.0"
__all__ = [
    "Corpus",
    "ImportOptions",
    "NoiseSettings",
    "Recognizer",
    "adapt",
    "alignments",
    "compare",
    "demo",
    "describe_corpus",
    "evaluate",
    "import_corpus",
    "list_recipes",
    "nbest",
    "override",
    "personalize",
    "plan_pruning",
    "prune",
    "recipe",
    "report",
    "rescore",
    "run",
    "run_experiment",
    "train_ngram_lm",
    "train_transformer_lm",
    "transcribe",
    "write_report",
]
_HOMES = {
    "Corpus": "data.corpus",
    "ImportOptions": "data.importing.candidates",
    "NoiseSettings": "workflows.personalize_lists",
    "Recognizer": "recognizer",
    "adapt": "workflows.adapt_model",
    "alignments": "workflows.compare_runs",
    "compare": "workflows.compare_runs",
    "demo": "workflows.run_recipe",
    "describe_corpus": "workflows.describe_corpus",
    "evaluate": "workflows.evaluate_run",
    "import_corpus": "data.importing.conversion",
    "list_recipes": "workflows.run_recipe",
    "nbest": "workflows.decode_speech",
    "override": "config",
    "personalize": "workflows.personalize_lists",
    "plan_pruning": "workflows.prune_model",
    "prune": "workflows.prune_model",
    "recipe": "recipes",
    "rescore": "workflows.rescore_lists",
    "run": "workflows.run_recipe",
    "run_experiment": "experiment.runner",
    "train_ngram_lm": "workflows.train_lm",
    "train_transformer_lm": "workflows.train_lm",
    "transcribe": "workflows.evaluate_run",
    "write_report": "report",
}


def __getattr__(name: str) -> Any:
    if name == "report":  # the package is the function too: it can be called
        return importlib.import_module("antiphon.report")
    if name not in _HOMES:
        raise AttributeError(f"module 'antiphon' has no attribute {name!r}")
    return getattr(importlib.import_module(f"antiphon.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
