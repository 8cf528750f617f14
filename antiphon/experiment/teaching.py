"""What self-training needs of an experiment: who has no texts, who teaches, and with which language model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
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
    """The clients of a run that have no texts; those that have were drawn, the same ones every time."""
    names = sorted(clients)
    order = np.random.default_rng(derive(seed, "labelled")).permutation(len(names))
    return sorted(names[place] for place in order[round(run.labelled * len(names)) :])


@dataclass(frozen=True)
class CheckedLabels:
    """Before any run begins: refuse a teacher that cannot do its work, or that has none.

    `teacher` has the model that will label, unless that is in a folder: then it is the run's own.
    """

    run: Run
    teacher: Recognizer
    store: FeatureStore
    clients: Mapping[str, np.ndarray]
    server_texts: Callable[[], Sequence[str]]

    def __call__(self, labels: Labelling, model: str) -> tuple[Labelling, str]:
        indices = [index for own in self.clients.values() for index in own.tolist()]
        if self.run.labelled == 1 and all(self.store.text(index) for index in indices):
            raise ValueError("every utterance has a text, so there is nothing to label: set labelled below 1")
        teacher = self.teacher
        if "/" in model:
            frontend = teacher.blueprint.frontend
            teacher = Recognizer.load(model)
            if teacher.blueprint.frontend != frontend:
                raise ValueError(f"the teacher in {model} has another front end: this run has {frontend}")
        fusion = None
        if labels.lm is not None:
            ngrams = (
                load_ngram(labels.lm.path)
                if labels.lm.path
                else estimate(self.server_texts(), labels.lm.order)
            )
            fusion = Fusion(ngrams, labels.lm.weight, labels.lm.word_bonus)
        beam_for(teacher.model, labels.width, fusion)
        if labels.second_pass is not None:
            load_sentence_model(labels.second_pass.path)
        return labels, model


@dataclass(frozen=True)
class ResolvedLabels:
    """When a run begins: paths of the teacher and of its language model that every process can open.

    A language model of the server's texts is written into the run's folder.
    """

    out: Path
    folder: Path
    group: ProcessGroup
    server_texts: Callable[[], Sequence[str]]

    def __call__(self, labels: Labelling, model: str) -> tuple[Labelling, str]:
        if model and "/" not in model:
            if not self.group.on_rank_zero(
                lambda: (self.out / model / "model" / "model.safetensors").exists()
            ):
                raise ValueError(f"a run is taught by {model!r}, which has not finished in {self.out}")
            model = str(self.out / model)
        lm = labels.lm
        if lm is not None and not lm.path:
            path = self.folder / "lm.arpa"
            self.group.on_rank_zero(lambda: save_ngram(estimate(self.server_texts(), lm.order), path))
            labels = replace(labels, lm=replace(lm, path=str(path)))
        return labels, model
