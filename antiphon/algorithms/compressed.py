"""Compressed updates: what clients send, and what they get, takes fewer bytes. Around any algorithm.

Error feedback: S. U. Stich, J.-B. Cordonnier, M. Jaggi, "Sparsified SGD with Memory", NeurIPS 2018,
arXiv:1809.07599, Algorithm 1; S. P. Karimireddy, Q. Rebjock, S. U. Stich, M. Jaggi, "Error Feedback Fixes
SignSGD and other Gradient Compression Schemes", ICML 2019, arXiv:1901.09847, Algorithm 2. The codecs are
papers of their own: `tasks.codecs`.

| paper                  | here                                                                   |
| ---------------------- | ---------------------------------------------------------------------- |
| C                      | `up`: the codec of updates                                             |
| m_t, e_t               | the client's state "unsent/name", for codecs with `needs_memory`       |
| g_t, p_t = γ g_t + e_t | Δ_k plus the memory                                                    |
| e_{t+1} = p_t − C(p_t) | what is left, with the decoded tensor, so also of rounding             |

Deviations. The memory is of whole updates, not of gradients, and waits while its client is not in a cohort.
`down` sends rounded parameters, and the server keeps the exact ones: no memory, no difference from what a
client got in an earlier round, so that a client needs no earlier round. With `from_start`, it sends w − w_0,
where w_0 are the parameters at the start of the run. All clients have them. The difference is smaller than w,
so fewer bits are as exact. An update that was sent and then lost or left out is not sent again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from antiphon.algorithms.fedavg import FedAvg
from antiphon.core import (
    ALGORITHMS,
    Algorithm,
    Metrics,
    Pool,
    Task,
    Tensors,
    Unusable,
    Update,
    WrapperState,
    lives_with_server,
)
from antiphon.privacy.distributed_noise import Distributed
from antiphon.registry import choice_name
from antiphon.seeding import derive
from antiphon.server.run_context import parts_of
from antiphon.tasks.client_work import Answer
from antiphon.tasks.codec import Codec
from antiphon.tasks.codecs.stochastic_rounding import StochasticRounding
from antiphon.tasks.local_training import as_part, find_nonfinite, parameters_in, part_of
from antiphon.tasks.packing import pack, pack_table, read_table, shapes_of, unpack
from antiphon.tasks.pool_wrapper import PoolWrapper
from antiphon.tasks.update_clipping import AdaptiveUpdate
from antiphon.tasks.views import CLIENT_VIEWS, View, through, views_of

PACKED, TABLE = "packed/tensors", "packed/table"  # all tensors in one; the names and shapes of a task's
UNSENT = "unsent"  # part of a client's state: its memory
KEPT = "codec."  # before the names of what a codec keeps, which is not shaped like parameters


@CLIENT_VIEWS.register
@dataclass(frozen=True)
class PackedAnswer(View):
    """The client sends its update encoded; the server decodes it before anything else looks at it."""

    codec: Codec
    seed: int
    is_outside: ClassVar[bool] = True

    def after(self, task: Task, client: Any, answer: Answer) -> Answer:
        update, changes = answer
        if not update.mean:
            return answer
        if name := find_nonfinite(update.mean):
            raise Unusable(f"NaN or infinity in {name}")
        if odd := [name for name, tensor in update.mean.items() if not tensor.is_floating_point()]:
            raise ValueError(f"{odd[0]!r} has whole numbers, which cannot be compressed")
        tensors = {name: tensor.detach().cpu() for name, tensor in update.mean.items()}
        seed = self._seed(task, client.id)
        if not self.codec.needs_memory:
            data, _ = pack(self.codec, tensors, seed)
            return replace(update, mean={PACKED: data}), changes
        memory = {name: tensor.cpu() for name, tensor in part_of(client.state, UNSENT).items()}
        full = {name: t + memory[name] if name in memory else t for name, t in tensors.items()}  # p_t
        kept = {name: client.state[key].cpu() for name in full if (key := _kept_as(name)) in client.state}
        data, keeps = pack(self.codec, full, seed, kept)
        sent = unpack(self.codec, data, shapes_of(full), seed)
        unsent = {name: tensor - sent[name] for name, tensor in full.items()}  # e_{t+1}
        keep = {_kept_as(name): tensor for name, tensor in keeps.items()}
        return replace(update, mean={PACKED: data}), {**changes, **as_part(unsent, UNSENT), **keep}

    def decode(self, update: Update, task: Task, like: Tensors | None) -> Update:
        if like is None:
            raise ValueError(
                f"compressed does not know what clients answer to {task.kind!r}: declare it with "
                "client_work(kind, answers=...)"
            )
        if not like and not update.mean:
            return update
        if update.mean.keys() != {PACKED}:
            raise ValueError("its answer is not compressed as the task asks for")
        seed = self._seed(task, update.reports[0].client)
        tensors = unpack(self.codec, update.mean[PACKED], shapes_of(like), seed)
        return replace(update, mean={name: tensor.to(like[name]) for name, tensor in tensors.items()})

    def _seed(self, task: Task, client: str) -> int:
        return derive(self.seed, "up", *task.moment, client)


@CLIENT_VIEWS.register
@dataclass(frozen=True)
class PackedTask(View):
    """The client gets the task's tensors encoded, and decodes them before anything else looks at them."""

    codec: Codec
    seed: int
    from_start: bool = False  # the parameters in the task are differences from those at the start of the run
    is_outside: ClassVar[bool] = True

    def depart(self, task: Task) -> Task:
        # What a view takes out of a task, such as a teacher, must stay the same from round to round.
        consumed = {part for view in views_of(task) for part in view.consumes}
        packed = {
            name: tensor
            for name, tensor in task.tensors.items()
            if tensor.is_floating_point() and name.rpartition("/")[0] not in consumed
        }
        if not packed:
            return task
        device = next(iter(packed.values())).device
        data, _ = pack(self.codec, packed, self._seed(task))
        others = {name: tensor for name, tensor in task.tensors.items() if name not in packed}
        both = {PACKED: data.to(device), TABLE: pack_table(packed).to(device)}
        return replace(task, tensors={**others, **both})

    def before(self, task: Task, client: Any) -> tuple[Task, Any]:
        if PACKED not in task.tensors:
            return task, client
        others = {name: t for name, t in task.tensors.items() if name not in (PACKED, TABLE)}
        data, cached = task.tensors[PACKED], client.runtime.memory.get(PACKED)
        if cached is None or cached[0] is not data:  # clients of one process get the same tensor
            cached = (data, self._decoded(task, client.base))
            client.runtime.memory[PACKED] = cached
        return replace(task, tensors={**others, **cached[1]}), client

    def _decoded(self, task: Task, base: Tensors) -> Tensors:
        data = task.tensors[PACKED]
        table = read_table(task.tensors[TABLE])
        for name, (shape, _) in table.items():  # so that a task cannot fill the memory here
            parameter = base.get(name.rpartition("/")[2])
            if parameter is None or tuple(parameter.shape) != shape:
                raise ValueError(f"the task has {name!r:.80}, which is not shaped like a parameter here")
        shapes = {name: shape for name, (shape, _) in table.items()}
        decoded = unpack(self.codec, data, shapes, self._seed(task))
        tensors = {name: tensor.to(data.device, table[name][1]) for name, tensor in decoded.items()}
        if self.from_start:
            tensors |= {name: tensor + base[name] for name, tensor in parameters_in(tensors).items()}
        return tensors

    def _seed(self, task: Task) -> int:
        return derive(self.seed, "down", *task.moment)


