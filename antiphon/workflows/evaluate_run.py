"""Use a finished run's model: score it on a split, or recognise recordings with it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from antiphon.experiment.folder import corpus_of
from antiphon.experiment.score import score
from antiphon.recognizer import Recognizer
from antiphon.scoring.normalisation import Normalisation
from antiphon.workflows.arguments import Names, Paths, Progress, no_progress, paths_of
from antiphon.workflows.run_decoder import RunDecoder


@dataclass(frozen=True)
class Evaluation:
    """Scores of a model on a split, and the folder that has them with the transcripts."""

    scores: dict[str, Any]
    folder: Path


def evaluate(
    run: str | Path,
    *,
    data: str | Path | None = None,
    split: str = "test",
    device: str = "auto",
    normalise: Names = (),
    feature_processes: int = 1,
    progress: Progress = no_progress,
) -> Evaluation:
    """Score a run's model on a split: word and character errors by speaker and session.

    Writes scores.json, ref.trn and hyp.trn (sclite's format) below `run`/evaluation.

    Args:
        run: The folder of a finished run, such as out/dga.
        data: A corpus folder; by default the corpus that the run was trained on.
        split: The split of the corpus to score on.
        device: cpu, cuda, cuda:1, or auto (the GPU if there is one).
        normalise: Steps to take before errors are counted: nfc, lower_case, strip_punctuation,
            collapse_spaces.
        feature_processes: The number of processes that compute features.
        progress: A function that is called with (stage, steps done, number of steps).

    Example:
        scores = antiphon.evaluate("out/dga", split="heldout").scores
        print(scores["words"]["substitutions"])
    """
    run, data = Path(run), Path(data) if data is not None else None
    normalisation = Normalisation.of(normalise)
    decoder = RunDecoder.open(run, data, device, feature_processes, partial(progress, "features"))
    name = split
    if data is not None and data.resolve() != corpus_of(run):
        name = f"{data.name}-{split}"
    round = json.loads((run / "model" / "model.json").read_text())["notes"]["round"]
    folder = run / "evaluation" / name / "best"
    notes = {"split": name, "which": "best", "round": round}
    indices = decoder.store.where(split=split)
    report = partial(progress, "evaluate")
    scores = score(decoder.recognizer, decoder.store, indices, folder, notes, normalisation, progress=report)
    return Evaluation(scores, folder)


@dataclass(frozen=True)
class Transcription:
    """The text of a recording, or the reason why there is none."""

    file: Path
    text: str = ""
    error: str = ""


def transcribe(run: str | Path, files: Paths, *, progress: Progress = no_progress) -> Iterator[Transcription]:
    """Recognise recordings with a run's model.

    The model is loaded at once; each recording is recognised when the iterator reaches it. A recording
    that cannot be read does not stop the others.

    Args:
        run: The folder of a finished run, such as out/dga.
        files: Recordings: WAV, FLAC, Opus and others.
        progress: A function that is called with (stage, steps done, number of steps).

    Returns:
        An iterator over a `Transcription` for each file, in their order.

    Example:
        for transcription in antiphon.transcribe("out/dga", ["hello.wav"]):
            print(transcription.file, transcription.text)
    """
    return _transcriptions(Recognizer.load(run), paths_of(files), progress)


def _transcriptions(
    recognizer: Recognizer, files: Sequence[Path], progress: Progress
) -> Iterator[Transcription]:
    for number, file in enumerate(files, 1):
        try:
            yield Transcription(file, recognizer.transcribe(file))
        except (ValueError, OSError) as error:
            yield Transcription(file, error=str(error))
        progress("transcribe", number, len(files))
