"""Scores of a model on a split: errors by speaker, and the files speech people exchange."""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from antiphon.data.store import FeatureStore
from antiphon.decoding.error_rate import Errors, character_errors, word_errors
from antiphon.decoding.greedy import recognise
from antiphon.decoding.recognizer import Recognizer
from antiphon.report.trn import write_trn

NO_ERRORS = Errors(0, 0, 0, 0)


def score(
    recognizer: Recognizer, store: FeatureStore, indices: np.ndarray, folder: Path, notes: dict[str, Any]
) -> dict[str, Any]:
    """Recognises the utterances; writes scores.json, ref.trn and hyp.trn; returns the scores."""
    began = time.perf_counter()
    device = next(recognizer.model.parameters()).device
    heard = recognise(recognizer.model, recognizer.tokens, store, indices, device)
    taken = time.perf_counter() - began
    speakers: dict[str, dict[str, Any]] = defaultdict(
        lambda: {"words": NO_ERRORS, "characters": NO_ERRORS, "num_utterances": 0}
    )
    for index, hypothesis in heard.items():
        reference, speaker = store.text(index), speakers[store.speaker(index)]
        speaker["words"] += word_errors(reference, hypothesis)
        speaker["characters"] += character_errors(reference, hypothesis)
        speaker["num_utterances"] += 1
    seconds = float(store.seconds[indices].sum())
    scores = {
        **notes,
        "num_utterances": len(indices),
        "seconds": seconds,
        "real_time_factor": taken / seconds,
        "words": asdict(sum((s["words"] for s in speakers.values()), NO_ERRORS)),
        "characters": asdict(sum((s["characters"] for s in speakers.values()), NO_ERRORS)),
        "speakers": {
            name: {**s, "words": asdict(s["words"]), "characters": asdict(s["characters"])}
            for name, s in sorted(speakers.items())
        },
    }
    folder.mkdir(parents=True, exist_ok=True)
    rows = [(i, store.speaker(i), store.id(i)) for i in heard]
    write_trn(folder / "ref.trn", [(store.text(i), speaker, id) for i, speaker, id in rows])
    write_trn(folder / "hyp.trn", [(heard[i], speaker, id) for i, speaker, id in rows])
    write_json(folder / "scores.json", scores)
    return scores


def write_json(path: Path, body: dict[str, Any]) -> None:
    """Whole under its name, or not there: a run may be killed at any time, and is resumed from its files."""
    unfinished = path.with_name(f".{path.name}.part")
    unfinished.write_text(json.dumps(body, indent=1) + "\n")
    os.replace(unfinished, path)
