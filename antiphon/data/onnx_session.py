"""Sessions of onnxruntime for front ends and voices."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def open_onnx(path: str | Path, what: str) -> Any:
    """Open an ONNX file on one CPU thread, so that sums are the same in every process.

    what: the reader of the file, for errors, such as "an ONNX front end".
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise ValueError(f"{what} needs onnxruntime: pip install 'antiphon[onnx]'") from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4  # errors reach the user once, as exceptions
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the errors of onnxruntime have no base class but Exception
        raise ValueError(f"{path} is not an ONNX model that onnxruntime can run: {error}") from error


def describe_inputs(session: Any) -> str:
    """Name the inputs of a session with their types and shapes, for errors."""
    return ", ".join(f"{node.name} {node.type} {node.shape}" for node in session.get_inputs())
