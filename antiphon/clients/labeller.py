"""Labels speech without transcripts on the client that has the speech: a teacher's N-best lists.

The teacher is a model like the student, with parameters that come with the task, or another model in a
folder. Hypotheses are converted to text and to the student's tokens, since the teacher may have others.

The batches of a client depend on no other client, so its labels are the same in any process and after any
interruption. The latest labels of the last teacher are kept. This saves time and changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from antiphon.clients.client import Client, ClientRuntime, PseudoLabels, WeightedTranscript
from antiphon.core import Task, Unusable
from antiphon.data.batches import Batch, unlabelled_batches
from antiphon.data.tokens import Tokens
from antiphon.decoding.fusion import Fusion
from antiphon.decoding.nbest import ACOUSTIC, LM, Hypothesis
from antiphon.decoding.search import Beam, beam_for
from antiphon.lm.arpa import load_ngram
from antiphon.lm.neural_lm import load_sentence_model
from antiphon.lm.ngram import SentenceModel
from antiphon.models.model import Model
from antiphon.recognizer import Recognizer
from antiphon.tasks.local_training import part_of
from antiphon.tasks.pseudo_labels import TEACHER, VIEW, Evidence, Labelling, TeacherInstruction
from antiphon.tasks.views import CLIENT_VIEWS, View


@CLIENT_VIEWS.named(VIEW)
@dataclass(frozen=True)
class PseudoLabelView(View):
    """The client trains on the teacher's hypotheses for its utterances that have no text."""

    labelling: Labelling = Labelling()
    model: str = ""  # the folder of a teacher; empty: a model built like the trained one
    consumes: ClassVar[tuple[str, ...]] = (TEACHER,)

    def before(self, task: Task, client: Client) -> tuple[Task, Client]:
        teacher = part_of(task.tensors, TEACHER)
        student = {name: t for name, t in task.tensors.items() if name.removeprefix(f"{TEACHER}/") == name}
        labeller = client.runtime.memory.setdefault(VIEW, Labeller(client.runtime))
        instruction = TeacherInstruction(self.labelling, self.model, teacher)
        return replace(task, tensors=student), labeller.labelled(client, instruction)


@dataclass(frozen=True)
class Teacher:
    """A model that labels speech, its tokens, its search, and a language model for a second pass."""

    model: Model
    tokens: Tokens
    beam: Beam
    second: SentenceModel | None = None
    weight: float = 0.0  # of the second pass

    def recognise(self, batch: Batch) -> list[tuple[Hypothesis, ...]]:
        """Return the hypotheses of each utterance, best first."""
        self.model.eval()
        lists = self.beam.nbest(self.model, self.tokens, batch)
        return lists if self.second is None else [self._ranked(hypotheses) for hypotheses in lists]

    def _ranked(self, hypotheses: Sequence[Hypothesis]) -> tuple[Hypothesis, ...]:
        assert self.second is not None
        log_probs = self.second.score_sentences([hypothesis.text for hypothesis in hypotheses])
        pairs = zip(hypotheses, log_probs.tolist(), strict=True)
        scored = [replace(h, score=h.score + self.weight * log_prob) for h, log_prob in pairs]
        return tuple(sorted(scored, key=lambda hypothesis: -hypothesis.score))


