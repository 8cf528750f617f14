"""How speech without a text is labelled: what an algorithm writes into a task and a client reads from it.

A teacher recognises an utterance; the scores s of its hypotheses become p = softmax(s / temperature); the
best `num_hypotheses` of them, weighted by p, are what the client trains on. Labels are a pure function of the
teacher, the client's speech and these settings, so nothing has to be kept from round to round.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Protocol

import torch

from antiphon import config
from antiphon.core import Collected, Pool, Report, Task, Tensors, Update, Weigh, lives_with_server
from antiphon.tasks.local_training import as_part
from antiphon.tasks.views import through_named

TEACHER = "teacher"  # the part of a task that holds the teacher's parameters
VIEW = "pseudo_labels"  # the view that labels a client's speech: only clients have its code
RENAMED = {"least": "threshold"}
COUNTS = ("num_labelled", "num_filtered")


@dataclass(frozen=True)
class Evidence:
    """What is known of an utterance's hypotheses: posteriors p, and of the best one ln p(tokens | speech).

    `log_lm` is ln p(words) of the best one, where a language model took part in the search.
    """

    posteriors: Sequence[float]
    log_prob: float = 0.0
    num_tokens: int = 1
    log_lm: float = 0.0


class Confidence(Protocol):
    """How far an utterance is trusted, from 0 to 1; below `threshold` it is left out."""

    @property
    def threshold(self) -> float: ...
    def __call__(self, evidence: Evidence) -> float: ...


@dataclass(frozen=True)
class TopPosterior:
    """By the share of the best hypothesis.

    >>> TopPosterior()(Evidence([0.75, 0.25]))
    0.75
    """

    threshold: float = 0.0
    renamed: ClassVar = RENAMED

    def __post_init__(self) -> None:
        _check_threshold(self.threshold)

    def __call__(self, evidence: Evidence) -> float:
        return max(evidence.posteriors)


@dataclass(frozen=True)
class LowEntropy:
    """By how few hypotheses share the mass: 1 − H(p) / ln (their number).

    >>> LowEntropy()(Evidence([0.5, 0.5])), LowEntropy()(Evidence([1.0, 0.0]))
    (0.0, 1.0)
    """

    threshold: float = 0.1
    renamed: ClassVar = RENAMED

    def __post_init__(self) -> None:
        _check_threshold(self.threshold)

    def __call__(self, evidence: Evidence) -> float:
        posteriors = evidence.posteriors
        if len(posteriors) == 1:
            return 1.0
        entropy = -math.fsum(p * math.log(p) for p in posteriors if p > 0)
        return 1.0 - entropy / math.log(len(posteriors))


@dataclass(frozen=True)
class TokenProbability:
    """By the geometric mean of the probabilities of the best hypothesis's tokens: exp(ln p / tokens).

    Hypotheses of a beam differ in a word or two, so their posteriors say little of how much else is wrong in
    a long utterance. This does: see docs/self-training.md.

    >>> TokenProbability()(Evidence([1.0], log_prob=2 * math.log(0.25), num_tokens=2))
    0.25
    """

    threshold: float = 0.8
    renamed: ClassVar = RENAMED

    def __post_init__(self) -> None:
        _check_threshold(self.threshold)

    def __call__(self, evidence: Evidence) -> float:
        return math.exp(evidence.log_prob / max(1, evidence.num_tokens))


@dataclass(frozen=True)
class SentenceProbability:
    """By token probability with the language model's of the words: exp((ln p + ln p(words)) / tokens).

    What has been heard badly and then mended into words that nobody says is found out by this.

    >>> SentenceProbability()(Evidence([1.0], math.log(0.5), num_tokens=2, log_lm=math.log(0.125)))
    0.25
    """

    threshold: float = 0.2
    renamed: ClassVar = RENAMED

    def __post_init__(self) -> None:
        _check_threshold(self.threshold)

    def __call__(self, evidence: Evidence) -> float:
        return math.exp((evidence.log_prob + evidence.log_lm) / max(1, evidence.num_tokens))


def _check_threshold(threshold: float) -> None:
    if not 0 <= threshold <= 1:
        raise ValueError(f"a confidence is between 0 and 1: threshold cannot be {threshold}")


@dataclass(frozen=True)
class Ngram:
    """A language model that takes part in the teacher's search (shallow fusion), and what its words weigh."""

    path: str = ""  # an ARPA file or a folder of `antiphon lm`; empty: estimated from the server's texts
    weight: float = 0.5
    word_bonus: float = 0.0
    order: int = 3  # of the model that is estimated

    def __post_init__(self) -> None:
        if self.weight < 0 or self.order < 1:
            raise ValueError("a language model's weight must not be negative, its order must be at least 1")


