"""Federated dropout: weak devices train a smaller model, drawn anew in each round, strong ones the whole.

D. Guliani, L. Zhou, C. Ryu, T.-J. Yang, H. Zhang, Y. Xiao, F. Beaufays, G. Motta, "Enabling On-Device
Training of Speech Recognition Models with Federated Dropout", ICASSP 2022, arXiv:2110.03634. The method is
that of S. Caldas, J. Konečný, H. B. McMahan, A. Talwalkar, "Expanding the Reach of Federated Learning by
Reducing Client Resource Requirements", 2018, arXiv:1812.07210, §3.2.

| paper                   | here                                                                            |
| ----------------------- | ------------------------------------------------------------------------------- |
| federated dropout rate  | 1 − `keep`: the share of a layer's units that a class of devices does not train |
| rate of a layer         | `layers`, `exclude`: which layers lose units; the others are whole              |
| sub-model               | `draw_units`: random units for a class and a round; `shrink` is that of pruning |
| aggregation             | `entry_mean`: an entry is averaged over the clients that trained it             |

Deviations.
- The papers draw a submodel for each client. Here all devices of a class share one in a round, so that their
  updates are added as they arrive.
- Entries that nobody trained in a round have Δ = 0; the server's momentum and decay still move them.
- A unit that two layers share is drawn once: a feed-forward module of a Conformer loses the same hidden units
  on both sides, an LSTM loses units with all their gates. Weights of kept units are not scaled.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch

from antiphon.algorithms.fedavg import hierarchical
from antiphon.algorithms.pruning_scores import num_kept
from antiphon.algorithms.pruning_slices import WholeColumn, remaining, slices_of
from antiphon.core import (
    ALGORITHMS,
    Algorithm,
    Collected,
    Failure,
    Metrics,
    Pool,
    Report,
    Task,
    Tensors,
    Update,
    Weigh,
    lives_with_server,
)
from antiphon.seeding import derive
from antiphon.server.run_context import RunContext
from antiphon.tasks.local_training import parameters_in
from antiphon.tasks.pool_wrapper import PoolWrapper
from antiphon.tasks.prunable_layers import EmbeddingLayer, LinearLayer, RecurrentLayer, check_structure
from antiphon.tasks.submodel import Submodel, SubmodelView, expand_parts, shrink
from antiphon.tasks.views import through

WHOLE = ""  # the submodel, and the class, of devices that train the whole model


@dataclass(frozen=True)
class DeviceClass:
    """Devices that train a part of the model."""

    share: float = 0.5  # of the clients, drawn by the seed and their names
    keep: float = 0.5  # of the units of every layer that loses units
    names: tuple[str, ...] = ()  # these clients, instead of a share

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ValueError(f"share is a share of the clients between 0 and 1, not {self.share:g}")
        if not 0 < self.keep < 1:
            raise ValueError(
                f"keep is a share of units above 0 and below 1, not {self.keep:g}: "
                "devices in no class keep all"
            )

    @property
    def drawn(self) -> float:
        """The share of the clients that is drawn: none, if the clients have names."""
        return 0.0 if self.names else self.share


def class_of(name: str, classes: Mapping[str, DeviceClass], seed: int) -> str:
    """Return the class of a client, or of any speaker: the same for the same name, whoever else there is."""
    if lives_with_server(name):
        return WHOLE
    for label, devices in classes.items():
        if name in devices.names:
            return label
    place, upper = derive(seed, "device class", name) / 2**63, 0.0
    for label, devices in classes.items():
        upper += devices.drawn
        if place < upper:
            return label
    return WHOLE


@dataclass(frozen=True)
class Answered:
    """The sum of the updates of one class, and what of the model it trained."""

    update: Update
    submodel: Submodel


def entry_mean(answers: Sequence[Answered], model: Tensors) -> Update:
    """Return the mean over all classes: each entry over the classes that trained it, 0 where none did."""
    reports = tuple(report for answer in answers for report in answer.update.reports)
    failures = tuple(failure for answer in answers for failure in answer.update.failures)
    full = [answer for answer in answers if not answer.update.is_empty]
    if not full:
        return Update.nothing(*failures)
    top = max(answer.update.log_weight for answer in full)
    shares = [math.exp(answer.update.log_weight - top) for answer in full]
    log_weight = top + math.log(math.fsum(shares))
    if len(full) == 1 and not full[0].submodel.layers:  # nothing to add, so no rounding
        return Update(full[0].update.mean, log_weight, reports, failures)
    sums: Tensors = {}
    weights: Tensors = {}
    for answer, share in zip(full, shares, strict=True):
        mean = answer.update.mean
        parts = {name: tensor * share for name, tensor in mean.items()}
        counts = {name: torch.full_like(tensor, share) for name, tensor in mean.items()}
        for total, small in ((sums, parts), (weights, counts)):
            for name, tensor in expand_parts(small, answer.submodel, model, {}).items():
                total[name] = total[name] + tensor if name in total else tensor
    mean = {name: torch.where(w > 0, sums[name] / w, 0.0) for name, w in weights.items()}
    return Update(mean, log_weight, reports, failures)


@dataclass
class ClassPool(PoolWrapper):
    """A pool that sends a task to each class of devices, in its size, and averages entry by entry."""

    submodels: Mapping[str, str]  # class -> submodel, as `Submodel.write` writes it
    classes: Mapping[str, DeviceClass]
    seed: int

    def outgoing(self, task: Task, cohort: Sequence[str]) -> Task:
        """Return the task for clients of one class."""
        submodel = self._submodel(cohort[0]) if cohort else WHOLE
        if not submodel:
            return task
        return through(
            replace(task, tensors=shrink(task.tensors, Submodel.read(submodel))), SubmodelView(submodel)
        )

    def reduce(self, task: Task, cohort: Sequence[str], weigh: Weigh) -> Update:
        answers = [
            Answered(super(ClassPool, self).reduce(task, clients, weigh), Submodel.read(submodel))
            for submodel, clients in self._groups(cohort)
        ]
        return _in_order(entry_mean(answers, parameters_in(task.tensors)), cohort)

    def collect(self, task: Task, cohort: Sequence[str]) -> ClassUpdates:
        parts = [
            (super(ClassPool, self).collect(task, clients), Submodel.read(submodel))
            for submodel, clients in self._groups(cohort)
        ]
        return ClassUpdates(parts, parameters_in(task.tensors))

    def _submodel(self, client: str) -> str:
        return self.submodels.get(class_of(client, self.classes, self.seed), WHOLE)

    def _groups(self, cohort: Sequence[str]) -> list[tuple[str, list[str]]]:
        """Return the clients of each submodel, in cohort order; all clients in one group if there is none."""
        groups: dict[str, list[str]] = {}
        for client in cohort:
            groups.setdefault(self._submodel(client), []).append(client)
        return sorted(groups.items(), key=lambda group: len(group[0])) or [(WHOLE, [])]


def _in_order(update: Update, cohort: Sequence[str]) -> Update:
    place = {client: number for number, client in enumerate(cohort)}
    reports = sorted(update.reports, key=lambda report: place[report.client])
    return replace(update, reports=tuple(reports))


@dataclass(frozen=True)
class ClassUpdates:
    """The collected updates of all classes, class by class."""

    parts: Sequence[tuple[Collected, Submodel]]
    model: Tensors

    @property
    def reports(self) -> tuple[Report, ...]:
        return tuple(report for collected, _ in self.parts for report in collected.reports)

    @property
    def failures(self) -> tuple[Failure, ...]:
        return tuple(failure for collected, _ in self.parts for failure in collected.failures)

    def combine(self, log_weights: Sequence[float]) -> Update:
        answers, begin = [], 0
        for collected, submodel in self.parts:
            end = begin + len(collected.reports)
            answers.append(Answered(collected.combine(log_weights[begin:end]), submodel))
            begin = end
        return entry_mean(answers, self.model)

    def distances(self, point: Tensors) -> list[float]:
        """Measure each update against the entries that it has."""
        return [
            distance
            for collected, submodel in self.parts
            for distance in collected.distances(shrink(point, submodel))
        ]


def _weak() -> dict[str, DeviceClass]:
    return {"weak": DeviceClass()}


@ALGORITHMS.register
@dataclass(frozen=True)
class FederatedDropout:
    """An algorithm whose weak clients train a part of the model; devices in no class train the whole."""

    inner: Algorithm = hierarchical()
    classes: dict[str, DeviceClass] = field(default_factory=_weak)
    layers: tuple[str, ...] = ("encoder.layers.*",)  # patterns of layer names that lose units
    exclude: tuple[str, ...] = ("*.convolution.*", "*.attention.*")  # patterns of those that do not
    seed: int = 0  # decides which clients are weak, in all runs alike
    structure: tuple[LinearLayer | RecurrentLayer | EmbeddingLayer, ...] = ()  # set when the run begins
    effect: ClassVar[str] = "reshapes"
    is_for_whole_models: ClassVar[bool] = True  # `antiphon prune` goes on with the inner algorithm
    refuses: ClassVar = {"reshapes": "a model is made smaller once; leave out one of the two"}
    unbounded: ClassVar[str] = "an entry is averaged over those who trained it, and their number varies"

    def __post_init__(self) -> None:
        if not self.classes:
            raise ValueError("federated_dropout needs a class of devices that train a part of the model")
        if (total := sum(devices.drawn for devices in self.classes.values())) > 1 + 1e-9:
            raise ValueError(f"federated_dropout: the shares of the classes add up to {total:g}, above 1")
        if WHOLE in self.classes:
            raise ValueError("federated_dropout: a class of devices needs a name")

    def check_run(self, run: Any) -> None:
        """Refuse secure aggregation: the sums of classes would be seen one by one."""
        if run.secure_aggregation:
            raise ValueError(
                "federated_dropout: secure_aggregation hides updates in the sum of a cohort, and here each "
                "class of devices has a sum of its own: leave out one of the two"
            )

    def prepare(self, context: RunContext) -> FederatedDropout:
        """Take the layers of the model from the context; refuse names of clients that are not there."""
        for devices in self.classes.values():
            if unknown := sorted(set(devices.names) - set(context.clients)):
                raise ValueError(f"federated_dropout: no client {unknown[0]!r} among those of the run")
        return replace(self, structure=tuple(context.structure()))

    def init(self, params: Tensors) -> Any:
        check_structure(self.structure, params)
        for devices in self.classes.values():
            for group in slices_of(self.structure, self.layers, self.exclude, WholeColumn()):
                num_kept(group, devices.keep)  # ValueError if nothing would be left
        return self.inner.init(params)  # it has no state of its own

    def draw_units(self, seed: int, round: int, label: str) -> Submodel:
        """Return the submodel that a class of devices trains in a round."""
        groups = slices_of(self.structure, self.layers, self.exclude, WholeColumn())
        generator = torch.Generator().manual_seed(derive(seed, "submodel", label, round))
        masks = []
        for group in groups:
            kept = torch.randperm(group.size, generator=generator)[
                : num_kept(group, self.classes[label].keep)
            ]
            masks.append(torch.zeros(group.size, dtype=torch.bool).index_fill(0, kept, True))
        return remaining(groups, masks).submodel(self.structure)

    def round(self, state: Any, cohort: Sequence[str], pool: Pool) -> tuple[Any, Metrics]:
        if not self.structure:
            raise ValueError(
                "federated_dropout does not know the model's layers: call run_context.prepare first"
            )
        drawn = {label: self.draw_units(state.seed, state.round, label) for label in self.classes}
        written = {label: submodel.write() for label, submodel in drawn.items()}
        after, metrics = self.inner.round(state, cohort, ClassPool(pool, written, self.classes, self.seed))
        size = sum(parameter.numel() for parameter in state.params.values())
        kept = {
            f"parameters_{label}": sum(p.numel() for p in shrink(state.params, submodel).values()) / size
            for label, submodel in drawn.items()
        }
        return after, {**metrics, **kept}
