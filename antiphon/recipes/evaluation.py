"""Scores a finished run's model again: on another split, or on another corpus."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from antiphon.data.corpus import Corpus
from antiphon.data.store import FeatureStore, compute_features
from antiphon.decoding.normalisation import Normalisation
from antiphon.decoding.recognizer import Recognizer
from antiphon.recipes.preparation import choose_device
from antiphon.recipes.scoring import score


def evaluate_run(
    run: Path,
    data: Path | None,
    split: str,
    device: str,
    progress: Callable[[int, int], None],
    normalisation: Normalisation = Normalisation(),
) -> tuple[dict[str, Any], Path]:
    """The scores, and the folder they were written to."""
    recognizer = Recognizer.load(run, str(choose_device(device)))
    store = open_store(recognizer, run, data, progress)
    name = split
    if data is not None and data.resolve() != _data_of(run):
        name = f"{data.name}-{split}"
    round = json.loads((run / "model" / "model.json").read_text())["notes"]["round"]
    folder = run / "evaluation" / name / "best"
    notes = {"split": name, "which": "best", "round": round}
    return score(recognizer, store, store.where(split=split), folder, notes, normalisation), folder


def open_store(
    recognizer: Recognizer,
    run: Path,
    data: Path | None,
    progress: Callable[[int, int], None] | None = None,
) -> FeatureStore:
    """What the recogniser of a run hears of a corpus: its own, or another."""
    source = data or _data_of(run)
    if source is None:
        raise ValueError(f"{run} does not say which corpus it is from: give --data")
    return compute_features(Corpus.open(source), recognizer.blueprint.frontend, os.cpu_count() or 1, progress)


def _data_of(run: Path) -> Path | None:
    about = run.resolve().parent / "experiment.json"
    return Path(json.loads(about.read_text())["data"]) if about.exists() else None
