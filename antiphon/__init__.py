"""antiphon: federated learning of speech recognition.

Every command of the command line is a function here: `antiphon run` is `antiphon.run`. A name is loaded
when it is first used. A script that asks a function for more than one process (such as `feature_processes=4`)
must make the call under `if __name__ == "__main__":`, because each process imports the script.
"""

# ruff: noqa: F401 (imports for type checkers only)

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from antiphon.config import override
    from antiphon.data.corpus import Corpus
    from antiphon.data.encoders import encoders
    from antiphon.data.importing.conversion import import_corpus
    from antiphon.data.importing.import_options import ImportOptions
    from antiphon.data.summary import describe_corpus
    from antiphon.experiment.runner import run_experiment
    from antiphon.exporting.export_folder import export
    from antiphon.recipes import recipe
    from antiphon.recognizer import Recognizer
    from antiphon.records.listener import RunInfo
    from antiphon.records.mlflow_sink import mlflow_listener
    from antiphon.records.wandb_sink import wandb_listener
    from antiphon.records.writer import Listener
    from antiphon.report import report, write_report
    from antiphon.workflows.adapt_model import adapt
    from antiphon.workflows.audit_run import audit
    from antiphon.workflows.compare_runs import alignments, compare
    from antiphon.workflows.evaluate_run import evaluate, nbest, transcribe
    from antiphon.workflows.new_project import new_project
    from antiphon.workflows.personalisation_results import NoiseSettings
    from antiphon.workflows.personalize_lists import personalize
    from antiphon.workflows.prune_model import plan_pruning, prune
    from antiphon.workflows.rescore_lists import rescore
    from antiphon.workflows.run_federation import create_federation, federation_status, join_federation
    from antiphon.workflows.run_recipe import demo, list_recipes, run
    from antiphon.workflows.train_lm import train_ngram_lm, train_transformer_lm

__version__ = "0.1.0"

_EXPORTS = {  # module -> its public names
    "config": ["override"],
    "data.encoders": ["encoders"],
    "data.importing.import_options": ["ImportOptions"],
    "data.corpus": ["Corpus"],
    "data.importing.conversion": ["import_corpus"],
    "data.summary": ["describe_corpus"],
    "recognizer": ["Recognizer"],
    "recipes": ["recipe"],
    "experiment.runner": ["run_experiment"],
    "exporting.export_folder": ["export"],
    "records.listener": ["RunInfo"],
    "records.mlflow_sink": ["mlflow_listener"],
    "records.wandb_sink": ["wandb_listener"],
    "records.writer": ["Listener"],
    "report": ["write_report"],
    "workflows.adapt_model": ["adapt"],
    "workflows.audit_run": ["audit"],
    "workflows.compare_runs": ["alignments", "compare"],
    "workflows.evaluate_run": ["evaluate", "nbest", "transcribe"],
    "workflows.new_project": ["new_project"],
    "workflows.personalisation_results": ["NoiseSettings"],
    "workflows.personalize_lists": ["personalize"],
    "workflows.prune_model": ["plan_pruning", "prune"],
    "workflows.rescore_lists": ["rescore"],
    "workflows.run_federation": ["create_federation", "federation_status", "join_federation"],
    "workflows.run_recipe": ["demo", "list_recipes", "run"],
    "workflows.train_lm": ["train_ngram_lm", "train_transformer_lm"],
}
_MODULES = {name: module for module, names in _EXPORTS.items() for name in names}
__all__ = sorted([*_MODULES, "report"])


def __getattr__(name: str) -> Any:
    if name == "report":  # the package is the function too: it can be called
        return importlib.import_module("antiphon.report")
    if name not in _MODULES:
        raise AttributeError(f"module 'antiphon' has no attribute {name!r}")
    return getattr(importlib.import_module(f"antiphon.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
