"""Adapt a model to sessions from their text: speak the text, train on it, report on each session."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from antiphon import config
from antiphon.data.batches import collate, plan_batches
from antiphon.data.corpus import Corpus
from antiphon.data.store import FeatureStore
from antiphon.data.tts.spoken_corpus import SpokenCorpus
from antiphon.decoding.search import BATCH_SECONDS
from antiphon.experiment.folder import check_folder
from antiphon.experiment.runner import Scores, run_experiment
from antiphon.experiment.starting import SeedModel
from antiphon.recipes.session_adaptation import SESSIONS, adapted_experiment
from antiphon.recognizer import Recognizer
from antiphon.records.files import write_json
from antiphon.records.folders import check_new_folder
from antiphon.records.listener import Listen
from antiphon.records.lock import locked
from antiphon.records.reading import read_as
from antiphon.scoring.error_rate import Errors, Tally
from antiphon.workflows.adaptation_corpus import Speaking, Texts, compute_features, make_corpus, read_texts
from antiphon.workflows.arguments import (
    Names,
    Notify,
    Paths,
    Progress,
    no_messages,
    no_progress,
    paths_of,
    screen_for,
)
from antiphon.workflows.run_federation import SiteOptions, on_server, run_in_federation

Rate = tuple[int, int]  # words wrong, words


@dataclass(frozen=True)
class SessionReport:
    """One session: losses per token of its synthetic speech, and errors in its real speech, if any."""

    session: str
    sentences: int
    words: int
    new_words: int  # distinct words that are not in the seed model's training text
    skipped: dict[str, int]  # reason -> number of sentences
    unsaid: int  # the number of sentences that no voice can say
    seconds: float
    loss_before: float | None
    loss_after: float | None
    errors_before: Rate | None
    errors_after: Rate | None


@dataclass(frozen=True)
class Adaptation:
    """The result of an adaptation; scores and sessions are empty if only speech was made.

    corpus: the folder of the synthetic speech. model: the folder of the adapted run.
    """

    corpus: Path
    model: Path
    scores: dict[str, Scores]
    sessions: tuple[SessionReport, ...]


def adapt(
    run: str | Path,
    text: Paths,
    rehearse: str | Path | None,
    out: str | Path,
    *,
    organisation: Paths = (),
    train: str = "all",
    rounds: int = 20,
    speaking: Names = (),
    settings: Names = (),
    speech_only: bool = False,
    resume: bool = False,
    device: str = "auto",
    federation: str | Path | None = None,
    site_timeout: float = 600.0,
    min_sites: int = 0,
    as_they_arrive: bool = False,
    processes: int = 1,
    progress: Progress = no_progress,
    notify: Notify = no_messages,
    listeners: Sequence[Listen] = (),
) -> Adaptation:
    """Adapt a model to sessions by synthetic speech of their text.

    The model is first trained centrally on the organisation's text (if there is one), then by federated
    learning with every session as a client. No text may be in the test speech of the corpus. The speech is
    written to `out`/corpus, the runs and the report to `out`/runs.

    Args:
        run: A finished run, such as out/seed, or the folder of a model.
        text: Texts of sessions: a file for each session, folders of such files, or .jsonl files with the
            fields session and text. Empty with `federation`: sites have the sessions.
        rehearse: The corpus of real speech that the model was trained on. A site has none: None with
            `speech_only`.
        out: The folder for the speech, the runs and the report.
        organisation: Texts of the whole organisation.
        train: The part of the model to train: encoder, decoder, all, prediction, joint, or a pattern of
            parameter names.
        rounds: The number of rounds for the organisation, and for the sessions.
        speaking: Changes to how text is spoken, each written as key=value, such as num_voices=8.
        settings: Changes to settings of the runs, each written as path=value.
        speech_only: Make the corpus and its features, and stop.
        resume: Continue the runs that are in `out`.
        device: cpu, cuda, cuda:1, or auto (the GPU if there is one).
        federation: The server's kit of a federation: the sessions are at its sites, which have joined with
            speech of their texts and sessions as clients.
        site_timeout: The seconds that a site may take for one client before it counts as lost.
        min_sites: The number of sites that must join before a run begins; 0: all of them.
        as_they_arrive: Add the updates of sites as they arrive: this needs less memory, and results differ
            in their last bits.
        processes: The number of processes that speak and compute features.
        progress: A function that is called with (stage, steps done, number of steps).
        notify: A function that is called with a line of text: skipped sentences, length of the speech.
        listeners: Functions that are called with a `RunInfo` as each run begins, and return its `Listener`.

    Example:
        adaptation = antiphon.adapt("out/seed", ["slides.txt"], rehearse="speech", out="adapted")
        print(adaptation.sessions[0].loss_before, adaptation.sessions[0].loss_after)
    """
    out = Path(out)
    check_new_folder(out)
    _check_roles(paths_of(text), rehearse, speech_only, federation)
    runs = out / "runs"
    seed, corpus = SeedModel.open(Path(run)), Corpus.open(Path(rehearse)) if rehearse else None
    how = config.override(Speaking(), speaking)
    experiment = adapted_experiment(seed, bool(organisation), train, rounds, settings)
    experiment = on_server(experiment) if federation is not None else experiment
    check_folder(runs, experiment, resume)
    texts = read_texts(seed, paths_of(text), paths_of(organisation), corpus, how)
    for line in _skipped(texts):
        notify(line)
    with locked(out):
        spoken, real = make_corpus(
            out / "corpus", texts, corpus, how, processes, partial(progress, "synthesis")
        )
        notify(_summary(spoken))
        store = compute_features(seed, spoken, real, processes, partial(progress, "features"))
        if speech_only:
            return Adaptation(spoken.corpus.path, runs / "adapted", {}, ())
        screen = screen_for(progress, listeners, experiment, runs)
        options = (resume, False, device, processes, screen)
        if federation is not None:
            sites = SiteOptions(federation, site_timeout, min_sites, as_they_arrive, notify)
            scores = run_in_federation(experiment, spoken.corpus.path, runs, *options, (), sites)
            return Adaptation(spoken.corpus.path, runs / "adapted", scores, ())
        scores = run_experiment(experiment, spoken.corpus.path, runs, *options)
        sessions = _report_sessions(texts, spoken, store, seed.folder, runs, list(experiment.runs))
        skipped = [one for text in (*texts.sessions, *texts.organisation) for one in text.skipped]
        body = {
            "speaking": config.to_dict(how),
            "sessions": [asdict(report) for report in sessions],
            "skipped": [asdict(one) for one in (*skipped, *spoken.unsaid)],
        }
        write_json(runs / "sessions.json", body)
        return Adaptation(spoken.corpus.path, runs / "adapted", scores, tuple(sessions))


def _check_roles(
    text: Sequence[Path], rehearse: str | Path | None, speech_only: bool, federation: str | Path | None
) -> None:
    """Refuse texts of sessions on the server of a federation, and training without real speech."""
    if federation is not None and (text or speech_only):
        raise ValueError(
            "with --federation, the texts of the sessions are at the sites, which make speech of them: leave "
            "out --text and --speech-only here"
        )
    if rehearse is None and not speech_only:
        raise ValueError("name the corpus of real speech that the model was trained on with --rehearse")


def _skipped(texts: Texts) -> Iterator[str]:
    """Describe the skipped sentences by reason, and name the sessions without sentences."""
    for text in (*texts.sessions, *texts.organisation):
        total = len(text.sentences) + len(text.skipped)
        for kind, count in Counter(one.kind for one in text.skipped).items():
            yield f"{text.name}: {count:,} of {total:,} sentences skipped, {kind}"
        if not text.sentences:
            yield f"{text.name}: no sentences left, the session is skipped"


def _summary(spoken: SpokenCorpus) -> str:
    if not spoken.num_spoken:
        return "all sentences are in the corpus already"
    speed = spoken.seconds / spoken.wall_seconds
    length = f"{spoken.seconds / 60:.1f} min of speech in {spoken.wall_seconds:.0f} s"
    unsaid = f"; {len(spoken.unsaid):,} utterances that no voice can say" if spoken.unsaid else ""
    return f"{length}, {speed:.0f} times real time{unsaid}"


def _report_sessions(
    texts: Texts, spoken: SpokenCorpus, store: FeatureStore, seed: Path, runs: Path, names: Sequence[str]
) -> list[SessionReport]:
    """Return a report on every session, also on those without a usable sentence.

    seed: the run that has the seed model. names: the runs; the first started from the seed model, the last
    has the adapted model.
    """
    losses = [_session_losses(Recognizer.load(run), store) for run in (seed, runs / names[-1])]
    errors = [session_errors(runs / names[0], "start"), session_errors(runs / names[-1], "best")]
    skipped = (one for one in spoken.unsaid if one.id.startswith(f"tts-{SESSIONS}-"))
    unsaid = Counter(where for where, _ in {(one.where, one.id.rpartition("-")[0]) for one in skipped})
    reports = []
    for text in texts.sessions:
        words = [word for sentence in text.sentences for word in sentence.written.split()]
        reports.append(
            SessionReport(
                session=text.name,
                sentences=len(text.sentences),
                words=len(words),
                new_words=len(set(words) - texts.known_words),
                skipped=dict(Counter(one.kind for one in text.skipped)),
                unsaid=unsaid[text.name],
                seconds=float(store.seconds[_utterances(store, text.name)].sum()),
                loss_before=losses[0].get(text.name),
                loss_after=losses[1].get(text.name),
                errors_before=errors[0].get(text.name),
                errors_after=errors[1].get(text.name),
            )
        )
    return reports


def _utterances(store: FeatureStore, session: str) -> np.ndarray:
    """Return the indices of the synthetic utterances of a session."""
    if session not in store.session_names:
        return np.zeros(0, dtype=np.int64)
    in_session = np.flatnonzero(store.session_codes == store.session_names.index(session))
    return np.intersect1d(in_session, store.where(split=SESSIONS))


@torch.inference_mode()
def _session_losses(recognizer: Recognizer, store: FeatureStore) -> dict[str, float]:
    """Return the mean loss per token of each session's synthetic speech, without masks and dropout."""
    model, tokens = recognizer.model, recognizer.tokens
    model.eval()
    losses: dict[str, list[float]] = {}
    max_frames = int(BATCH_SECONDS * store.frames_per_second)
    for indices in plan_batches(store.num_frames, store.where(split=SESSIONS), max_frames, None):
        fit = [i for i in indices if model.fits(int(store.num_frames[i]), tokens.encode(store.text(int(i))))]
        if fit:
            batch = collate(store, fit, tokens.encode)
            for index, loss in zip(fit, (model.losses(batch) / batch.token_lengths).tolist(), strict=True):
                losses.setdefault(store.session(int(index)), []).append(loss)
    return {session: float(np.mean(values)) for session, values in losses.items()}


@dataclass(frozen=True)
class SessionsOfSpeaker:
    sessions: Mapping[str, Tally]


@dataclass(frozen=True)
class SpeakersOfScores:
    """The sessions of each speaker in scores.json."""

    speakers: Mapping[str, SessionsOfSpeaker]


def session_errors(run: Path, which: str) -> dict[str, Rate]:
    """Count word errors by session, over all its speakers."""
    (path,) = (run / "evaluation").glob(f"*/{which}/scores.json")
    errors: dict[str, Errors] = defaultdict(Errors)
    for speaker in read_as(SpeakersOfScores, path).speakers.values():
        for session, tally in speaker.sessions.items():
            errors[session] += tally.words
    return {session: (words.total, words.length) for session, words in errors.items()}
