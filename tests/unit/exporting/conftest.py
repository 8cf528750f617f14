"""Small models, exported once."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
from exported_models import CONFIGS, FRONTEND, Case, random_recognizer
from world import LETTERS

import antiphon
from antiphon.data.tokens import Characters


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Case]:
    """A function that exports a model of CONFIGS, once."""
    pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")

    @cache
    def case(name: str) -> Case:
        folder = tmp_path_factory.mktemp("export")
        recognizer = random_recognizer(CONFIGS[name](), FRONTEND, Characters(LETTERS))
        recognizer.save(folder / "run" / "model", {"run": name, "round": 1})
        antiphon.export(folder / "run", folder / "exported", int8=True, split="")
        return Case(recognizer, folder / "run", folder / "exported")

    return case
