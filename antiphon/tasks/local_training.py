"""Local training: what an algorithm writes into a task about training, and a client reads from it.

Work that trains is a pair of functions: `plan` says which steps to take, `answer` makes an update of
their result. A client takes the steps alone, or a GPU takes those of many clients at once; the work is the
same. This is plain local training:

>>> @training_work("doctest.train", plan=plan_local_steps, answers="parameters")
... def answer(task, client, trained):
...     return Update(trained.delta, reports=(trained.report,))
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor

from antiphon import config as configuration
from antiphon.core import Report, Scalar, ServerState, Task, Tensors, Update, WrapperState
from antiphon.seeding import derive
from antiphon.tasks.client_optimizers import CLIENT_OPTIMIZERS, ClientOptimizer, ClientSgd
from antiphon.tasks.client_storage import CLIENT_STORAGE, ClientStorage, Exact
from antiphon.tasks.client_work import CLIENT_WORK, COUNT, LOSS, ROUNDING, Answer, Bounds


@dataclass(frozen=True)
class LocalTraining:
    """Steps on the client's own utterances, without state from one task to the next.

    The objective is the mean over utterances of (loss of the utterance / its number of tokens).
    """

    lr: float = 0.05  # learning rate
    epochs: int = 1  # passes over the client's utterances in a round
    steps: int = 0  # more than 0: exactly this many steps, instead of epochs
    batch_seconds: float = 60.0  # of audio in a batch, with padding; 0: all utterances in one batch
    clip_norm: float = 1.0  # largest l2 norm of a step's gradient; 0: no clipping
    proximal: float = 0.0  # FedProx (Li et al. 2020): adds proximal/2 · ||w − w_server||² to the loss
    optimizer: ClientOptimizer = ClientSgd()  # how a client takes a step
    storage: ClientStorage = Exact()  # how a client stores parameters between steps

    def __post_init__(self) -> None:
        if self.steps <= 0 and self.epochs <= 0:
            raise ValueError(
                f"local training needs epochs or steps above 0, not {self.epochs} and {self.steps}"
            )
        for name in ("lr", "batch_seconds", "clip_norm", "proximal"):
            if getattr(self, name) < 0:
                raise ValueError(f"local training: {name} must not be negative, not {getattr(self, name)}")

    @property
    def is_plain(self) -> bool:
        """Whether a step is that of plain SGD: the gradient times the learning rate."""
        return self.optimizer == ClientSgd()

    @property
    def is_exact(self) -> bool:
        """Whether clients store parameters as they are."""
        return self.storage == Exact()

    def task_config(
        self, state: ServerState | WrapperState, scale: float = 1.0, purpose: str = "train"
    ) -> dict[str, Scalar]:
        """Return the configuration of a task: these settings, the scaled learning rate, the round's seed."""
        seed = derive(state.seed, purpose, state.round)
        return {**self.to_task(), "lr": self.lr * scale, "round": state.round, "seed": seed}

    def to_task(self) -> dict[str, Scalar]:
        """Return the settings as part of a task's configuration; plain SGD, exact storage are not written."""
        settings = {field.name: getattr(self, field.name) for field in fields(self)}
        choices = {"optimizer": CLIENT_OPTIMIZERS, "storage": CLIENT_STORAGE}
        chosen = {name: settings.pop(name) for name in choices}
        for name in [*["optimizer"] * (not self.is_plain), *["storage"] * (not self.is_exact)]:
            written = {choices[name].name_of(type(chosen[name])): configuration.to_dict(chosen[name])}
            settings[name] = json.dumps(written, separators=(",", ":"))
        return settings

    @classmethod
    def from_task(cls, config: Mapping[str, Scalar]) -> LocalTraining:
        """Return the settings in a task's configuration."""
        choices = ("optimizer", "storage")
        settings: dict[str, Any] = {f.name: config[f.name] for f in fields(cls) if f.name not in choices}
        for name in choices:
            if name in config:
                written = {name: json.loads(str(config[name]))}
                settings[name] = getattr(configuration.from_dict(cls, written), name)
        return cls(**settings)


