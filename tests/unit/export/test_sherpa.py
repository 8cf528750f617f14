"""sherpa-onnx reads exported CTC models and transducers, if it is told how our filterbank differs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from exported_models import BLSTM, FRONTEND, TEXTS, Case, random_recognizer, recording
from world import LETTERS, MODELS

import antiphon
from antiphon.data.tokens import UNKNOWN, Characters, Tokens, UnigramConfig
from antiphon.models.model import ModelConfig

sherpa_onnx: Any = pytest.importorskip("sherpa_onnx")
pytest.importorskip("onnxscript")
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


def sherpa(folder: Path, **model: Any) -> Callable[[str], str]:
    """The recogniser that docs/export.md makes."""
    recognizer = sherpa_onnx.lib._sherpa_onnx.OfflineRecognizer(
        sherpa_onnx.OfflineRecognizerConfig(
            feat_config=sherpa_onnx.FeatureExtractorConfig(
                feature_dim=FRONTEND.dim, high_freq=0.0, snip_edges=True, normalize_samples=False
            ),
            model_config=sherpa_onnx.OfflineModelConfig(tokens=str(folder / "tokens.txt"), **model),
            decoding_method="greedy_search",
        )
    )

    def transcribe(text: str) -> str:
        stream = recognizer.create_stream()
        stream.accept_waveform(16000, recording(text))
        recognizer.decode_stream(stream)
        return str(stream.result.text).strip()

    return transcribe


def ctc_model(path: Path) -> Any:
    return sherpa_onnx.OfflineZipformerCtcModelConfig(model=str(path))


@pytest.mark.parametrize("int8", [False, True])
def test_a_ctc_model_writes_the_same_texts(export: Export, int8: bool) -> None:
    case = export(BLSTM, Characters(LETTERS))
    file = case.folder / ("model.int8.onnx" if int8 else "model.onnx")
    transcribe, transcriber = sherpa(case.folder, zipformer_ctc=ctc_model(file)), case.transcriber(int8)
    texts = [transcribe(text) for text in TEXTS]
    assert texts == [transcriber.transcribe(recording(text)).strip() for text in TEXTS]
    assert len(set(texts)) > 1


def test_a_transducer_writes_the_same_texts(export: Export) -> None:
    """sherpa-onnx writes at most one symbol per frame."""
    pieces = UnigramConfig(size=12).fit(["bad cab", "dab ace", "ace bed", "cab bed"], None)
    config = replace(MODELS["transducer"], symbols_per_frame=1)  # type: ignore[type-var]
    case = export(config, pieces)  # type: ignore[arg-type]
    files = [str(case.folder / f"{name}.onnx") for name in ("encoder", "decoder", "joiner")]
    transcribe = sherpa(case.folder, transducer=sherpa_onnx.OfflineTransducerModelConfig(*files))
    texts = [transcribe(text) for text in TEXTS]
    assert texts == [case.recognizer.transcribe(recording(text)).strip() for text in TEXTS]
    assert len(set(texts)) > 1
