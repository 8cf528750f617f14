"""antiphon: federated learning of speech recognition.

The names below are what a script needs; each is loaded when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from antiphon.config import override
    from antiphon.data.candidates import ImportOptions
    from antiphon.data.corpus import Corpus
    from antiphon.data.importing import import_corpus
    from antiphon.decoding.recognizer import Recognizer
    from antiphon.recipes import recipe
    from antiphon.recipes.launch import run_experiment
    from antiphon.report import write_report

__version__ = "0.1.0"
__all__ = [
    "Corpus",
    "ImportOptions",
    "Recognizer",
    "import_corpus",
    "override",
    "recipe",
    "run_experiment",
    "write_report",
]
_HOMES = {
    "Corpus": "data.corpus",
    "ImportOptions": "data.candidates",
    "Recognizer": "decoding.recognizer",
    "import_corpus": "data.importing",
    "override": "config",
    "recipe": "recipes",
    "run_experiment": "recipes.launch",
    "write_report": "report",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'antiphon' has no attribute {name!r}")
    return getattr(importlib.import_module(f"antiphon.{_HOMES[name]}"), name)
