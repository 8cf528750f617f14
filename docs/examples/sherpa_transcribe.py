"""Recognise recordings with sherpa-onnx: python docs/examples/sherpa_transcribe.py exported recording.wav"""

import json
import sys
from pathlib import Path
from typing import Any

import sherpa_onnx
from sherpa_onnx.lib._sherpa_onnx import OfflineRecognizer  # sherpa_onnx.OfflineRecognizer hides features


def open_recognizer(folder: Path, suffix: str = ".onnx") -> Any:
    """Open an exported CTC model or transducer; the suffix ".int8.onnx" takes the quantised graphs."""
    settings = json.loads((folder / "export.json").read_text())
    features = sherpa_onnx.FeatureExtractorConfig(
        feature_dim=settings["frontend"]["dim"],
        high_freq=0.0,  # up to 8 kHz; by default up to 7.6 kHz
        snip_edges=True,  # whole windows only
        normalize_samples=False,  # samples in the range of 16 bits
    )
    files = [str(folder / f"{name}{suffix}") for name in settings["graphs"]]
    if settings["kind"] == "ctc":
        model: dict[str, Any] = {"zipformer_ctc": sherpa_onnx.OfflineZipformerCtcModelConfig(*files)}
    else:
        model = {"transducer": sherpa_onnx.OfflineTransducerModelConfig(*files)}
    tokens = str(folder / "tokens.txt")
    return OfflineRecognizer(
        sherpa_onnx.OfflineRecognizerConfig(
            feat_config=features,
            model_config=sherpa_onnx.OfflineModelConfig(tokens=tokens, **model),
            decoding_method="greedy_search",
        )
    )


def transcribe(recognizer: Any, samples: Any) -> str:
    """Return the text of samples at 16 kHz, float32 between −1 and 1."""
    stream = recognizer.create_stream()
    stream.accept_waveform(16000, samples)
    recognizer.decode_stream(stream)
    return str(stream.result.text)


if __name__ == "__main__":
    folder, *recordings = map(Path, sys.argv[1:])
    sys.path.insert(0, str(folder))
    from transcribe import read_samples

    recognizer = open_recognizer(folder)
    for recording in recordings:
        print(transcribe(recognizer, read_samples(recording)))
