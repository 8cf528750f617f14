"""Adapt a model to sessions from their text: speak the text, train on it, report on each session."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from antiphon import config
from antiphon.data.corpus import Corpus
from antiphon.data.tts.spoken_corpus import SpokenCorpus
from antiphon.experiment.folder import check_folder
from antiphon.experiment.runner import Scores, run_experiment
from antiphon.recipes import adaptation
from antiphon.workflows.progress import Notify, Progress, no_messages, no_progress, screen_for
from antiphon.workflows.session_report import SessionReport, report_sessions


@dataclass(frozen=True)
class Adaptation:
    """The speech that was made, and what training on it did; scores and sessions are empty without it.

    model: the folder of the adapted run.
    """

    corpus: Path
    model: Path
    scores: dict[str, Scores]
    sessions: tuple[SessionReport, ...]


def adapt(
    run: str | Path,
    text: Sequence[str | Path],
    rehearse: str | Path,
    out: str | Path,
    *,
    organisation: Sequence[str | Path] = (),
    train: str = "all",
    rounds: int = 20,
    speaking: Sequence[str] = (),
    settings: Sequence[str] = (),
    speech_only: bool = False,
    resume: bool = False,
    device: str = "auto",
    processes: int = 1,
    progress: Progress = no_progress,
    notify: Notify = no_messages,
) -> Adaptation:
    """Adapt a model to sessions by synthetic speech of their text.

    The model is first trained centrally on the organisation's text (if there is one), then federated with
    every session as a client. No text may be in the test speech of the corpus.

    Args:
        run: A finished run, such as out/seed, or the folder of a model.
        text: Texts of sessions: a file each, folders of files, or .jsonl with session and text.
        rehearse: The corpus of real speech that the model was trained on.
        out: The folder for the speech (`out`/corpus), the runs and the report (`out`/runs).
        organisation: Texts of the whole organisation.
        train: The part of the model to train: encoder, decoder, all, prediction, joint, or a pattern of
            parameter names.
        rounds: The number of rounds of each level.
        speaking: Changes to how text is spoken, each written as `key=value`, such as num_voices=8.
        settings: Changes to settings of the runs, each written as `path=value`.
        speech_only: Make the corpus and its features, and stop.
        resume: Continue the runs that are in `out`.
        device: cpu, cuda, or auto (the GPU if there is one).
        processes: The number of processes that speak and compute features. More than one needs
            `if __name__ == "__main__":` in a script.
        progress: A function that is called with (stage, steps done, number of steps).
        notify: A function that is called with a line of text: sentences that are skipped, and how long
            the speech is.

    Example:
        adaptation = antiphon.adapt("out/seed", ["slides.txt"], rehearse="speech", out="adapted")
        print(adaptation.sessions[0].loss_before, adaptation.sessions[0].loss_after)
    """
    out = Path(out)
    runs = out / "runs"
    seed, corpus = adaptation.Seed.open(Path(run)), Corpus.open(Path(rehearse))
    how = config.override(adaptation.Speaking(), speaking)
    experiment = adaptation.adapted_experiment(seed, bool(organisation), train, rounds, settings)
    check_folder(runs, experiment, resume)
    texts = adaptation.read_texts(seed, [Path(t) for t in text], [Path(t) for t in organisation], corpus, how)
    for line in _skipped(texts):
        notify(line)
    spoken, real = adaptation.make_corpus(
        out / "corpus", texts, corpus, how, processes, partial(progress, "synthesis")
    )
    notify(_summary(spoken))
    store = adaptation.compute_features(seed, spoken, real, processes, partial(progress, "features"))
    if speech_only:
        return Adaptation(spoken.corpus.path, runs / "adapted", {}, ())
    screen = screen_for(progress)
    scores = run_experiment(experiment, spoken.corpus.path, runs, resume, False, device, processes, screen)
    sessions = report_sessions(texts, spoken, store, seed.folder, runs, list(experiment.runs), how)
    return Adaptation(spoken.corpus.path, runs / "adapted", scores, tuple(sessions))


def _skipped(texts: adaptation.Texts) -> Iterator[str]:
    """Say how many sentences each reason cost, and which sessions have none left."""
    for text in (*texts.sessions, *texts.organisation):
        total = len(text.sentences) + len(text.skipped)
        for kind, count in Counter(one.kind for one in text.skipped).items():
            yield f"{text.name}: {count:,} of {total:,} sentences skipped, {kind}"
        if not text.sentences:
            yield f"{text.name}: no sentences left, the session is skipped"


def _summary(spoken: SpokenCorpus) -> str:
    if not spoken.said:
        return "all sentences are in the corpus already"
    speed = spoken.seconds / spoken.wall_seconds
    length = f"{spoken.seconds / 60:.1f} min of speech in {spoken.wall_seconds:.0f} s"
    unsaid = f"; {len(spoken.unsaid):,} utterances that no voice can say" if spoken.unsaid else ""
    return f"{length}, {speed:.0f} times real time{unsaid}"
