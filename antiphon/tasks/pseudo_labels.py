"""Pseudo-labels: what an algorithm writes into a task about labelling speech, and a client reads from it.

A teacher recognises an utterance. The scores s of its hypotheses become p = softmax(s / temperature), and the
client trains on the best `num_hypotheses`, weighted by p. Labels are a pure function of the teacher, the
client's speech and these settings, so nothing has to be kept from round to round.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch

from antiphon import config
from antiphon.core import Report, Task, Tensors, lives_with_server
from antiphon.tasks.local_training import as_part
from antiphon.tasks.pool_wrapper import PoolWrapper
from antiphon.tasks.views import through_named

TEACHER = "teacher"  # the part of a task that holds the teacher's parameters
VIEW = "pseudo_labels"  # the name of the view that labels a client's speech; only clients import its code
COUNTS = ("num_labelled", "num_filtered")


@dataclass(frozen=True)
class Evidence:
    """Posteriors p of an utterance's hypotheses, and ln p(tokens | speech) of the best one.

    `log_lm` is ln p(words) of the best one, if the search used a language model.
    """

    posteriors: Sequence[float]
    log_prob: float = 0.0
    num_tokens: int = 1
    log_lm: float = 0.0


@dataclass(frozen=True)
class _Confidence:
    """How far an utterance is trusted, from 0 to 1; below `threshold` it is left out."""

    threshold: float
    renamed: ClassVar = {"least": "threshold"}

    def __post_init__(self) -> None:
        if not 0 <= self.threshold <= 1:
            raise ValueError(f"a confidence is between 0 and 1: threshold cannot be {self.threshold}")


@dataclass(frozen=True)
class TopPosterior(_Confidence):
    """The posterior of the best hypothesis.

    >>> TopPosterior()(Evidence([0.75, 0.25]))
    0.75
    """

    threshold: float = 0.0

    def __call__(self, evidence: Evidence) -> float:
        return max(evidence.posteriors)


@dataclass(frozen=True)
class LowEntropy(_Confidence):
    """1 − H(p) / ln (number of hypotheses): high if few hypotheses have most of the probability.

    >>> LowEntropy()(Evidence([0.5, 0.5])), LowEntropy()(Evidence([1.0, 0.0]))
    (0.0, 1.0)
    """

    threshold: float = 0.1

    def __call__(self, evidence: Evidence) -> float:
        posteriors = evidence.posteriors
        if len(posteriors) == 1:
            return 1.0
        entropy = -math.fsum(p * math.log(p) for p in posteriors if p > 0)
        return 1.0 - entropy / math.log(len(posteriors))


@dataclass(frozen=True)
class TokenProbability(_Confidence):
    """The geometric mean of the probabilities of the best hypothesis's tokens: exp(ln p / tokens).

    Hypotheses of a beam differ in a word or two, so their posteriors say little about the other words of a
    long utterance. The token probability does: see docs/self-training.md.

    >>> TokenProbability()(Evidence([1.0], log_prob=2 * math.log(0.25), num_tokens=2))
    0.25
    """

    threshold: float = 0.8

    def __call__(self, evidence: Evidence) -> float:
        return math.exp(evidence.log_prob / max(1, evidence.num_tokens))


@dataclass(frozen=True)
class SentenceProbability(_Confidence):
    """As `TokenProbability`, with the language model: exp((ln p + ln p(words)) / tokens).

    It also finds speech that was recognised badly and then turned into unlikely words.

    >>> SentenceProbability()(Evidence([1.0], math.log(0.5), num_tokens=2, log_lm=math.log(0.125)))
    0.25
    """

    threshold: float = 0.2

    def __call__(self, evidence: Evidence) -> float:
        return math.exp((evidence.log_prob + evidence.log_lm) / max(1, evidence.num_tokens))


@dataclass(frozen=True)
class Ngram:
    """A language model in the teacher's search (shallow fusion), and its weights."""

    path: str = ""  # an ARPA file or a folder of `antiphon lm`; empty: estimated from the server's texts
    weight: float = 0.5
    word_bonus: float = 0.0
    order: int = 3  # of the model that is estimated

    def __post_init__(self) -> None:
        if self.weight < 0 or self.order < 1:
            raise ValueError("a language model's weight must not be negative, its order must be at least 1")


@dataclass(frozen=True)
class SecondPass:
    """A language model that ranks the teacher's lists again: score + weight · ln p(text)."""

    path: str  # a folder of `antiphon lm`, neural or n-grams, or an ARPA file
    weight: float = 0.5

    def __post_init__(self) -> None:
        if self.weight < 0:
            raise ValueError(f"a language model's weight must not be negative, not {self.weight}")


@dataclass(frozen=True)
class Labelling:
    """N-best lists as soft labels; num_hypotheses=1 gives hard ones."""

    num_hypotheses: int = 4  # at most this many hypotheses of an utterance are trained on
    width: int = 8  # of the beam; posteriors are over all its hypotheses
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
        """Return softmax(scores / temperature).

        >>> Labelling(temperature=2.0).posteriors([0.0, -2.0 * math.log(3.0)])
        [0.75, 0.25]
        """
        top = max(scores)
        powers = [math.exp((score - top) / self.temperature) for score in scores]
        return [power / math.fsum(powers) for power in powers]


@dataclass(frozen=True)
class TeacherInstruction:
    """The teacher and its settings. `model` is its folder; empty: a model built like the trained one.

    In that case `teacher` holds the parameters that differ from those at the start of the run.
    """

    labelling: Labelling
    model: str = ""
    teacher: Tensors = field(default_factory=dict)

    def add_to(self, task: Task) -> Task:
        """Return the task with the view that labels speech, and with the teacher's parameters."""
        # Clients have the others: only parameters that are trained can differ.
        teacher = {name: tensor for name, tensor in self.teacher.items() if name in task.tensors}
        values = {"labelling": config.to_dict(self.labelling), "model": self.model}
        task = replace(task, tensors={**task.tensors, **as_part(teacher, TEACHER)})
        return through_named(task, VIEW, values)

    def has_settings_of(self, other: TeacherInstruction) -> bool:
        """Return whether settings and folder are the same."""
        return (self.labelling, self.model) == (other.labelling, other.model)

    def has_teacher_of(self, other: TeacherInstruction) -> bool:
        """Return whether the teachers' parameters are the same to the last bit."""
        if self.teacher.keys() != other.teacher.keys():
            return False
        return all(torch.equal(tensor, other.teacher[name]) for name, tensor in self.teacher.items())


@dataclass
class TeachingPool(PoolWrapper):
    """A pool whose clients label their speech; not in evaluations, nor where the server's own data are."""

    instruction: TeacherInstruction
    stats: dict[str, Mapping[str, float]] = field(default_factory=dict)  # client -> last report about labels

    def outgoing(self, task: Task, cohort: Sequence[str]) -> Task:
        is_taught = task.kind != "evaluate" and not all(map(lives_with_server, cohort))
        return self.instruction.add_to(task) if is_taught else task

    def answered(self, reports: Sequence[Report]) -> None:
        self.stats |= {r.client: r.stats for r in reports if r.stats.keys() >= {*COUNTS, "confidence"}}

    @property
    def metrics(self) -> dict[str, float]:
        """Numbers of utterances that were labelled and filtered out, and their mean confidence."""
        clients = self.stats.values()
        counts = {key: sum(stats[key] for stats in clients) for key in COUNTS}
        total = math.fsum(stats["confidence"] * sum(stats[key] for key in COUNTS) for stats in clients)
        return {**counts, "confidence": total / (sum(counts.values()) or 1.0)}