@dataclass
class Labeller:
    """Labels the utterances without text of all clients of one process."""

    runtime: ClientRuntime
    max_utterances: int = 100_000  # with labels in memory: some hundred MiB, however many clients there are
    _instruction: TeacherInstruction | None = field(default=None, init=False)
    _teacher: Teacher | None = field(default=None, init=False)
    _labels: dict[str, PseudoLabels] = field(default_factory=dict, init=False)  # by client, the latest last
    _num_stored: int = field(default=0, init=False)

    def labelled(self, client: Client, instruction: TeacherInstruction) -> Client:
        """Return the client with labels for utterances without text; Unusable if it has no text at all."""
        self._follow(instruction)
        unwritten = self.unwritten(client.indices)
        if len(unwritten) == 0:
            return client
        labels, times = self._remove(client.id), {}
        if labels is None:
            began = time.perf_counter()
            labels = self._label(unwritten, instruction)
            times = {"label_seconds": time.perf_counter() - began}
        self._store(client.id, labels)
        labels = replace(labels, stats={**labels.stats, **times})  # of this round only
        if not labels.texts and not self.runtime.fits(client.indices).any():
            raise Unusable(
                f"no usable label for any of {len(unwritten)} utterances: "
                "their hypotheses are empty, do not fit, or are below labels.confidence.threshold"
            )
        return replace(client, labels=labels)

    def _store(self, client: str, labels: PseudoLabels) -> None:
        """Store labels; drop the least recently used ones if there are too many."""
        self._labels[client] = labels
        self._num_stored += 1 + len(labels.texts)
        while self._num_stored > self.max_utterances:
            self._remove(next(iter(self._labels)))

    def _remove(self, client: str) -> PseudoLabels | None:
        labels = self._labels.pop(client, None)
        self._num_stored -= 1 + len(labels.texts) if labels else 0
        return labels

    def unwritten(self, indices: np.ndarray) -> np.ndarray:
        """Return the utterances that have no text."""
        return np.array([i for i in indices.tolist() if not self.runtime.store.text(i)], dtype=np.int64)

    def _follow(self, instruction: TeacherInstruction) -> None:
        """Drop the labels of another teacher, or of other settings."""
        before, self._instruction = self._instruction, instruction
        if before is None or not instruction.has_settings_of(before):
            self._teacher = open_teacher(instruction, self.runtime)
        elif instruction.has_teacher_of(before):
            return
        self._labels, self._num_stored = {}, 0

    def _label(self, unwritten: np.ndarray, instruction: TeacherInstruction) -> PseudoLabels:
        teacher, runtime, settings = self._teacher, self.runtime, instruction.labelling
        assert teacher is not None
        if not instruction.model:
            runtime.load(instruction.teacher)
        texts: dict[int, tuple[WeightedTranscript, ...]] = {}
        confidences = []
        for index, hypotheses in recognise(teacher, runtime, unwritten, settings):
            num_frames = int(runtime.store.num_frames[index])
            transcripts, confidence = self.transcripts(hypotheses, num_frames, settings)
            confidences.append(confidence)
            if transcripts:
                texts[index] = transcripts
        stats = {
            "num_labelled": float(len(texts)),
            "num_filtered": float(len(unwritten) - len(texts)),
            "confidence": float(np.mean(confidences)),
        }
        return PseudoLabels(texts, stats)

    def transcripts(
        self, hypotheses: Sequence[Hypothesis], num_frames: int, settings: Labelling
    ) -> tuple[tuple[WeightedTranscript, ...], float]:
        """Return the labels of an utterance and its confidence.

        There are none if the confidence is too low, or if the best hypothesis cannot be trained on: it is
        empty, or has too many tokens for the frames. Posteriors are over all hypotheses; those of the labels
        add up to 1.
        """
        if not hypotheses:
            return (), 0.0
        posteriors = settings.posteriors([hypothesis.score for hypothesis in hypotheses])
        best = hypotheses[0]
        log_prob, log_lm = best.parts.get(ACOUSTIC, best.score), best.parts.get(LM, 0.0)
        confidence = settings.confidence(Evidence(posteriors, log_prob, len(best.tokens), log_lm))
        spelled = [tuple(self.runtime.tokens.encode(h.text)) for h in hypotheses[: settings.num_hypotheses]]
        fits = [self.runtime.model.fits(num_frames, tokens) for tokens in spelled]
        if confidence < settings.confidence.threshold or not fits[0]:
            return (), confidence
        usable = [rank for rank, is_usable in enumerate(fits) if is_usable]
        total = sum(posteriors[rank] for rank in usable)
        return tuple(WeightedTranscript(spelled[r], posteriors[r] / total) for r in usable), confidence


def recognise(
    teacher: Teacher, runtime: ClientRuntime, indices: np.ndarray, settings: Labelling
) -> Iterator[tuple[int, Sequence[Hypothesis]]]:
    """Yield a teacher's hypotheses for each utterance, the shortest utterance first."""
    for chosen, batch in unlabelled_batches(runtime.store, indices, settings.batch_seconds, runtime.feed):
        yield from zip(chosen.tolist(), teacher.recognise(batch), strict=True)


def open_teacher(instruction: TeacherInstruction, runtime: ClientRuntime) -> Teacher:
    """Return the teacher of an instruction; ValueError for files and settings that do not fit."""
    settings = instruction.labelling
    model, tokens = runtime.model, runtime.tokens
    if instruction.model:
        recognizer = Recognizer.load(instruction.model, str(runtime.device))
        model, tokens = recognizer.model, recognizer.tokens
    fusion = None
    if settings.lm is not None:
        fusion = Fusion(load_ngram(settings.lm.path), settings.lm.weight, settings.lm.word_bonus)
    beam, second = beam_for(model, settings.width, fusion), settings.second_pass
    if second is None:
        return Teacher(model, tokens, beam)
    return Teacher(model, tokens, beam, load_sentence_model(second.path, str(runtime.device)), second.weight)
