"""Model folders: what was saved opens again, also after the settings have grown."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from world import FRONTEND, MODELS, World

from antiphon.data.frontends import OnnxEncoder
from antiphon.models.las import LasConfig
from antiphon.recognizer import Blueprint, Recognizer

LAS = MODELS["las"]
assert isinstance(LAS, LasConfig)


def saved(world: World, config: LasConfig, folder: Path) -> Recognizer:
    blueprint = Blueprint(FRONTEND, config)
    recognizer = Recognizer(blueprint, world.tokens, blueprint.build(world.tokens.size))
    recognizer.save(folder)
    return recognizer


def test_a_folder_from_before_joint_ctc_opens(world: World, tmp_path: Path) -> None:
    recognizer = saved(world, LAS, tmp_path)
    body = json.loads((tmp_path / "model.json").read_text())
    assert body["blueprint"]["model"]["las"].pop("ctc_weight") == 0.0
    del body["sha256"], body["files"]
    (tmp_path / "model.json").write_text(json.dumps(body))
    again = dict(Recognizer.load(tmp_path).model.named_parameters())
    for name, parameter in recognizer.model.named_parameters():
        assert torch.equal(again.pop(name), parameter)
    assert not again


def test_a_joint_model_keeps_its_ctc_layer(world: World, tmp_path: Path) -> None:
    recognizer = saved(world, replace(LAS, ctc_weight=0.3), tmp_path)
    again = dict(Recognizer.load(tmp_path).model.named_parameters())
    assert torch.equal(again["ctc.weight"], dict(recognizer.model.named_parameters())["ctc.weight"])


def test_parameters_that_the_settings_do_not_ask_for_are_refused(world: World, tmp_path: Path) -> None:
    saved(world, replace(LAS, ctc_weight=0.3), tmp_path)
    body = json.loads((tmp_path / "model.json").read_text())
    body["blueprint"]["model"]["las"]["ctc_weight"] = 0.0
    del body["sha256"]
    (tmp_path / "model.json").write_text(json.dumps(body))
    with pytest.raises(ValueError, match=r"does not fit model.json \(parameter 'ctc"):
        Recognizer.load(tmp_path)


def test_an_encoder_that_was_left_behind_is_found_beside_the_model(tmp_path: Path) -> None:
    blueprint = Blueprint(OnnxEncoder("another/machine/encoder.onnx"))
    with pytest.raises(ValueError, match=r"another/machine/encoder.onnx, which does not exist: .*beside"):
        blueprint.unpacked(tmp_path)
    (tmp_path / "encoder.onnx").write_bytes(b"")
    assert blueprint.unpacked(tmp_path).frontend == OnnxEncoder(str(tmp_path / "encoder.onnx"))