@dataclass(frozen=True)
class LocalSteps:
    """Local steps for a client.

    start: the parameters to train, with their first values.
    correction: added to the gradient of every step, for the parameters it names.
    anchor: the values that `local.proximal` pulls parameters to; for others, their first values.
    """

    start: Tensors
    local: LocalTraining
    seed: int
    correction: Tensors = field(default_factory=dict)
    anchor: Tensors = field(default_factory=dict)


@dataclass(frozen=True)
class Trained:
    """The result of local steps: start − end of each parameter, and a report with "loss", "norm", …"""

    delta: Tensors
    report: Report


# The numbers in the report of `Trained`. Those that the server measures itself are not here.
TRAINED: Mapping[str, Bounds] = {
    "loss": LOSS,
    "num_utterances": Bounds(1, 1e7, is_whole=True),
    "num_steps": Bounds(1, 1e9, is_whole=True, is_required=False),
    "seconds": Bounds(0, 1e9, is_required=False),
    "num_labelled": replace(COUNT, is_required=False),
    "num_filtered": replace(COUNT, is_required=False),
    "confidence": Bounds(-ROUNDING, 1 + ROUNDING, is_required=False),
    "label_seconds": Bounds(0, 1e9, is_required=False),
    "parameter_bytes": replace(COUNT, most=1e13, is_required=False),
}


@dataclass
class TrainingWork:
    """Work that consists of local steps, so that many clients can take them at once."""

    plan: Callable[[Task, Any], LocalSteps]
    answer: Callable[[Task, Any, Trained], Update | Answer]
    answers: str = ""
    reports: Mapping[str, Bounds] = field(default_factory=lambda: TRAINED)

    def __call__(self, task: Task, client: Any) -> Update | Answer:
        return self.answer(task, client, client.train(self.plan(task, client)))


def training_work(
    kind: str,
    plan: Callable[[Task, Any], LocalSteps],
    answers: str = "",
    reports: Mapping[str, Bounds] = TRAINED,
) -> Callable[[Callable[[Task, Any, Trained], Update | Answer]], TrainingWork]:
    """Register work for a kind of task: `plan`, and the decorated function as `answer`.

    `answers` and `reports` declare the answer, as in `client_work`.
    """

    def register(answer: Callable[[Task, Any, Trained], Update | Answer]) -> TrainingWork:
        work = TrainingWork(plan, answer, answers, reports)
        vars(work).update(__module__=answer.__module__, __qualname__=answer.__qualname__)
        CLIENT_WORK.register(work, kind)
        return work

    return register


def plan_local_steps(task: Task, client: Any) -> LocalSteps:
    """Plan the steps of the task's configuration, for the parameters in the task."""
    return LocalSteps(parameters_in(task.tensors), LocalTraining.from_task(task.config), seed_of(task))


def seed_of(task: Task) -> int:
    """Return the seed of the task's round."""
    return int(task.config["seed"])  # type: ignore[arg-type]


# --- Tensors of a task by part --------------------------------------------------------------------


def parameters_in(tensors: Tensors) -> Tensors:
    """Return the tensors that are parameters: those whose names have no "part/" before them."""
    return {name: tensor for name, tensor in tensors.items() if "/" not in name}


def part_of(tensors: Mapping[str, Tensor], part: str) -> Tensors:
    """Return the tensors called "part/name", as "name".

    >>> import torch
    >>> part_of({"control/w": torch.ones(1), "w": torch.zeros(1)}, "control")
    {'w': tensor([1.])}
    """
    prefix = f"{part}/"
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


def as_part(tensors: Mapping[str, Tensor], part: str) -> Tensors:
    """Return the tensors with "part/" before their names: the inverse of `part_of`."""
    return {f"{part}/{name}": tensor for name, tensor in tensors.items()}


# --- The size of tensors --------------------------------------------------------------------------


def global_norm(tensors: list[Tensor]) -> Tensor:
    """Return the l2 norm of all entries of some tensors."""
    return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(tensors)))


def measure_delta(delta: list[Tensor]) -> dict[str, float]:
    """Return the statistics of a delta, to about four digits; reads the device once."""
    total = torch.stack(torch._foreach_norm(delta, 1)).sum()
    norm, total_magnitude = torch.stack([global_norm(delta), total]).tolist()
    return delta_stats(norm, total_magnitude, sum(tensor.numel() for tensor in delta))


