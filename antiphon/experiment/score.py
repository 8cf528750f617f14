"""Scores of a model on a split: errors by speaker and session, and transcripts."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from antiphon.data.store import FeatureStore
from antiphon.decoding.search import recognise
from antiphon.experiment.attention_capture import attention_of
from antiphon.models.las import Las
from antiphon.recognizer import Recognizer
from antiphon.records.files import replace_file
from antiphon.report.attention_summary import FILE
from antiphon.scoring.error_rate import Tally
from antiphon.scoring.normalisation import Normalisation
from antiphon.scoring.trn import write_trn


def score(
    recognizer: Recognizer,
    store: FeatureStore,
    indices: np.ndarray,
    folder: Path,
    notes: dict[str, Any],
    normalisation: Normalisation = Normalisation(),
    hypotheses: Callable[[], dict[int, str]] | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """Recognise utterances; write scores.json, ref.trn and hyp.trn; return the scores.

    A function `hypotheses` recognises them if clients have their own models. Attention models also write
    attention.json. Errors are counted after `normalisation`; the texts are written as they are.
    """
    began = time.perf_counter()
    if hypotheses is None:
        device = next(recognizer.model.parameters()).device
        heard = recognise(recognizer.model, recognizer.tokens, store, indices, device, progress=progress)
    else:
        heard = hypotheses()
    recognition_seconds = time.perf_counter() - began
    sessions: dict[str, dict[str, Tally]] = defaultdict(lambda: defaultdict(Tally))
    for index, hypothesis in heard.items():
        tally = Tally.of(normalisation(store.text(index)), normalisation(hypothesis))
        sessions[store.speaker(index)][store.session(index)] += tally
    seconds = float(store.seconds[indices].sum())
    speakers = {name: sum(tallies.values(), Tally()) for name, tallies in sorted(sessions.items())}
    scores = {
        **notes,
        "normalisation": asdict(normalisation),
        "seconds": seconds,
        "real_time_factor": recognition_seconds / seconds,
        **asdict(sum(speakers.values(), Tally())),
        "speakers": {
            name: asdict(total) | {"sessions": {key: asdict(t) for key, t in sorted(sessions[name].items())}}
            for name, total in speakers.items()
        },
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_trn(folder / "ref.trn", [(store.text(i), store.speaker(i), store.id(i)) for i in heard])
    write_trn(folder / "hyp.trn", [(text, store.speaker(i), store.id(i)) for i, text in heard.items()])
    if isinstance(recognizer.model, Las) and hypotheses is None:
        attention = attention_of(recognizer.model, store, indices)
        if attention is not None:
            replace_file(folder / FILE, lambda path: path.write_text(json.dumps(attention) + "\n"))
    write_json(folder / "scores.json", scores)
    return scores


def write_json(path: Path, body: dict[str, Any]) -> None:
    replace_file(path, lambda unfinished: unfinished.write_text(json.dumps(body, indent=1) + "\n"))