@dataclass(frozen=True)
class SecondPass:
    """A language model that ranks the teacher's lists anew: score + weight · ln p(text)."""

    path: str  # a folder of `antiphon lm`, neural or n-grams, or an ARPA file
    weight: float = 0.5

    def __post_init__(self) -> None:
        if self.weight < 0:
            raise ValueError(f"a language model's weight must not be negative, not {self.weight}")


@dataclass(frozen=True)
class Labelling:
    """N-best lists as soft labels; num_hypotheses=1 gives hard ones."""

    num_hypotheses: int = 4  # hypotheses an utterance is trained on, at most
    width: int = 8  # of the beam; posteriors are over all it finds
    temperature: float = 1.0
    confidence: TopPosterior | LowEntropy | TokenProbability | SentenceProbability = TopPosterior()
    lm: Ngram | None = None
    second_pass: SecondPass | None = None
    batch_seconds: float = 120.0  # of audio recognised at once
    renamed: ClassVar = {"num": "num_hypotheses"}

    def __post_init__(self) -> None:
        if not 1 <= self.num_hypotheses <= self.width:
            raise ValueError(
                f"labels: num_hypotheses must be between 1 and the width of the beam ({self.width}), "
                f"not {self.num_hypotheses}"
            )
        if not self.temperature > 0:
            raise ValueError(f"labels: temperature must be above 0, not {self.temperature}")
        if not self.batch_seconds > 0:
            raise ValueError(f"labels: batch_seconds must be above 0, not {self.batch_seconds}")

    def posteriors(self, scores: Sequence[float]) -> list[float]:
        """softmax(scores / temperature).

        >>> Labelling(temperature=2.0).posteriors([0.0, -2.0 * math.log(3.0)])
        [0.75, 0.25]
        """
        top = max(scores)
        powers = [math.exp((score - top) / self.temperature) for score in scores]
        return [power / math.fsum(powers) for power in powers]


@dataclass(frozen=True)
class TeacherInstruction:
    """Who labels, and how. `model` is a teacher's folder; empty: a model built as the one that is trained.

    Of that one, `teacher` holds the parameters that differ from those the run began with.
    """

    labelling: Labelling
    model: str = ""
    teacher: Tensors = field(default_factory=dict)

    def add_to(self, task: Task) -> Task:
        """The task, done through the view that labels speech."""
        # Only what is trained can differ from what a client has already.
        teacher = {name: tensor for name, tensor in self.teacher.items() if name in task.tensors}
        values = {"labelling": config.to_dict(self.labelling), "model": self.model}
        task = replace(task, tensors={**task.tensors, **as_part(teacher, TEACHER)})
        return through_named(task, VIEW, values)

    def has_words_of(self, other: TeacherInstruction) -> bool:
        """Whether settings and folder are the same."""
        return (self.labelling, self.model) == (other.labelling, other.model)

    def has_teacher_of(self, other: TeacherInstruction) -> bool:
        """Whether the teachers' parameters are the same to the last bit."""
        mine, others = self.teacher, other.teacher
        return mine.keys() == others.keys() and all(torch.equal(mine[name], others[name]) for name in mine)


class TeachingPool:
    """A pool whose clients label their speech; those that live with the server, and evaluations, do not."""

    def __init__(self, pool: Pool, instruction: TeacherInstruction) -> None:
        self.pool, self.instruction = pool, instruction
        self.reports: dict[str, Report] = {}  # the last one of each client

    def reduce(self, task: Task, cohort: Sequence[str], weigh: Weigh) -> Update:
        if not self._is_taught(task, cohort):
            return self.pool.reduce(task, cohort, weigh)
        update = self.pool.reduce(self.instruction.add_to(task), cohort, weigh)
        self._note(update.reports)
        return update

    def collect(self, task: Task, cohort: Sequence[str]) -> Collected:
        if not self._is_taught(task, cohort):
            return self.pool.collect(task, cohort)
        collected = self.pool.collect(self.instruction.add_to(task), cohort)
        self._note(collected.reports)
        return collected

    def _is_taught(self, task: Task, cohort: Sequence[str]) -> bool:
        return task.kind != "evaluate" and not all(map(lives_with_server, cohort))

    def _note(self, reports: Sequence[Report]) -> None:
        self.reports |= {report.client: report for report in reports}

    @property
    def metrics(self) -> dict[str, float]:
        """Utterances that were labelled and filtered out in the cohort, and the mean confidence of both."""
        reports = self.reports.values()
        found = {key: sum(report.stats.get(key, 0.0) for report in reports) for key in COUNTS}
        judged = sum(found.values())
        total = math.fsum(
            report.stats.get("confidence", 0.0) * sum(report.stats.get(key, 0.0) for key in COUNTS)
            for report in reports
        )
        return {**found, "confidence": total / judged if judged else 0.0}
