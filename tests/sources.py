"""Corpora as people have them, and a look at what is left of them when they are imported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from antiphon.data.corpus import Corpus
from antiphon.data.importing import ImportOptions, ImportSummary, import_corpus


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
