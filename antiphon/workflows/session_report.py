"""What adaptation did for each session: its text, its speech, losses and errors before and after."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from antiphon import config
from antiphon.data.batches import collate, plan_batches
from antiphon.data.store import FeatureStore
from antiphon.data.tts.spoken_corpus import SpokenCorpus
from antiphon.decoding.greedy import BATCH_SECONDS
from antiphon.experiment.score import write_json
from antiphon.recipes.adaptation import SESSIONS, Speaking, Texts
from antiphon.recognizer import Recognizer
from antiphon.scoring.error_rate import Errors, Tally

Rate = tuple[int, int]  # words wrong, words


@dataclass(frozen=True)
class SessionReport:
    """One session. Losses are per token, of its synthetic speech; errors are of its real speech, if any."""

    session: str
    sentences: int
    words: int
    new_words: int  # different words that are not in the seed model's training text
    skipped: dict[str, int]  # kind of reason -> sentences
    unsaid: int  # sentences that no voice can say
    seconds: float
    loss_before: float | None
    loss_after: float | None
    errors_before: Rate | None
    errors_after: Rate | None


def report_sessions(
    texts: Texts,
    spoken: SpokenCorpus,
    store: FeatureStore,
    before: Path,
    runs: Path,
    names: Sequence[str],
    speaking: Speaking,
) -> list[SessionReport]:
    """Every session given, those without a usable sentence too; written to sessions.json beside the runs.

    `before`: the seed model's run; `names`: of the runs, the first began with it, the last has the result.
    """
    losses = [_session_losses(Recognizer.load(run), store) for run in (before, runs / names[-1])]
    errors = [session_errors(runs / names[0], "start"), session_errors(runs / names[-1], "best")]
    own = (one for one in spoken.unsaid if one.id.startswith(f"tts-{SESSIONS}-"))
    unsaid = Counter(where for where, _ in {(one.where, one.id.rpartition("-")[0]) for one in own})
    reports = []
    for text in texts.sessions:
        words = [word for sentence in text.sentences for word in sentence.written.split()]
        indices = _of_session(store, text.name)
        reports.append(
            SessionReport(
                session=text.name,
                sentences=len(text.sentences),
                words=len(words),
                new_words=len(set(words) - texts.known_words),
                skipped=dict(Counter(one.kind for one in text.skipped)),
                unsaid=unsaid[text.name],
                seconds=float(store.seconds[indices].sum()),
                loss_before=losses[0].get(text.name),
                loss_after=losses[1].get(text.name),
                errors_before=errors[0].get(text.name),
                errors_after=errors[1].get(text.name),
            )
        )
    skipped = [one for text in (*texts.sessions, *texts.organisation) for one in text.skipped]
    body = {
        "speaking": config.to_dict(speaking),
        "sessions": [asdict(report) for report in reports],
        "skipped": [asdict(one) for one in (*skipped, *spoken.unsaid)],
    }
    write_json(runs / "sessions.json", body)
    return reports


def _of_session(store: FeatureStore, name: str) -> np.ndarray:
    """The synthetic utterances of a session."""
    if name not in store.session_names:
        return np.zeros(0, dtype=np.int64)
    own = store.session_codes == store.session_names.index(name)
    return np.intersect1d(np.flatnonzero(own), store.where(split=SESSIONS))


@torch.inference_mode()
def _session_losses(recognizer: Recognizer, store: FeatureStore) -> dict[str, float]:
    """Mean loss per token of each session's synthetic speech, without masks and dropout."""
    model, tokens = recognizer.model, recognizer.tokens
    model.eval()
    told: dict[str, list[float]] = {}
    max_frames = int(BATCH_SECONDS * store.frames_per_second)
    for chosen in plan_batches(store.num_frames, store.where(split=SESSIONS), max_frames, None):
        fit = [i for i in chosen if model.fits(int(store.num_frames[i]), tokens.encode(store.text(int(i))))]
        if fit:
            batch = collate(store, fit, tokens.encode)
            for index, loss in zip(fit, (model.losses(batch) / batch.token_lengths).tolist(), strict=True):
                told.setdefault(store.session(int(index)), []).append(loss)
    return {session: float(np.mean(own)) for session, own in told.items()}


def session_errors(run: Path, which: str) -> dict[str, Rate]:
    """Word errors by session, over all its speakers."""
    (path,) = (run / "evaluation").glob(f"*/{which}/scores.json")
    errors: dict[str, Errors] = defaultdict(Errors)
    for speaker in json.loads(path.read_text())["speakers"].values():
        for session, scores in speaker["sessions"].items():
            errors[session] += Tally.from_dict(scores).words
    return {session: (words.total, words.length) for session, words in errors.items()}
