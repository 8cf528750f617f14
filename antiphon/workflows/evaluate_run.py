"""Use a finished run's model: score it on a split, recognise recordings, or list the best hypotheses."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from antiphon.decoding.beams.attention_beam import Penalties
from antiphon.decoding.fusion import Fusion
from antiphon.decoding.nbest import NBest, write_nbest
from antiphon.decoding.rescoring import tabulate
from antiphon.decoding.search import beam_for
from antiphon.decoding.tuning import Ranking
from antiphon.experiment.folder import corpus_of
from antiphon.experiment.score import score
from antiphon.lm.arpa import load_ngram
from antiphon.recognizer import Recognizer
from antiphon.records.folders import check_new_file
from antiphon.records.reading import read_as
from antiphon.records.run_files import ModelFile
from antiphon.scoring.normalisation import Normalisation
from antiphon.workflows.arguments import (
    Names,
    Notify,
    Paths,
    Progress,
    no_messages,
    no_progress,
    paths_of,
)
from antiphon.workflows.rescore_lists import ListScores, describe_weights, oracles, score_choices
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
    round = read_as(ModelFile, run / "model" / "model.json").notes.round
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
        except ValueError as error:
            yield Transcription(file, error=str(error))
        except OSError as error:
            yield Transcription(file, error=error.strerror or str(error))
        progress("transcribe", number, len(files))


@dataclass(frozen=True)
class Decoding:
    """N-best lists, their scores, and the weights that were found (empty if none were searched for)."""

    lists: tuple[NBest, ...]
    scores: ListScores
    weights: Mapping[str, float]
    speech_seconds: float
    real_time_factor: float


def nbest(
    run: str | Path,
    out: str | Path,
    *,
    data: str | Path | None = None,
    split: str = "test",
    beam: int = 20,
    lm: str | Path | None = None,
    lm_weight: float = 0.5,
    word_bonus: float = 0.0,
    length_normalisation: float = 0.0,
    token_bonus: float = 0.0,
    coverage: float = 0.0,
    tune: str = "",
    device: str = "auto",
    num_processes: int = 1,
    feature_processes: int = 1,
    progress: Progress = no_progress,
    notify: Notify = no_messages,
) -> Decoding:
    """Decode a split by beam search with a run's model and write the N-best lists.

    Args:
        run: The folder of a finished run, such as out/dga.
        out: The file for the lists: JSON lines, compressed if the name ends in .gz.
        data: A corpus folder; by default the corpus that the run was trained on.
        split: The split of the corpus to decode.
        beam: The number of hypotheses that the search keeps and lists.
        lm: An n-gram model to use in the search: an ARPA file, or a folder.
        lm_weight: The weight of ln p(words) of `lm`.
        word_bonus: A bonus for every word, with `lm`.
        length_normalisation: LAS only: divide ln p(tokens) by ((5 + tokens) / 6) to this power.
        token_bonus: LAS only: a bonus for every token.
        coverage: LAS only: the weight of ln(attention to a frame, at most 1), summed over the frames.
        tune: A split on which the best `lm_weight`, `word_bonus` and `coverage` are found first.
        device: cpu, cuda, cuda:1, or auto (the GPU if there is one).
        num_processes: The number of processes that share the speech.
        feature_processes: The number of processes that compute features.
        progress: A function that is called with (stage, steps done, number of steps).
        notify: A function that is called with a line of text for each trial of the search for weights.

    Example:
        decoding = antiphon.nbest("out/dga", "lists.jsonl", beam=8, lm="books.arpa", tune="heldout")
        print(decoding.scores.choices[0].errors.rate)
    """
    check_new_file(Path(out))
    decoder = RunDecoder.open(run, data, device, feature_processes, partial(progress, "features"))
    fusion = Fusion(load_ngram(lm), lm_weight, word_bonus) if lm is not None else None
    ranking = Ranking(fusion, Penalties(length_normalisation, token_bonus, coverage))
    beam_for(decoder.recognizer.model, beam, ranking.fusion, ranking.penalties)  # refuses before any work
    store = decoder.store
    indices = store.where(split=split)

    def report_trial(tried: Ranking, errors: int) -> None:
        notify(describe_weights(f"{errors:,} errors", tried.weights))

    with decoder.in_processes(num_processes, fusion) as decoders:
        if tune:
            ranking = decoders.tuned(ranking, store.where(split=tune), report=report_trial)
            notify(describe_weights(f"weights, found on {tune}", ranking.weights))
        started = time.perf_counter()
        entries = list(decoders.nbest(indices, beam, ranking, partial(progress, "search")))
        seconds = time.perf_counter() - started
    write_nbest(out, entries)
    lists = tabulate(entries, {})
    scores = score_choices(lists, {"best": lists.first(), **oracles(lists)})
    speech = float(store.seconds[indices].sum())
    return Decoding(tuple(entries), scores, ranking.weights if tune else {}, speech, seconds / speech)
