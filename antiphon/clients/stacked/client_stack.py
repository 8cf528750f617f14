"""The parameters of many clients in one matrix, and one SGD step for all of them at once.

Every client has a row of parameters. One `vmap` of the model's forward pass runs each client's batch through
its own parameters; the losses, which have no parameters, are one call over all utterances; one backward pass
gives each client its own gradient. A step of some of the clients copies their rows out and back.

Most of the time of a step on a GPU is spent on launching kernels. So rows are clipped and moved as a whole,
and where shapes repeat, forward and backward are CUDA graphs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from antiphon.clients.client import ClientRuntime
from antiphon.core import Tensors
from antiphon.data.batches import Batch
from antiphon.models.noise import noise_from
from antiphon.tasks.local_training import LocalSteps, LocalTraining

CAPTURED_AFTER = 2  # steps of a shape before its graph is captured: capturing costs about as much as three
MAX_GRAPHS = 4  # each keeps its own activations
RARER = 2  # a graph is replaced by that of a shape which is seen so many times as often
ALIGNED = 32  # numbers: tensors that begin at multiples of 128 bytes are multiplied fastest


@dataclass(frozen=True)
class Layout:
    """Tensors one after another in a row, each at a multiple of ALIGNED, with zeros between them."""

    shapes: dict[str, torch.Size]

    @classmethod
    def of(cls, tensors: Tensors) -> Layout:
        dtypes = sorted({str(tensor.dtype) for tensor in tensors.values()})
        if len(dtypes) > 1:
            raise ValueError(f"parameters of {' and '.join(dtypes)} do not share a row")
        return cls({name: tensor.shape for name, tensor in tensors.items()})

    def join(self, tensors: Iterable[Tensor]) -> Tensor:
        """Return rows [n, width] of the tensors of n clients, each [n, ...], in the order of the shapes."""
        pieces = []
        for tensor, shape in zip(tensors, self.shapes.values(), strict=True):
            pieces.append(tensor.reshape(len(tensor), -1))
            if gap := -shape.numel() % ALIGNED:
                pieces.append(tensor.new_zeros(len(tensor), gap))
        return torch.cat(pieces, dim=1)

    def split(self, rows: Tensor) -> Tensors:
        """Return views of the tensors in rows [n, width], each [n, ...]."""
        tensors, begin = {}, 0
        for name, shape in self.shapes.items():
            tensors[name] = rows[:, begin : begin + shape.numel()].view(len(rows), *shape)
            begin += shape.numel() + -shape.numel() % ALIGNED
        return tensors


@dataclass(frozen=True)
class StackedBatch:
    """The batches of n clients, padded to B rows each: `batch` and `keys` hold n · B utterances.

    share [n, B] is 1 / (utterances of the client) on real rows and 0 on placeholders; members [n] are the
    rows of the clients in the stack, ascending.
    """

    batch: Batch
    keys: Tensor
    share: Tensor
    members: Tensor

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return *self.batch.tensors, self.keys, self.share, self.members

    def per_client(self) -> Iterator[Tensor]:
        """Yield keys and the batch's tensors, each [n, B, ...]; those of texts [n, B · N, ...]."""
        for tensor in (self.keys, *self.batch.tensors):
            yield tensor.unflatten(0, (len(self.share), -1))


