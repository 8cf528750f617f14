"""Self-training and distillation: clients without transcripts learn from the hypotheses of a teacher.

K. Kumatani, D. Dimitriadis et al., "Sequence-level self-learning with multi-task learning framework",
Interspeech 2020; Dimitriadis et al., "Dynamic Gradient Aggregation for Federated Domain Adaptation", 2021,
arXiv:2106.07578, §2.2 and §4.3: the N-best hypotheses of an utterance are soft labels, their losses are
weighted and added, and DGA combines the clients by their pseudo-label loss. With another, larger model as the
teacher it is sequence-level distillation (Kim and Rush, 2016).

| symbol                      | here                                                              |
| --------------------------- | ----------------------------------------------------------------- |
| N, hypotheses y_n           | `labels.num_hypotheses`, found by the teacher's beam              |
| p_n                         | `labels.posteriors`: softmax of scores over `labels.temperature`  |
| Σ_n p_n L(y_n)              | `Batch.per_token`                                                 |
| teacher                     | `teacher`: the model that labels                                  |

Deviations. In §2.2 DGA weights tasks; here it weights clients, and posteriors weight hypotheses. Hypotheses
with small posteriors are left out, and the others add up to 1. A moving average is that of the models at the
rounds when the teacher changes.

Clients make the labels with the teacher that comes with the task. Only the server's state is kept from round
to round, and no text leaves a client. Utterances with a text keep it, so clients may be mixed. The server's
own client (`Rehearsed`) gets no labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from antiphon.algorithms.fedavg import FedAvg
from antiphon.config import run_or_folder
from antiphon.core import ALGORITHMS, Algorithm, Metrics, Pool, Tensors, WrapperState
from antiphon.server.run_context import RunContext
from antiphon.tasks.pseudo_labels import Labelling, TeacherInstruction, TeachingPool


@dataclass(frozen=True)
class SelfTrainedState(WrapperState):
    """The inner algorithm's state, and the teacher's parameters; empty: those at the start of the run."""

    teacher: Tensors = field(default_factory=dict)


@dataclass(frozen=True)
class FrozenSeed:
    """The model at the start of the run."""

    def next(self, state: SelfTrainedState) -> Tensors:
        return {}


@dataclass(frozen=True)
class CurrentModel:
    """The global model, updated every `update_every` rounds."""

    update_every: int = 1
    renamed: ClassVar = {"every": "update_every"}

    def __post_init__(self) -> None:
        if self.update_every < 1:
            raise ValueError(
                f"a teacher changes every 1 or more rounds: update_every cannot be {self.update_every}"
            )

    def next(self, state: SelfTrainedState) -> Tensors:
        return state.params if state.round % self.update_every == 0 else state.teacher


@dataclass(frozen=True)
class MovingAverage:
    """m ← decay · m + (1 − decay) · w, every `update_every` rounds; m starts as the run's first model."""

    decay: float = 0.9
    update_every: int = 1
    renamed: ClassVar = CurrentModel.renamed

    def __post_init__(self) -> None:
        CurrentModel(self.update_every)  # checks it
        if not 0 <= self.decay < 1:
            raise ValueError(f"decay must be at least 0 and below 1, not {self.decay}")

    def next(self, state: SelfTrainedState) -> Tensors:
        if state.round % self.update_every:
            return state.teacher
        if not state.teacher:
            return state.params
        return {name: old.lerp(state.params[name], 1 - self.decay) for name, old in state.teacher.items()}


@dataclass(frozen=True)
class OtherModel:
    """A model of any size from outside the run, which never changes: distillation."""

    run: str = "seed"  # an earlier run of the experiment
    folder: str = ""  # a folder with a model, in place of a run
    converted: ClassVar = {"model": lambda value: run_or_folder(value, "run", "folder")}

    def __post_init__(self) -> None:
        if self.folder:
            object.__setattr__(self, "run", "")

    def next(self, state: SelfTrainedState) -> Tensors:
        return {}


@ALGORITHMS.register
@dataclass(frozen=True)
class SelfTrained:
    """An algorithm whose clients label their own speech if it has no text."""

    inner: Algorithm = FedAvg()
    labels: Labelling = Labelling()
    teacher: FrozenSeed | CurrentModel | MovingAverage | OtherModel = FrozenSeed()
    labels_speech: ClassVar[bool] = True  # its clients need no texts
    effect: ClassVar[str] = "labels"
    refuses: ClassVar = {
        "reshapes": "the teacher would not fit the smaller model; write {inside} around self_trained"
    }
    is_for_whole_models: ClassVar[bool] = True  # `antiphon prune` goes on with the inner algorithm

    @property
    def teacher_run(self) -> str:
        """The run whose model labels the speech; empty: this run's own model, or one in a folder."""
        return self.teacher.run if isinstance(self.teacher, OtherModel) else ""

    @property
    def teacher_folder(self) -> str:
        """The folder whose model labels the speech; empty: a run's model."""
        return self.teacher.folder if isinstance(self.teacher, OtherModel) else ""

    def prepare(self, context: RunContext) -> SelfTrained:
        """Check that the teacher can label, and find its files."""
        labels, folder = context.resolve_labels(self.labels, self.teacher_run, self.teacher_folder)
        teacher = OtherModel(folder=folder) if folder else self.teacher
        return replace(self, labels=labels, teacher=teacher)

    def init(self, params: Tensors) -> SelfTrainedState:
        return SelfTrainedState(self.inner.init(params))

    def round(
        self, state: SelfTrainedState, cohort: Sequence[str], pool: Pool
    ) -> tuple[SelfTrainedState, Metrics]:
        teacher = self.teacher.next(state)
        teaching = TeachingPool(pool, TeacherInstruction(self.labels, self.teacher_folder, teacher))
        inner, metrics = self.inner.round(state.inner, cohort, teaching)
        return SelfTrainedState(inner, teacher), {**metrics, **teaching.metrics}