def delta_stats(norm: float, total_magnitude: float, num_entries: int) -> dict[str, float]:
    """Return the norm of a delta, and mean and variance of |entry|, from the norm and the sum.

    >>> delta_stats(norm=5.0, total_magnitude=7.0, num_entries=2)  # of 3 and −4
    {'norm': 5.0, 'magnitude_mean': 3.5, 'magnitude_variance': 0.25}
    """
    mean = total_magnitude / num_entries
    # Rounding may make a variance of 0 negative.
    variance = max(0.0, norm * norm / num_entries - mean * mean)
    return {"norm": norm, "magnitude_mean": mean, "magnitude_variance": variance}


class Row(dict[str, Tensor]):
    """Tensors that are parts of one tensor, `whole`. `parts` says which; rows that are alike share it.

    As soon as somebody puts another tensor into the dictionary, it is like any other.
    """

    def __init__(self, tensors: Tensors, whole: Tensor | None = None, parts: object = None) -> None:
        super().__init__(tensors)
        self.whole, self._parts = whole, parts
        self._tensors = list(tensors.values())  # kept, so that no other tensor gets the id of one of them
        self._ids = self._read_ids()

    def _read_ids(self) -> list[int]:
        return list(map(id, self.values()))

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)  # it travels as the tensors alone

    @property
    def parts(self) -> object:
        """What it consists of; None if it does not lie in one tensor."""
        return self._parts if self.whole is not None and self._read_ids() == self._ids else None

    def copy(self) -> Tensors:
        """Return a dictionary of the same tensors."""
        return dict(self) if self.parts is None else Row(self, self.whole, self._parts)

    def clones(self) -> Tensors:
        """Return copies of the tensors, which lie in one again."""
        if self.whole is None or self.parts is None:
            return {name: tensor.clone() for name, tensor in self.items()}
        whole, begin = self.whole.clone(), self.whole.storage_offset()
        tensors = {
            name: whole.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset() - begin)
            for name, tensor in self.items()
        }
        return Row(tensors, whole, self._parts)

    @torch.no_grad()
    def blend(self, other: Tensors, share: float) -> bool:
        """Move towards a row that is alike, in place; return whether it is."""
        if self.parts is None or not isinstance(other, Row) or other.parts is not self.parts:
            return False
        assert self.whole is not None
        assert other.whole is not None
        self.whole.lerp_(other.whole, share)
        return True


def parts_of(tensors: Tensors) -> object:
    """Return what tensors consist of that lie in one; None for others."""
    return tensors.parts if isinstance(tensors, Row) else None


class MeasuredDelta(Row):
    """A delta with its statistics, which hold as long as nobody has changed a tensor.

    The server measures the updates that arrive. To measure one again that was measured in the same process
    would take a tenth of a round with many clients on a GPU.
    """

    def __init__(
        self, delta: Tensors, stats: Mapping[str, float], whole: Tensor | None = None, parts: object = None
    ) -> None:
        super().__init__(delta, whole, parts)
        self._stats, self._versions = stats, self._read_versions()

    def _read_versions(self) -> list[int]:
        """How often the tensors were changed; parts of one tensor count together."""
        return [tensor._version for tensor in (self.values() if self.whole is None else (self.whole,))]

    @property
    def stats(self) -> Mapping[str, float] | None:
        """The statistics; None if they are not those of the tensors any more."""
        is_same = self._read_ids() == self._ids and self._read_versions() == self._versions
        return self._stats if is_same else None


def find_nonfinite(tensors: Mapping[str, Tensor]) -> str:
    """Return the name of the first tensor with NaN or infinity in it, "" if there is none.

    Reads the device once if all are finite: a finite norm has finite entries.
    """
    real = {name: tensor for name, tensor in tensors.items() if tensor.is_floating_point()}
    if not real or bool(torch.isfinite(global_norm(list(real.values())))):
        return ""
    return next((name for name, tensor in real.items() if not bool(torch.isfinite(tensor).all())), "")
