"""Labels for speech that nobody wrote down: a teacher's N-best lists, on the client that has the speech.

The teacher is the clients' own model with the parameters that came with the task, or another model in a
folder. Hypotheses are taken as text and spelled in the student's tokens: a teacher may have others.

A client's utterances are recognised by themselves, in batches that depend on nobody else, so its labels are
the same in any process and after any interruption. Those of the last teacher are kept, the latest of them,
which saves time and changes nothing.
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
    """The client trains on what a teacher recognises in its speech, wherever that has no text."""

    labelling: Labelling = Labelling()
    model: str = ""  # the folder of a teacher; empty: a model built like the one that is trained
    consumes: ClassVar[tuple[str, ...]] = (TEACHER,)

    def before(self, task: Task, client: Client) -> tuple[Task, Client]:
        teacher = part_of(task.tensors, TEACHER)
        student = {name: t for name, t in task.tensors.items() if name.removeprefix(f"{TEACHER}/") == name}
        labeller = client.runtime.memory.setdefault(VIEW, Labeller(client.runtime))
        instruction = TeacherInstruction(self.labelling, self.model, teacher)
        return replace(task, tensors=student), labeller.labelled(client, instruction)


@dataclass(frozen=True)
class Teacher:
    """A model that is there to be listened to, the tokens it spells in, and how it searches and ranks."""

    model: Model
    tokens: Tokens
    beam: Beam
    second: SentenceModel | None = None
    weight: float = 0.0  # of the second pass

    def hear(self, batch: Batch) -> list[tuple[Hypothesis, ...]]:
        """Hypotheses of each utterance, best first."""
        self.model.eval()
        lists = self.beam.nbest(self.model, self.tokens, batch)
        return lists if self.second is None else [self._ranked(hypotheses) for hypotheses in lists]

    def _ranked(self, hypotheses: Sequence[Hypothesis]) -> tuple[Hypothesis, ...]:
        assert self.second is not None
        log_probs = self.second.score_sentences([hypothesis.text for hypothesis in hypotheses])
        scored = [
            replace(hypothesis, score=hypothesis.score + self.weight * log_prob)
            for hypothesis, log_prob in zip(hypotheses, log_probs.tolist(), strict=True)
        ]
        return tuple(sorted(scored, key=lambda hypothesis: -hypothesis.score))


@dataclass
class Labeller:
    """Labels the utterances without a text of one client after another, all in one process."""

    runtime: ClientRuntime
    max_utterances: int = (
        100_000  # utterances whose labels are kept: some hundred MiB, however many clients there are
    )
    _instruction: TeacherInstruction | None = field(default=None, init=False)
    _teacher: Teacher | None = field(default=None, init=False)
    _kept: dict[str, PseudoLabels] = field(
        default_factory=dict, init=False
    )  # client -> labels, the latest last
    _num_kept: int = field(default=0, init=False)

    def labelled(self, client: Client, instruction: TeacherInstruction) -> Client:
        """The client, with guesses for what has no text; one that has no text it can trust is unusable."""
        self._learn(instruction)
        unwritten = self.unwritten(client.indices)
        if len(unwritten) == 0:
            return client
        labels, spent = self._take(client.id), {}
        if labels is None:
            began = time.perf_counter()
            labels = self._label(unwritten, instruction)
            spent = {"label_seconds": time.perf_counter() - began}
        self._keep(client.id, labels)
        # Time is of this round alone: labels that were kept cost nothing.
        labels = replace(labels, stats={**labels.stats, **spent})
        if not labels.texts and not self.runtime.fits(client.indices).any():
            raise Unusable(
                f"no usable label for any of {len(unwritten)} utterances: "
                "their hypotheses are empty, do not fit, or are below labels.confidence.threshold"
            )
        return replace(client, labels=labels)

    def _keep(self, client: str, labels: PseudoLabels) -> None:
        """Forgets those that were not asked for the longest where there are too many: they are heard anew."""
        self._kept[client] = labels
        self._num_kept += 1 + len(labels.texts)
        while self._num_kept > self.max_utterances:
            self._take(next(iter(self._kept)))

    def _take(self, client: str) -> PseudoLabels | None:
        """What is kept for a client, no longer kept."""
        labels = self._kept.pop(client, None)
        self._num_kept -= 1 + len(labels.texts) if labels else 0
        return labels

    def unwritten(self, indices: np.ndarray) -> np.ndarray:
        """Utterances that have no text."""
        return np.array([i for i in indices.tolist() if not self.runtime.store.text(i)], dtype=np.int64)

    def _learn(self, instruction: TeacherInstruction) -> None:
        """Forgets labels of another teacher, or of other settings."""
        before, self._instruction = self._instruction, instruction
        if before is None or not instruction.has_words_of(before):
            self._teacher = open_teacher(instruction, self.runtime)
        elif instruction.has_teacher_of(before):
            return
        self._kept, self._num_kept = {}, 0

    def _label(self, unwritten: np.ndarray, instruction: TeacherInstruction) -> PseudoLabels:
        teacher, runtime, settings = self._teacher, self.runtime, instruction.labelling
        assert teacher is not None
        if not instruction.model:
            runtime.load(instruction.teacher)
        texts: dict[int, tuple[WeightedTranscript, ...]] = {}
        confidences = []
        for index, hypotheses in heard(teacher, runtime, unwritten, settings):
            transcripts, confidence = self.transcripts(
                hypotheses, int(runtime.store.num_frames[index]), settings
            )
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
        """The labels of an utterance, none if it is not to be trusted, and how far it is.

        Posteriors are over all hypotheses; those that are kept add up to 1. Where the best cannot be trained
        on (it is empty, or has more tokens than the frames can hold), nothing is known.
        """
        if not hypotheses:
            return (), 0.0
        posteriors = settings.posteriors([hypothesis.score for hypothesis in hypotheses])
        best = hypotheses[0]
        log_prob, log_lm = best.parts.get(ACOUSTIC, best.score), best.parts.get(LM, 0.0)
        evidence = Evidence(posteriors, log_prob, len(best.tokens), log_lm)
        confidence = settings.confidence(evidence)
        spelled = [tuple(self.runtime.tokens.encode(h.text)) for h in hypotheses[: settings.num_hypotheses]]
        fits = [self.runtime.model.fits(num_frames, tokens) for tokens in spelled]
        if confidence < settings.confidence.threshold or not fits[0]:
            return (), confidence
        kept = [
            WeightedTranscript(spelled[rank], posteriors[rank]) for rank, usable in enumerate(fits) if usable
        ]
        total = sum(transcript.weight for transcript in kept)
        return tuple(
            WeightedTranscript(transcript.tokens, transcript.weight / total) for transcript in kept
        ), confidence


def heard(
    teacher: Teacher, runtime: ClientRuntime, indices: np.ndarray, settings: Labelling
) -> Iterator[tuple[int, Sequence[Hypothesis]]]:
    """What a teacher makes of each utterance, from the shortest to the longest."""
    for chosen, batch in unlabelled_batches(runtime.store, indices, settings.batch_seconds, runtime.feed):
        yield from zip(chosen.tolist(), teacher.hear(batch), strict=True)


def open_teacher(instruction: TeacherInstruction, runtime: ClientRuntime) -> Teacher:
    """The teacher of a lesson with what it searches by; refuses files and settings that do not fit."""
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
