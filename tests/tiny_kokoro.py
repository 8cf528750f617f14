"""A folder like that of Kokoro, with a tiny model: a tone whose pitch is the mean of the style."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

VOICES = {"af_anna": 0.1, "am_bert": 0.5, "bf_cora": 0.9}  # the mean of each style
SHAPE = (510, 256)
SAMPLES_OF_A_PHONEME = 1200  # at 24 kHz


def write_tiny_kokoro(folder: Path, tokens: str = "input_ids", style_dim: int = 256) -> Path:
    """Write the model and three voices; return the folder."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    (folder / "voices").mkdir(parents=True)
    onnx.save(tiny_model(tokens, style_dim), folder / "tiny.onnx")
    generator = np.random.default_rng(0)
    for name, mean in VOICES.items():
        styles = mean + 0.01 * generator.standard_normal(SHAPE)
        (folder / "voices" / f"{name}.bin").write_bytes(styles.astype("<f4").tobytes())
    (folder / "voices" / "zf_dora.bin").write_bytes(b"Chinese")  # is not read
    return folder


def tiny_model(tokens: str, style_dim: int) -> Any:
    """A phoneme is 1200 / speed samples of a tone at 120 Hz + 80 Hz · style; its number sets the level."""
    from onnx import TensorProto, helper, numpy_helper

    levels = np.random.default_rng(1).uniform(0.3, 0.9, 178)
    constants = {
        "levels": levels.astype(np.float32),
        "usual": np.array([SAMPLES_OF_A_PHONEME], dtype=np.float32),
        "one": np.array([1]),
        "two": np.array([2]),
        "all": np.array([1, -1]),
        "zero": np.array(0),
        "step": np.array(1),
        "lowest": np.array(120 * 2 * np.pi / 24000, dtype=np.float32),
        "range": np.array(80 * 2 * np.pi / 24000, dtype=np.float32),
    }
    steps = [
        ("Div", "usual speed", "exact", {}),
        ("Cast", "exact", "length", {"to": TensorProto.INT64}),
        ("Shape", tokens, "number", {"start": 1, "end": 2}),
        ("Concat", "one number length", "frames", {"axis": 0}),
        ("Gather", f"levels {tokens}", "level", {}),
        ("Unsqueeze", "level two", "column", {}),
        ("Expand", "column frames", "wide", {}),
        ("Reshape", "wide all", "envelope", {}),
        ("Mul", "number length", "count", {}),
        ("Squeeze", "count", "total", {}),
        ("Range", "zero total step", "places", {}),
        ("Cast", "places", "time", {"to": TensorProto.FLOAT}),
        ("ReduceMean", "style", "mean", {"keepdims": 0}),
        ("Mul", "mean range", "higher", {}),
        ("Add", "lowest higher", "frequency", {}),
        ("Mul", "time frequency", "phase", {}),
        ("Sin", "phase", "tone", {}),
        ("Mul", "envelope tone", "waveform", {}),
    ]
    graph = helper.make_graph(
        [helper.make_node(kind, names.split(), [out], **more) for kind, names, out, more in steps],
        "tiny",
        [
            helper.make_tensor_value_info(tokens, TensorProto.INT64, [1, "phonemes"]),
            helper.make_tensor_value_info("style", TensorProto.FLOAT, [1, style_dim]),
            helper.make_tensor_value_info("speed", TensorProto.FLOAT, [1]),
        ],
        [helper.make_tensor_value_info("waveform", TensorProto.FLOAT, [1, "samples"])],
        [numpy_helper.from_array(values, name) for name, values in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
