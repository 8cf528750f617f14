"""Sound and manifests to import, and a look at what became of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from antiphon.data.audio import encode_flac
from antiphon.data.corpus import Corpus
from antiphon.data.importing.conversion import ImportOptions, ImportSummary, import_corpus


def ramp(seconds: float, first: int = 0) -> np.ndarray:
    """Samples that say where they are from: sample n is n (plus the first), as 16-bit integers."""
    return ((np.arange(round(seconds * 16000)) + first) % 32768).astype(np.int16)


def imported(source: Path, **options: Any) -> tuple[ImportSummary, Corpus, dict[str, Any]]:
    summary = import_corpus(source, source.parent / "corpus", ImportOptions(**options, overwrite=True))
    corpus = Corpus.open(summary.path)
    return summary, corpus, {utterance.id: utterance for utterance in corpus.utterances()}


def samples(corpus: Corpus, utterance: Any) -> np.ndarray:
    return np.rint(corpus.read_audio(utterance) * 32768).astype(np.int16)


def reasons(summary: ImportSummary) -> dict[str, str]:
    return {skipped.id: skipped.kind for skipped in summary.skipped}


def tone(seconds: float = 1.0, rate: int = 16000, pitch: float = 200.0) -> np.ndarray:
    return (0.3 * np.sin(2 * np.pi * pitch * np.arange(round(seconds * rate)) / rate)).astype(np.float32)


class Source:
    """A folder with a manifest of plain files, made row by row."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lines: list[str] = []
        folder.mkdir()

    def add(self, name: str, data: bytes | None = None, **fields: Any) -> Source:
        (self.folder / f"{name}.flac").write_bytes(encode_flac(tone()) if data is None else data)
        row = {"id": name, "path": f"{name}.flac", "speaker": "ann", "text": "some words"} | fields
        return self.line(json.dumps({key: value for key, value in row.items() if value is not ...}))

    def line(self, line: str) -> Source:
        self.lines.append(line)
        (self.folder / "manifest.jsonl").write_text("\n".join(self.lines) + "\n", encoding="utf-8")
        return self