def _kept_as(name: str) -> str:
    """Return the name in a client's state of what a codec keeps of a tensor."""
    return KEPT + name.replace("/", ":")  # "part/name" would be shaped like the parameter


@dataclass
class CompressedPool(PoolWrapper):
    """A pool whose clients get and send encoded tensors. Nothing travels to clients of the server."""

    views: Sequence[View]
    start: Tensors = field(default_factory=dict)  # what is subtracted from the parameters of a task

    def outgoing(self, task: Task, cohort: Sequence[str]) -> Task:
        if not all(map(lives_with_server, cohort)):
            moved = {name: t - self.start[name] for name, t in task.tensors.items() if name in self.start}
            task = replace(task, tensors={**task.tensors, **moved})
            for view in self.views:
                task = through(task, view)
        return task


@dataclass(frozen=True)
class CompressedState(WrapperState):
    """An inner state, and w_0: the parameters at the start of the run."""

    start: Tensors = field(default_factory=dict)


@ALGORITHMS.register
@dataclass(frozen=True)
class Compressed:
    """An algorithm whose updates, or parameters on their way to clients, are compressed."""

    inner: Algorithm = FedAvg()
    up: Codec | None = StochasticRounding()  # of what clients send; null: as it is
    down: Codec | None = None  # of what clients get; null: as it is
    from_start: bool = False  # `down` sends differences from the parameters at the start of the run
    effect: ClassVar[str] = "encodes"
    refuses: ClassVar = {
        "reshapes": "what clients did not send yet would not fit the smaller model; write {inside} "
        "around compressed",
        "encodes": "what travels is compressed once; leave out one of the two",
    }

    def __post_init__(self) -> None:
        if self.up is None and self.down is None:
            raise ValueError("compressed needs a codec: set up, down or both")
        if self.down is not None and not self.down.suits_models:
            name = choice_name(type(self.down))
            raise ValueError(
                f"compressed: down={name} would lose most of the model: updates may lack something for a "
                "round, but parameters may not. Set down=stochastic_rounding"
            )
        if self.from_start and self.down is None:
            raise ValueError("compressed: from_start says what `down` encodes: set down too")

    def check_run(self, run: Any) -> None:
        """Refuse what needs updates that arrive as they left."""
        parts = list(parts_of(run.algorithm))
        if self.down is not None and any(isinstance(getattr(p, "noise", None), Distributed) for p in parts):
            raise ValueError(
                "compressed: with noise=distributed, members of secure aggregation do the last view of a "
                "task themselves, and it is not the one with the noise: set down=null"
            )
        if self.from_start and any(getattr(part, "effect", "") == "reshapes" for part in parts):
            raise ValueError(
                "compressed: from_start needs parameters that keep their shapes, and another part of this "
                "algorithm makes the model smaller: set from_start=false"
            )
        if self.up is None:
            return
        if run.secure_aggregation:
            raise ValueError(
                "compressed: under secure_aggregation the server sees sums only, and sums of encoded updates "
                "cannot be decoded: set up=null (down may stay), or secure_aggregation=null"
            )
        if any(isinstance(getattr(part, "clipping", None), AdaptiveUpdate) for part in parts):
            raise ValueError(
                "compressed: adaptive_update counts the updates that arrive within its bound, and "
                "compression changes their norms: use another clipping"
            )

    def init(self, params: Tensors) -> Any:
        inner = self.inner.init(params)
        return CompressedState(inner, params) if self.from_start else inner

    def round(self, state: Any, cohort: Sequence[str], pool: Pool) -> tuple[Any, Metrics]:
        seed = derive(state.seed, "compressed")
        up = [PackedAnswer(self.up, seed)] if self.up is not None else []
        down = [PackedTask(self.down, seed, self.from_start)] if self.down is not None else []
        if not self.from_start:
            return self.inner.round(state, cohort, CompressedPool(pool, [*up, *down]))
        inner, metrics = self.inner.round(
            state.inner, cohort, CompressedPool(pool, [*up, *down], state.start)
        )
        return replace(state, inner=inner), metrics
