"""The corpus of a finished run, and its features as the run's model takes them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

from antiphon.data.corpus import Corpus
from antiphon.data.store import FeatureStore, compute_features
from antiphon.recognizer import Recognizer


def open_store(
    recognizer: Recognizer,
    run: Path,
    data: Path | None,
    progress: Callable[[int, int], None] | None = None,
    num_processes: int | None = None,
) -> FeatureStore:
    """Open the features of a run's corpus, or of `data`; compute them where they are missing.

    num_processes: that compute features; by default one for each core.
    """
    source = data or corpus_of(run)
    if source is None:
        raise ValueError(f"{run} does not say which corpus it was trained on: name one with --data")
    num_processes = num_processes or os.cpu_count() or 1
    return compute_features(Corpus.open(source), recognizer.blueprint.frontend, num_processes, progress)


def corpus_of(run: Path) -> Path | None:
    """Return the corpus that a run was trained on; None if its folder is not part of an experiment."""
    about = run.resolve().parent / "experiment.json"
    return Path(json.loads(about.read_text())["data"]) if about.exists() else None
