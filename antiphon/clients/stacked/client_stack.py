"""Many clients' parameters side by side, and one SGD step for all of them at once.

A client's parameters are a row of a matrix. One `vmap` of the model's forward pass takes every client's own
batch through its own parameters; the losses, which have no parameters, are one call over all utterances of
all clients; one backward pass gives each client its own gradient. A step may be of some of the clients: their
rows are taken out, and put back.

Launching kernels is most of a step on a GPU. So rows are clipped and moved whole, not tensor by tensor, and
where shapes repeat, forward and backward are CUDA graphs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from antiphon.clients.client import ClientRuntime
from antiphon.clients.stacked.layout import Layout
from antiphon.core import Tensors
from antiphon.data.batches import Batch
from antiphon.models.noise import noise_from
from antiphon.tasks.local_training import LocalSteps, LocalTraining

CAPTURED_AFTER = 2  # steps of a shape before its graph is captured: capturing costs about as much as three
MOST_GRAPHS = 4  # each keeps its own activations …
RARER = 2  # … and gives way to a shape that is seen so many times as often


@dataclass(frozen=True)
class StackedBatch:
    """The batches of n clients, padded to B rows each: `batch` and `keys` hold n · B utterances.

    share [n, B] is 1 / (the client's utterances) on real rows and 0 on placeholders; members [n] are the
    clients' places in the stack, ascending.
    """

    batch: Batch
    keys: Tensor
    share: Tensor
    members: Tensor

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return *self.batch.tensors, self.keys, self.share, self.members

    def per_client(self) -> Iterator[Tensor]:
        """Keys and the batch's tensors, each [n, B, ...]; those of texts [n, B · N, ...]."""
        for tensor in (self.keys, *self.batch.tensors):
            yield tensor.unflatten(0, (len(self.share), -1))


class Stack:
    """`size` clients, each with parameters of its own; any of them take a step together.

    `start`, `anchor` and `correction` have a row for each client, or one row for all of them.
    """

    def __init__(self, runtime: ClientRuntime, start: Tensors, size: int, graphs: bool = True) -> None:
        self.runtime, self.model, self.size = runtime, runtime.model, size
        self.graphs = graphs and runtime.device.type == "cuda"
        self.shared = {name: base for name, base in runtime.base.items() if name not in start}
        self.layout = Layout.of(start)
        self.start = self.anchor = self._row(start)
        self.correction: Tensor | None = None
        self._tables = {"start": self.start}
        self.rows = self.start.repeat(size, 1)
        self._seen: Counter[tuple[object, ...]] = Counter()
        self._graphs: dict[tuple[object, ...], Captured] = {}

    def serves(self, start: Tensors, size: int) -> bool:
        """Whether it holds these parameters of so many clients."""
        return size == self.size and Layout.of(start) == self.layout

    def restart(self, wanted: Sequence[LocalSteps]) -> None:
        """Put every client to where its steps start."""
        self.start = self._keep("start", [steps.start for steps in wanted])
        self.rows.copy_(self.start.expand_as(self.rows))
        self.anchor, self.correction = self.start, None
        if any(steps.anchor for steps in wanted):
            self.anchor = self._keep("anchor", [{**steps.start, **steps.anchor} for steps in wanted])
        if any(steps.correction for steps in wanted):
            self.correction = self._keep("correction", [_completed(steps) for steps in wanted])

    def _table(self, tensors: Sequence[Tensors]) -> Tensor:
        """Rows of all clients [size, width]; a single one where they all have the same tensors."""
        first = tensors[0]
        if all(own[name] is first[name] for own in tensors for name in first):
            return self._row(first)
        return torch.cat([self._row(own) for own in tensors])

    def _keep(self, name: str, tensors: Sequence[Tensors]) -> Tensor:
        """Their table in the memory of the one before, which captured graphs read; new memory ends them."""
        table, before = self._table(tensors), self._tables.get(name)
        if before is not None and before.shape == table.shape:
            return before.copy_(table)
        self._graphs.clear()
        self._tables[name] = table
        return table

    def _rows_of(self, table: Tensor, members: Tensor) -> Tensor:
        """A table's rows of some clients, or its single row."""
        whole = len(table) == 1 or len(members) == self.size
        return table if whole else table.index_select(0, members)

    def deltas(self) -> Tensor:
        """Δ = w − w_k of every client: [size, width], to be parted by the layout."""
        return self.start - self.rows

    def _row(self, tensors: Tensors) -> Tensor:
        """Of one client: [1, width]."""
        return self.layout.joined(tensors[name].detach()[None] for name in self.layout.shapes)

    def step(self, given: StackedBatch, local: LocalTraining) -> Tensor:
        """One SGD step of the members, each on its own rows; losses per token of all rows [n, B]."""
        rate = torch.full((), local.lr, dtype=given.share.dtype, device=given.share.device)
        if not self.graphs:
            return self._step(given, rate, local)
        shapes = tuple(tensor.shape for tensor in given.tensors)
        corrected, anchored = self.correction is not None, self.anchor is not self.start
        key = (shapes, local.clip_norm, local.proximal, corrected, anchored)
        self._seen[key] += 1
        if key not in self._graphs:
            if not self._pays(key):
                return self._step(given, rate, local)
            if len(self._graphs) >= MOST_GRAPHS:
                del self._graphs[self._rarest()]
            self._graphs[key] = Captured(self, given, local)
        return self._graphs[key].replay(given, rate)

    def _pays(self, key: tuple[object, ...]) -> bool:
        """Whether to capture a shape: shapes in turn must not drive out each other, again and again."""
        if len(self._graphs) < MOST_GRAPHS:
            return self._seen[key] > CAPTURED_AFTER
        return self._seen[key] > max(CAPTURED_AFTER, RARER * self._seen[self._rarest()])

    def _rarest(self) -> tuple[object, ...]:
        return min(self._graphs, key=lambda key: self._seen[key])

    def _step(self, given: StackedBatch, rate: Tensor, local: LocalTraining) -> Tensor:
        rows = self.taken(given.members)
        trained = self.leaves(rows)
        outputs = self.forward(trained, given)
        losses, upstream = self.score(outputs, given)
        self.descend(rows, trained, outputs, upstream, rate, local, given.members)
        self.put_back(rows, given.members)
        return losses

    def taken(self, members: Tensor) -> Tensor:
        """The members' rows [n, width]: a copy, unless they are everybody's."""
        return self.rows if len(members) == self.size else self.rows.index_select(0, members)

    def leaves(self, rows: Tensor) -> Tensors:
        """The parameters in them [n, ...], to be differentiated."""
        return {n: p.detach().requires_grad_() for n, p in self.layout.parted(rows).items()}

    def put_back(self, rows: Tensor, members: Tensor) -> None:
        if len(members) < self.size:
            with in_any_order():
                self.rows.index_copy_(0, members, rows)

    def forward(self, trained: Tensors, given: StackedBatch) -> tuple[Tensor, ...]:
        """The model's outputs, [n, B, ...] or [n, B · N, ...] each."""

        def alone(parameters: Tensors, keys: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
            with noise_from(keys):
                outputs: tuple[Tensor, ...] = functional_call(
                    self.model,
                    {**self.shared, **parameters},
                    (Batch.of(tensors),),
                )
                return outputs

        with self.runtime.precision(), sdpa_kernel(SDPBackend.MATH):  # fused kernels have no rule for vmap
            outputs: tuple[Tensor, ...] = vmap(alone)(trained, *given.per_client())
        return outputs

    def score(self, outputs: Sequence[Tensor], given: StackedBatch) -> tuple[Tensor, list[Tensor]]:
        """Losses per token [n, B], and the gradient of the clients' mean losses by each real output."""
        leaves = [t.detach().requires_grad_(t.is_floating_point()) for t in outputs]
        flat = tuple(leaf.flatten(0, 1) for leaf in leaves)
        losses = given.batch.per_token(self.model.score(flat, given.batch)).view_as(given.share)
        total = (losses * given.share).sum()
        upstream = torch.autograd.grad(total, [leaf for leaf in leaves if leaf.requires_grad])
        return losses.detach(), list(upstream)

    def descend(
        self,
        rows: Tensor,
        trained: Tensors,
        outputs: Sequence[Tensor],
        upstream: Sequence[Tensor],
        rate: Tensor,
        local: LocalTraining,
        members: Tensor,
    ) -> None:
        """Each client's gradient, its correction, its proximal term and clipping, and the step itself."""
        real = [tensor for tensor in outputs if tensor.is_floating_point()]
        # In subspace training an output may depend on nothing that is trained.
        pairs = [(own, above) for own, above in zip(real, upstream, strict=True) if own.requires_grad]
        reached, gradients = zip(*pairs, strict=True)
        grads = self.layout.joined(torch.autograd.grad(reached, list(trained.values()), gradients))
        if self.correction is not None:
            grads.add_(self._rows_of(self.correction, members))
        if local.proximal > 0:
            grads.add_(rows - self._rows_of(self.anchor, members), alpha=local.proximal)
        if local.clip_norm > 0:
            length = torch.linalg.vector_norm(grads, dim=1, keepdim=True)
            rate = rate * (local.clip_norm / (length + 1e-12)).clamp(max=1.0)
        rows.addcmul_(grads, rate, value=-1)


def _completed(steps: LocalSteps) -> Tensors:
    """The correction of every parameter: 0 where none is given."""
    return {
        n: steps.correction[n] if n in steps.correction else torch.zeros_like(p)
        for n, p in steps.start.items()
    }


@contextmanager
def in_any_order() -> Iterator[None]:
    """Within: no sorting for the sake of the same bits, which different places do not need."""
    before = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("default")
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before)


class Captured:
    """A step of one shape as two CUDA graphs; the losses between them have no parameters to wait for."""

    def __init__(self, stack: Stack, given: StackedBatch, local: LocalTraining) -> None:
        self.stack = stack
        *tensors, keys, share, members = (tensor.clone() for tensor in given.tensors)
        self.inputs = StackedBatch(Batch.of(tensors), keys, share, members)
        self.rate = torch.zeros((), dtype=given.share.dtype, device=given.share.device)  # nobody moves yet
        rows = stack.taken(members)
        trained = stack.leaves(rows)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            outputs = stack.forward(trained, self.inputs)
            _, self.upstream = stack.score(outputs, self.inputs)
            stack.descend(rows, trained, outputs, self.upstream, self.rate, local, members)
            del outputs
        torch.cuda.current_stream().wait_stream(side)
        self.forward, self.backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.forward):
            rows = stack.taken(members)
            trained = stack.leaves(rows)
            outputs = stack.forward(trained, self.inputs)
        with torch.cuda.graph(self.backward, pool=self.forward.pool()):
            stack.descend(rows, trained, outputs, self.upstream, self.rate, local, members)
            stack.put_back(rows, members)
        self.outputs = [tensor.detach() for tensor in outputs]

    def replay(self, given: StackedBatch, rate: Tensor) -> Tensor:
        for mine, new in zip(self.inputs.tensors, given.tensors, strict=True):
            mine.copy_(new)
        self.rate.copy_(rate)
        self.forward.replay()
        losses, upstream = self.stack.score(self.outputs, self.inputs)
        for mine, new in zip(self.upstream, upstream, strict=True):
            mine.copy_(new)
        self.backward.replay()
        return losses