class Stack:
    """`size` clients, each with parameters of its own. Any of them can take a step together.

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
        """Return whether the stack fits these parameters of this many clients."""
        return size == self.size and Layout.of(start) == self.layout

    def restart(self, wanted: Sequence[LocalSteps]) -> None:
        """Set every client to the start of its steps."""
        self.start = self._table("start", [steps.start for steps in wanted])
        self.rows.copy_(self.start.expand_as(self.rows))
        self.anchor, self.correction = self.start, None
        if any(steps.anchor for steps in wanted):
            self.anchor = self._table("anchor", [{**steps.start, **steps.anchor} for steps in wanted])
        if any(steps.correction for steps in wanted):
            zeros = {name: torch.zeros_like(p) for name, p in wanted[0].start.items()}
            self.correction = self._table("correction", [{**zeros, **steps.correction} for steps in wanted])

    def _table(self, name: str, clients: Sequence[Tensors]) -> Tensor:
        """Return the rows of all clients [size, width]; a single row if all have the same tensors.

        Captured graphs read the memory of the last table of this name: it is used again if it fits.
        """
        is_shared = all(tensors.get(n) is p for tensors in clients for n, p in clients[0].items())
        table = torch.cat([self._row(tensors) for tensors in (clients[:1] if is_shared else clients)])
        before = self._tables.get(name)
        if before is not None and before.shape == table.shape:
            return before.copy_(table)
        self._graphs.clear()
        self._tables[name] = table
        return table

    def rows_of(self, table: Tensor, members: Tensor) -> Tensor:
        """Return the members' rows of a table: a copy, unless they are all rows, or it has a single row."""
        is_whole = len(table) == 1 or len(members) == self.size
        return table if is_whole else table.index_select(0, members)

    def deltas(self) -> Tensor:
        """Return Δ = w − w_k of every client [size, width]; the layout splits it."""
        return self.start - self.rows

    def _row(self, tensors: Tensors) -> Tensor:
        """Return the tensors of one client as a row [1, width]."""
        return self.layout.join(tensors[name].detach()[None] for name in self.layout.shapes)

    def step(self, batch: StackedBatch, local: LocalTraining) -> Tensor:
        """Take one SGD step of the members; return the losses per token of all utterances [n, B]."""
        rate = torch.full((), local.lr, dtype=batch.share.dtype, device=batch.share.device)
        if not self.graphs:
            return self._step(batch, rate, local)
        shapes = tuple(tensor.shape for tensor in batch.tensors)
        corrected, anchored = self.correction is not None, self.anchor is not self.start
        key = (shapes, local.clip_norm, local.proximal, corrected, anchored)
        self._seen[key] += 1
        if key not in self._graphs:
            if not self._pays(key):
                return self._step(batch, rate, local)
            if len(self._graphs) >= MAX_GRAPHS:
                del self._graphs[self._rarest()]
            self._graphs[key] = Captured(self, batch, local)
        return self._graphs[key].replay(batch, rate)

    def _pays(self, key: tuple[object, ...]) -> bool:
        """Return whether to capture a shape; shapes that alternate must not replace each other every time."""
        if len(self._graphs) < MAX_GRAPHS:
            return self._seen[key] > CAPTURED_AFTER
        return self._seen[key] > max(CAPTURED_AFTER, RARER * self._seen[self._rarest()])

    def _rarest(self) -> tuple[object, ...]:
        return min(self._graphs, key=lambda key: self._seen[key])

    def _step(self, batch: StackedBatch, rate: Tensor, local: LocalTraining) -> Tensor:
        rows = self.rows_of(self.rows, batch.members)
        trained = self.leaves(rows)
        outputs = self.forward(trained, batch)
        losses, upstream = self.score(outputs, batch)
        self.descend(rows, trained, outputs, upstream, rate, local, batch.members)
        self.put_back(rows, batch.members)
        return losses

    def leaves(self, rows: Tensor) -> Tensors:
        """Return the parameters in the rows [n, ...], with gradients."""
        return {n: p.detach().requires_grad_() for n, p in self.layout.split(rows).items()}

    def put_back(self, rows: Tensor, members: Tensor) -> None:
        if len(members) < self.size:
            with nondeterministic():
                self.rows.index_copy_(0, members, rows)

    def forward(self, trained: Tensors, batch: StackedBatch) -> tuple[Tensor, ...]:
        """Return the model's outputs, each [n, B, ...] or [n, B · N, ...]."""

        def alone(parameters: Tensors, keys: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
            with noise_from(keys):
                outputs: tuple[Tensor, ...] = functional_call(
                    self.model, {**self.shared, **parameters}, (Batch.of(tensors),)
                )
                return outputs

        with self.runtime.precision(), sdpa_kernel(SDPBackend.MATH):  # fused kernels have no rule for vmap
            outputs: tuple[Tensor, ...] = vmap(alone)(trained, *batch.per_client())
        return outputs

    def score(self, outputs: Sequence[Tensor], batch: StackedBatch) -> tuple[Tensor, list[Tensor]]:
        """Return losses per token [n, B], and the gradients of the mean losses by each real output."""
        leaves = [t.detach().requires_grad_(t.is_floating_point()) for t in outputs]
        flat = tuple(leaf.flatten(0, 1) for leaf in leaves)
        losses = batch.batch.per_token(self.model.score(flat, batch.batch)).view_as(batch.share)
        total = (losses * batch.share).sum()
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
        """Compute each client's gradient with correction, proximal term and clipping, and take the step."""
        real = [tensor for tensor in outputs if tensor.is_floating_point()]
        # In subspace training an output may depend on nothing that is trained.
        pairs = [(out, grad) for out, grad in zip(real, upstream, strict=True) if out.requires_grad]
        reached, gradients = zip(*pairs, strict=True)
        grads = self.layout.join(torch.autograd.grad(reached, list(trained.values()), gradients))
        if self.correction is not None:
            grads.add_(self.rows_of(self.correction, members))
        if local.proximal > 0:
            grads.add_(rows - self.rows_of(self.anchor, members), alpha=local.proximal)
        if local.clip_norm > 0:
            length = torch.linalg.vector_norm(grads, dim=1, keepdim=True)
            rate = rate * (local.clip_norm / (length + 1e-12)).clamp(max=1.0)
        rows.addcmul_(grads, rate, value=-1)


@contextmanager
def nondeterministic() -> Iterator[None]:
    """Turn off torch's deterministic mode, which sorts: copies to different rows do not need that."""
    before = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("default")
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before)


class Captured:
    """A step of one shape as two CUDA graphs; the losses, which have no parameters, are between them."""

    def __init__(self, stack: Stack, batch: StackedBatch, local: LocalTraining) -> None:
        self.stack = stack
        *tensors, keys, share, members = (tensor.clone() for tensor in batch.tensors)
        self.inputs = StackedBatch(Batch.of(tensors), keys, share, members)
        self.rate = torch.zeros((), dtype=batch.share.dtype, device=batch.share.device)  # no client moves yet
        rows = stack.rows_of(stack.rows, members)
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
            rows = stack.rows_of(stack.rows, members)
            trained = stack.leaves(rows)
            outputs = stack.forward(trained, self.inputs)
        with torch.cuda.graph(self.backward, pool=self.forward.pool()):
            stack.descend(rows, trained, outputs, self.upstream, self.rate, local, members)
            stack.put_back(rows, members)
        self.outputs = [tensor.detach() for tensor in outputs]

    def replay(self, batch: StackedBatch, rate: Tensor) -> Tensor:
        for old, new in zip(self.inputs.tensors, batch.tensors, strict=True):
            old.copy_(new)
        self.rate.copy_(rate)
        self.forward.replay()
        losses, upstream = self.stack.score(self.outputs, self.inputs)
        for old, new in zip(self.upstream, upstream, strict=True):
            old.copy_(new)
        self.backward.replay()
        return losses
