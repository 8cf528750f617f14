"""sherpa-onnx reads exported CTC models and transducers, if it is told how our filterbank differs."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import sherpa as sherpa_benchmark
import torch
from exported_models import BLSTM, FRONTEND, TEXTS, Case, random_recognizer, recording
from world import LETTERS, MODELS

import antiphon
from antiphon.data.tokens import UNKNOWN, Characters, Tokens, UnigramConfig
from antiphon.models.model import ModelConfig

pytest.importorskip("sherpa_onnx")
pytest.importorskip("onnxscript")
ROOT = Path(__file__).parents[3]
Export = Callable[[ModelConfig, Tokens], Case]


@pytest.fixture
def export(tmp_path: Path) -> Export:
    def case(config: ModelConfig, tokens: Tokens) -> Case:
        recognizer = random_recognizer(config, FRONTEND, tokens)
        with torch.no_grad():  # sherpa-onnx leaves out the unknown token of a transducer
            recognizer.model.output.bias[UNKNOWN] = -100.0  # type: ignore[attr-defined]
        recognizer.save(tmp_path / "run" / "model", {"run": "random", "round": 1})
        antiphon.export(tmp_path / "run", tmp_path / "exported", int8=True, split="")
        return Case(recognizer, tmp_path / "run", tmp_path / "exported")

    return case


def sherpa(folder: Path, suffix: str = ".onnx") -> Callable[[str], str]:
    """The recogniser of docs/examples/sherpa_transcribe.py: a text's recording to a text."""
    example = runpy.run_path(str(ROOT / "docs" / "examples" / "sherpa_transcribe.py"))
    recognizer = example["open_recognizer"](folder, suffix)
    return lambda text: str(example["transcribe"](recognizer, recording(text))).strip()


@pytest.mark.parametrize("int8", [False, True])
def test_a_ctc_model_writes_the_same_texts(export: Export, int8: bool) -> None:
    case = export(BLSTM, Characters(LETTERS))
    transcribe = sherpa(case.folder, ".int8.onnx" if int8 else ".onnx")
    transcriber = case.transcriber(int8)
    texts = [transcribe(text) for text in TEXTS]
    assert texts == [transcriber.transcribe(recording(text)).strip() for text in TEXTS]
    assert len(set(texts)) > 1


def test_a_transducer_writes_the_same_texts(export: Export) -> None:
    """sherpa-onnx writes at most one symbol per frame."""
    pieces = UnigramConfig(size=12).fit(["bad cab", "dab ace", "ace bed", "cab bed"], None)
    config = replace(MODELS["transducer"], symbols_per_frame=1)  # type: ignore[type-var]
    case = export(config, pieces)  # type: ignore[arg-type]
    transcribe = sherpa(case.folder)
    texts = [transcribe(text) for text in TEXTS]
    assert texts == [case.recognizer.transcribe(recording(text)).strip() for text in TEXTS]
    assert len(set(texts)) > 1


def test_the_benchmark_finds_what_one_token_a_frame_changes(export: Export) -> None:
    pieces = UnigramConfig(size=12).fit(["bad cab", "dab ace", "ace bed", "cab bed"], None)
    case = export(MODELS["transducer"], pieces)  # type: ignore[arg-type]
    rows = {
        name: row for name, *row in sherpa_benchmark.compare(case.folder, TEXTS, list(map(recording, TEXTS)))
    }
    assert rows["transcribe.py"][1] == len(TEXTS)
    assert rows["sherpa-onnx"] == rows["transcribe.py, one token a frame"]
    assert rows["sherpa-onnx"][1] < len(TEXTS)
