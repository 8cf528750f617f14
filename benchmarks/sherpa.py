"""sherpa-onnx beside transcribe.py: word error rates of an exported model, and how many texts are the same.

    pip install sherpa-onnx
    python benchmarks/sherpa.py exported corpus

Also with transcribe.py held to one token a frame, as sherpa-onnx is, and with sherpa-onnx's own features.
"""

from __future__ import annotations

import argparse
import runpy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from common import print_table

from antiphon.data.corpus import Corpus
from antiphon.exporting.transcribe import Transcriber
from antiphon.scoring.error_rate import Errors, word_errors

EXAMPLE = Path(__file__).parents[1] / "docs" / "examples" / "sherpa_transcribe.py"
Transcribe = Callable[[np.ndarray], str]


def ways(folder: Path) -> Iterator[tuple[str, Transcribe]]:
    """The ways to recognise speech with an exported model, by name; the first is the reference."""
    example = runpy.run_path(str(EXAMPLE))
    for suffix in (".onnx", ".int8.onnx"):
        if not list(folder.glob(f"*{suffix}")):
            continue
        is_int8 = suffix != ".onnx"
        kind, ours = ", int8" if is_int8 else "", Transcriber(folder, is_int8)
        yield f"transcribe.py{kind}", ours.transcribe
        if ours.settings["kind"] == "transducer":
            alone = Transcriber(folder, is_int8)
            alone.settings["symbols_per_frame"] = 1
            yield f"transcribe.py, one token a frame{kind}", alone.transcribe
        recognizer = example["open_recognizer"](folder, suffix)
        yield f"sherpa-onnx{kind}", lambda samples, one=recognizer: example["transcribe"](one, samples)
    default = _default_recognizer(folder)
    yield "sherpa-onnx, default features", lambda samples: example["transcribe"](default, samples)


def _default_recognizer(folder: Path) -> Any:
    import sherpa_onnx

    settings = Transcriber(folder).settings
    files = {name: str(folder / f"{name}.onnx") for name in settings["graphs"]}
    more = {"tokens": str(folder / "tokens.txt"), "feature_dim": settings["frontend"]["dim"]}
    if settings["kind"] == "transducer":
        return sherpa_onnx.OfflineRecognizer.from_transducer(**files, **more)
    return sherpa_onnx.OfflineRecognizer.from_zipformer_ctc(**files, **more)


def compare(folder: Path, references: list[str], audio: list[np.ndarray]) -> list[tuple[str, Errors, int]]:
    """Each way: its word errors, and the number of texts that are those of the first way."""
    rows, first = [], []
    for name, transcribe in ways(folder):
        texts = [transcribe(samples).strip() for samples in audio]
        first = first or texts
        errors = sum((word_errors(*pair) for pair in zip(references, texts, strict=True)), Errors())
        rows.append((name, errors, sum(map(str.__eq__, first, texts))))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="an exported model")
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--split", default="test")
    arguments = parser.parse_args()
    corpus = Corpus.open(arguments.corpus)
    utterances = [one for one in corpus.utterances() if one.split == arguments.split]
    audio = [corpus.read_audio(one) for one in utterances]
    rows = compare(arguments.folder, [one.text for one in utterances], audio)
    print_table(
        ["recogniser", "WER %", f"same text, of {len(utterances)}"],
        [[name, f"{100 * errors.rate:.2f}", str(num_same)] for name, errors, num_same in rows],
    )


if __name__ == "__main__":
    main()
