"""Scores of models: errors by speaker and session, transcripts, and attention.

Clients that have their own models are scored on the utterances that each held out. Two evaluations are
written to evaluation/held-out/: `global` with the server's model for every client, and `best` with the model
of each client: its personal layers, or its own copy.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from antiphon.clients.client import ClientRuntime
from antiphon.clients.states import ClientStates
from antiphon.clients.worker import SpeechWorker
from antiphon.core import Collected, Task, Update, Weigh
from antiphon.data.batches import unlabelled_batches
from antiphon.data.store import FeatureStore
from antiphon.decoding.search import BATCH_SECONDS, recognise
from antiphon.engine import Outcome
from antiphon.experiment.preparation import Prepared
from antiphon.models.las import Las
from antiphon.recognizer import Recognizer
from antiphon.records.files import make_folder, replace_file, write_json
from antiphon.report.attention_summary import FILE, FORMAT, monotonicity, span
from antiphon.scoring.error_rate import Tally
from antiphon.scoring.normalisation import Normalisation
from antiphon.scoring.trn import write_trn
from antiphon.server.run_context import personal_pool
from antiphon.tasks.submodel import SubmodelPool

MEASURED, DRAWN = 64, 4  # utterances whose attention is measured and drawn
HELD_OUT = "held-out"  # the split of clients' own utterances
DECIMALS = 3  # of a weight in the file


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
    make_folder(folder)
    rows = {
        "ref.trn": [(store.text(i), store.speaker(i), store.id(i)) for i in heard],
        "hyp.trn": [(text, store.speaker(i), store.id(i)) for i, text in heard.items()],
    }
    for name, lines in rows.items():
        replace_file(folder / name, partial(write_trn, rows=lines), is_private=True)
    files = list(rows)
    if isinstance(recognizer.model, Las) and hypotheses is None:
        attention = attention_of(recognizer.model, store, indices)
        if attention is not None:
            write_json(folder / FILE, attention, indent=None)
            files.append(FILE)
    write_json(folder / "scores.json", scores, files)
    return scores


@dataclass
class SentTasks:
    """A pool that sends nothing: it records the tasks that it is given."""

    tasks: list[Task] = field(default_factory=list)

    def reduce(self, task: Task, cohort: Sequence[str], weigh: Weigh) -> Update:
        self.tasks.append(task)
        return Update.nothing()

    def collect(self, task: Task, cohort: Sequence[str]) -> Collected:
        raise NotImplementedError("evaluation collects nothing")


def score_clients(
    prepared: Prepared,
    name: str,
    algorithm: Any,
    runtime: ClientRuntime,
    outcome: Outcome,
    states: ClientStates,
    folder: Path,
) -> None:
    """Write the scores of a run's clients, with the server's model and with their own."""
    held_out = prepared.held_out[name]
    indices = np.concatenate([held_out[client] for client in sorted(held_out)])
    for which, is_personal in (("global", False), ("best", True)):
        sent = SentTasks()
        pool = SubmodelPool(sent, outcome.submodel)
        task = Task("evaluate", outcome.best, {"round": outcome.best_round})
        (personal_pool(algorithm, pool) if is_personal else pool).reduce(task, [], lambda report: 0.0)
        worker = SpeechWorker(runtime, prepared.clients[name], states, held_out)
        notes = {"split": HELD_OUT, "which": which, "round": outcome.best_round}
        recognizer = Recognizer(prepared.recognizer(name).blueprint, prepared.tokens, runtime.model)
        hypotheses = partial(_recognise_clients, worker, sent.tasks[0])
        target = folder / "evaluation" / HELD_OUT / which
        score(recognizer, prepared.store, indices, target, notes, hypotheses=hypotheses)


def _recognise_clients(worker: SpeechWorker, task: Task) -> dict[int, str]:
    """Recognise the utterances of every client with the model that the task gives it."""
    texts: dict[int, str] = {}
    for client, indices in sorted(worker.held_out.items()):
        entered = worker.enter(task, client)
        runtime = entered.client.runtime
        runtime.load(entered.task.tensors)
        texts |= recognise(runtime.model, runtime.tokens, runtime.store, indices, feed=runtime.feed)
    return texts


def attention_of(model: Las, store: FeatureStore, indices: np.ndarray) -> dict[str, Any] | None:
    """Return the body of attention.json; None if no utterance has two tokens or more.

    The tokens are those that the model recognises by greedy search, not those of the reference.
    """
    attention = attend(model, store, spread(store, indices)[:MEASURED])
    attention = {index: weights for index, weights in attention.items() if len(weights) > 1}
    if not attention:
        return None
    first_of = {store.speaker(index): index for index in reversed(attention)}
    drawn = sorted(first_of.values())[:: -(-len(first_of) // DRAWN)]
    return {
        "format": FORMAT,
        "tokens": "recognised",
        "num_utterances": len(attention),
        "monotonic": monotonicity(list(attention.values())),
        "span": float(np.mean([span(weights) for weights in attention.values()])),
        "examples": [
            {
                "id": store.id(index),
                "speaker": store.speaker(index),
                "seconds": float(store.seconds[index]),
                "weights": attention[index].round(DECIMALS).tolist(),
            }
            for index in drawn
        ],
    }


def spread(store: FeatureStore, indices: np.ndarray) -> list[int]:
    """Order utterances: one of every speaker, then a second one of each; those of median length first."""
    middle = np.median(store.num_frames[indices])
    near = sorted(indices.tolist(), key=lambda index: (abs(int(store.num_frames[index]) - middle), index))
    by_speaker: dict[str, list[int]] = {}
    for index in near:
        by_speaker.setdefault(store.speaker(index), []).append(index)
    turns = zip_longest(*(by_speaker[speaker] for speaker in sorted(by_speaker)))
    return [index for turn in turns for index in turn if index is not None]


@torch.inference_mode()
def attend(model: Las, store: FeatureStore, indices: list[int]) -> dict[int, np.ndarray]:
    """Return the attention [tokens, frames] of the tokens recognised in each utterance."""
    model.eval()
    device = next(model.parameters()).device
    attention: dict[int, np.ndarray] = {}
    for chosen, unlabelled in unlabelled_batches(store, np.array(indices), BATCH_SECONDS):
        batch = unlabelled.to(device)
        spelled = [torch.tensor(tokens, dtype=torch.int64, device=device) for tokens in model.greedy(batch)]
        lengths = torch.tensor([len(tokens) for tokens in spelled], device=device)
        batch = replace(batch, tokens=pad_sequence(spelled, batch_first=True), token_lengths=lengths)
        for index, weights in zip(chosen.tolist(), model.alignments(batch), strict=True):
            attention[index] = weights.double().cpu().numpy()
    return {index: attention[index] for index in indices}
