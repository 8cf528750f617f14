"""Self-training in an experiment: clients without texts, the teacher, and its language model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from antiphon.data.store import FeatureStore
from antiphon.decoding.fusion import Fusion
from antiphon.decoding.search import beam_for
from antiphon.experiment.settings import Run
from antiphon.lm.arpa import load_ngram, save_ngram
from antiphon.lm.kneser_ney import estimate
from antiphon.lm.neural_lm import load_sentence_model
from antiphon.pools.process_group import ProcessGroup
from antiphon.recognizer import Recognizer
from antiphon.seeding import derive
from antiphon.tasks.pseudo_labels import Labelling


def unlabelled_clients(run: Run, clients: Sequence[str], seed: int) -> list[str]:
    """Return the clients of a run that have no texts: a draw that depends on the seed only."""
    names = sorted(clients)
    order = np.random.default_rng(derive(seed, "labelled")).permutation(len(names))
    return sorted(names[index] for index in order[round(run.labelled * len(names)) :])


def check_labels(
    run: Run,
    teacher: Recognizer,
    store: FeatureStore,
    clients: Mapping[str, np.ndarray],
    server_texts: Callable[[], Sequence[str]],
    labels: Labelling,
    teacher_run: str,
    teacher_folder: str,
) -> tuple[Labelling, str]:
    """Refuse a teacher that does not work or has nothing to label, before any run begins.

    `teacher` has the model that labels; if that is in a folder, it has the run's own.
    """
    indices = [index for utterances in clients.values() for index in utterances.tolist()]
    # Of clients on other machines, nothing is known here.
    if indices and run.labelled == 1 and all(store.text(index) for index in indices):
        raise ValueError("every utterance has a text, so there is nothing to label: set labelled below 1")
    if teacher_folder:
        frontend = teacher.blueprint.frontend
        teacher = Recognizer.load(teacher_folder)
        if teacher.blueprint.frontend != frontend:
            raise ValueError(
                f"the teacher in {teacher_folder} has another front end: this run has {frontend}"
            )
    fusion = None
    if (lm := labels.lm) is not None:
        ngrams = load_ngram(lm.path) if lm.path else estimate(server_texts(), lm.order)
        fusion = Fusion(ngrams, lm.weight, lm.word_bonus)
    beam_for(teacher.model, labels.width, fusion)
    if labels.second_pass is not None:
        load_sentence_model(labels.second_pass.path)
    return labels, teacher_folder


def resolve_labels(
    out: Path,
    folder: Path,
    group: ProcessGroup,
    server_texts: Callable[[], Sequence[str]],
    labels: Labelling,
    teacher_run: str,
    teacher_folder: str,
) -> tuple[Labelling, str]:
    """Return paths of teacher and language model that every process can open, when a run begins.

    A language model of the server's texts is written to the run's folder.
    """
    if teacher_run:
        teacher_folder = str(out / teacher_run)
        if not group.on_rank_zero((out / teacher_run / "model" / "model.safetensors").exists):
            raise ValueError(f"a run is taught by {teacher_run!r}, which has not finished in {out}")
    lm = labels.lm
    if lm is not None and not lm.path:
        path = folder / "lm.arpa"
        group.on_rank_zero(lambda: save_ngram(estimate(server_texts(), lm.order), path))
        labels = replace(labels, lm=replace(lm, path=str(path)))
    return labels, teacher_folder
