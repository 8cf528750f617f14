"""Sizes of models that nobody can want are refused, and not built for hours or until the memory is full."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from antiphon.data.tokens import WordsConfig
from antiphon.lm.neural_lm import LmTraining, NeuralLm, TransformerLmConfig, train_lm
from antiphon.models.blstm import BlstmConfig
from antiphon.models.conformer import ConformerConfig
from antiphon.models.ctc import CtcConfig
from antiphon.models.las import LasConfig
from antiphon.models.model import build_model
from antiphon.models.transducer import TransducerConfig

CLASSES: list[Any] = [BlstmConfig, ConformerConfig, LasConfig, TransducerConfig, TransformerLmConfig]
SIZES = [(cls(), field.name) for cls in CLASSES for field in fields(cls) if field.type in ("int", int)]


@pytest.mark.parametrize(("config", "name"), SIZES, ids=lambda value: str(value).partition("(")[0])
@pytest.mark.parametrize("size", [-1, 0, 2**20 + 1, 2**31, 2**62])
def test_sizes_that_cannot_be_built_are_refused_before_anything_is_built(
    config: Any, name: str, size: int
) -> None:
    with pytest.raises(ValueError, match="the sizes of a model must be at least 1, and at most 1,000 layers"):
        replace(config, **{name: size})


def test_an_edited_number_of_layers_is_refused_by_the_name_of_the_file(tmp_path: Path) -> None:
    tokens = WordsConfig().fit(["a b"], None)
    train_lm(["a b"], tokens, TransformerLmConfig(8, 1, 1, 8), LmTraining(steps=1)).save(tmp_path / "lm")
    path = tmp_path / "lm" / "lm.json"
    body = json.loads(path.read_text())
    del body["sha256"]
    body["config"]["num_layers"] = 2**31
    path.write_text(json.dumps(body))
    with pytest.raises(ValueError, match=r"lm\.json: .*the sizes of a model"):
        NeuralLm.load(tmp_path / "lm")


class Full:
    """A model whose parameters do not fit into memory."""

    def build(self, input_dim: int, num_tokens: int) -> Any:
        return nn.Parameter(torch.empty(1 << 60, dtype=torch.uint8))

    def __str__(self) -> str:
        return "Full()"


def test_a_model_that_does_not_fit_into_memory_is_one_line_with_its_file() -> None:
    expected = r"model\.json: a model of this size does not fit into memory: Full\(\)"
    with pytest.raises(ValueError, match=expected):
        build_model(Full(), 40, 30, "model.json")


def test_other_errors_of_a_model_stay_what_they_are() -> None:
    class Broken:
        def build(self, input_dim: int, num_tokens: int) -> Any:
            raise RuntimeError("shapes do not fit")

    with pytest.raises(RuntimeError, match="shapes do not fit"):
        build_model(Broken(), 40, 30)
    assert build_model(CtcConfig(ConformerConfig(dim=8, num_layers=1)), 4, 3).fits(2, [1])
