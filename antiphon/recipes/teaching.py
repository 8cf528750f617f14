"""What self-training needs of an experiment: who has no texts, who teaches, and with which language model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from antiphon.algorithms.self_training import OtherModel, SelfTrained
from antiphon.core import Algorithm
from antiphon.data.store import FeatureStore
from antiphon.decoding.fusion import Fusion
from antiphon.decoding.recognizer import Recognizer
from antiphon.decoding.search import beam_for
from antiphon.models.arpa import load_ngram, save_ngram
from antiphon.models.kneser_ney import estimate
from antiphon.models.neural_lm import load_sentence_model
from antiphon.recipes.experiment import Run
from antiphon.seeding import derive
from antiphon.team import Team


def unlabelled_clients(run: Run, clients: Sequence[str], seed: int) -> list[str]:
    """The clients of a run that have no texts; those that have were drawn, the same ones every time."""
    names = sorted(clients)
    order = np.random.default_rng(derive(seed, "labelled")).permutation(len(names))
    return sorted(names[place] for place in order[round(run.labelled * len(names)) :])


def check_teaching(
    run: Run,
    teacher: Recognizer,
    store: FeatureStore,
    clients: Mapping[str, np.ndarray],
    server_texts: Callable[[], Sequence[str]],
) -> None:
    """Refuses a run whose teacher cannot do its work, or has none.

    `teacher` has the model that will label, unless that is in a folder: then it is the run's own.
    """
    algorithm = run.algorithm
    if not isinstance(algorithm, SelfTrained):
        return
    if run.labelled == 1 and all(store.text(i) for own in clients.values() for i in own.tolist()):
        raise ValueError("every utterance has a text, so there is nothing to label: set labelled below 1")
    if "/" in run.teacher:
        hears = teacher.blueprint.frontend
        teacher = Recognizer.load(run.teacher)
        if teacher.blueprint.frontend != hears:
            raise ValueError(f"the teacher in {run.teacher} hears through another front end: {hears} is ours")
    lm, fusion = algorithm.labels.lm, None
    if lm is not None:
        ngrams = load_ngram(lm.path) if lm.path else estimate(server_texts(), lm.order)
        fusion = Fusion(ngrams, lm.weight, lm.word_bonus)
    beam_for(teacher.model, algorithm.labels.width, fusion)
    if algorithm.labels.second_pass is not None:
        load_sentence_model(algorithm.labels.second_pass.path)


def with_teacher(
    algorithm: Algorithm[Any],
    out: Path,
    folder: Path,
    team: Team,
    server_texts: Callable[[], Sequence[str]],
) -> Algorithm[Any]:
    """The algorithm, whose teacher and language model are paths now that every process of the team can open.

    A language model of the server's texts is written into the run's folder.
    """
    if not isinstance(algorithm, SelfTrained):
        return algorithm
    teacher, lm = algorithm.teacher, algorithm.labels.lm
    if isinstance(teacher, OtherModel) and "/" not in teacher.model:
        if not team.first(lambda: (out / teacher.model / "model" / "model.safetensors").exists()):
            raise ValueError(f"a run is taught by {teacher.model!r}, which has not finished in {out}")
        algorithm = replace(algorithm, teacher=OtherModel(str(out / teacher.model)))
    if lm is not None and not lm.path:
        path = folder / "lm.arpa"
        team.first(lambda: save_ngram(estimate(server_texts(), lm.order), path))
        algorithm = replace(algorithm, labels=replace(algorithm.labels, lm=replace(lm, path=str(path))))
    return algorithm
