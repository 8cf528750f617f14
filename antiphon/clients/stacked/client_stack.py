"""The parameters of many clients in one matrix, and one step for all of them at once.

Every client has a row of parameters, and one for each moment of its optimiser. One `vmap` of the model's
forward pass runs each client's batch through its own parameters; the losses, which have no parameters, are
one call over all utterances; one backward pass gives each client its own gradient. A step of some of the
clients copies their rows out and back.

Most of the time of a step on a GPU is spent on launching kernels. So rows are clipped and moved as a whole,
and where shapes repeat, forward and backward are CUDA graphs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from antiphon.clients.client import ClientRuntime
from antiphon.clients.stacked.stacked_rows import Layout, StackedBatch
from antiphon.core import Tensors
from antiphon.data.batches import Batch
from antiphon.models.gradient_rows import GradientRows, gradients_to
from antiphon.models.noise import noise_from
from antiphon.models.stacked_products import FUSED, has_kernels
from antiphon.tasks.client_optimizers import ClientOptimizer
from antiphon.tasks.client_storage import ClientStorage
from antiphon.tasks.codecs.small_floats import is_short
from antiphon.tasks.local_training import LocalSteps, LocalTraining

CAPTURED_AFTER = 2  # steps of a shape before its graph is captured: capturing costs about as much as three
MAX_GRAPHS = 4  # each keeps its own activations
RARER = 2  # a graph is replaced by that of a shape which is seen so many times as often


class Stack:
    """`size` clients, each with parameters of its own. Any of them can take a step together.

    `start`, `anchor` and `correction` have a row for each client, or one row for all of them.
    """

    def __init__(self, runtime: ClientRuntime, start: Tensors, size: int, graphs: bool = True) -> None:
        self.runtime, self.model, self.size = runtime, runtime.model, size
        self.graphs = graphs and runtime.device.type == "cuda"
        self.shared = {name: base for name, base in runtime.base.items() if name not in start}
        everywhere = list(self.model.named_parameters(remove_duplicate=False))
        self.is_tied = len(everywhere) > len(list(self.model.named_parameters()))
        self.layout = Layout.of(start)
        self.start = self.anchor = self._row(start)
        self.correction: Tensor | None = None
        self.short: Tensor | None = None  # [size, tensors]: which a client does not store exactly
        self._tables = {"start": self.start}
        self.rows = self.start.repeat(size, 1)
        self.moments: list[Tensor] = []  # [size, width] each
        # Steps that each client has taken. In float64, 1 − β^t has enough digits.
        self.taken = torch.zeros(size, 1, dtype=torch.float64, device=self.rows.device)
        self._seen: Counter[tuple[object, ...]] = Counter()
        self._graphs: dict[tuple[object, ...], Captured] = {}

    def serves(self, start: Tensors, size: int) -> bool:
        """Return whether the stack fits these parameters of this many clients."""
        return size == self.size and Layout.of(start) == self.layout

    def restart(self, wanted: Sequence[LocalSteps], chosen: Sequence[frozenset[str]] = ()) -> None:
        """Set every client to the start of its steps. chosen: tensors that each does not store exactly."""
        self.start = self._table("start", [steps.start for steps in wanted])
        self.rows.copy_(self.start.expand_as(self.rows))
        self.short = None
        if any(chosen):
            short = torch.tensor([[name in names for name in self.layout.shapes] for names in chosen])
            self.short = self._keep("short", short.to(self.rows.device))
            self.store(self.rows, self.short, wanted[0].local.storage)
            self.start = self._keep("stored start", self.rows.clone())
        self._forget(wanted[0].local.optimizer.num_moments)
        self.anchor, self.correction = self.start, None
        if any(steps.anchor for steps in wanted):
            self.anchor = self._table("anchor", [{**steps.start, **steps.anchor} for steps in wanted])
        if any(steps.correction for steps in wanted):
            zeros = {name: torch.zeros_like(p) for name, p in wanted[0].start.items()}
            self.correction = self._table("correction", [{**zeros, **steps.correction} for steps in wanted])

    def _forget(self, num_moments: int) -> None:
        """Set moments and counts of steps to zero, in the memory that captured graphs use."""
        if len(self.moments) != num_moments:
            self._graphs.clear()
            self.moments = [torch.zeros_like(self.rows) for _ in range(num_moments)]
        for table in (*self.moments, self.taken):
            table.zero_()

    def _table(self, name: str, clients: Sequence[Tensors]) -> Tensor:
        """Return the rows of all clients [size, width]; a single row if all have the same tensors."""
        first = list(map(id, clients[0].values()))
        is_shared = all(list(map(id, map(tensors.get, clients[0]))) == first for tensors in clients)
        return self._keep(
            name, torch.cat([self._row(tensors) for tensors in (clients[:1] if is_shared else clients)])
        )

    def _keep(self, name: str, table: Tensor) -> Tensor:
        """Return the table in the memory of the last one of its name, if it fits: graphs read that."""
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
        """Take one step of the members; return the losses per token of all utterances [n, B]."""
        with self.runtime.products(batch.batch):
            return self._captured_step(batch, local)

    def _captured_step(self, batch: StackedBatch, local: LocalTraining) -> Tensor:
        """Take a step by a CUDA graph, if its shape has come often enough."""
        rate = torch.full((), local.lr, dtype=batch.share.dtype, device=batch.share.device)
        if not self.graphs:
            return self._step(batch, rate, local)
        shapes = tuple(tensor.shape for tensor in batch.tensors)
        corrected, anchored = self.correction is not None, self.anchor is not self.start
        short = self.short is not None and local.storage
        key = (shapes, local.clip_norm, local.proximal, local.optimizer, short, corrected, anchored)
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
        trained, places = self.leaves(rows), GradientRows(rows)
        outputs = self.forward(trained, batch, places)
        losses, upstream = self.score(outputs, batch)
        self.descend(rows, trained, places, outputs, upstream, rate, local, batch.members)
        return losses

    def leaves(self, rows: Tensor) -> Tensors:
        """Return the parameters in the rows [n, ...], with gradients."""
        return {n: p.detach().requires_grad_() for n, p in self.layout.split(rows).items()}

    def put_back(self, table: Tensor, rows: Tensor, members: Tensor) -> None:
        """Write the members' rows into a table that `rows_of` took them from."""
        if len(members) < self.size:
            with nondeterministic():
                table.index_copy_(0, members, rows)

    def forward(self, trained: Tensors, batch: StackedBatch, places: GradientRows) -> tuple[Tensor, ...]:
        """Return the model's outputs, each [n, B, ...] or [n, B · N, ...]; `places` is for the gradients."""

        def alone(parameters: Tensors, keys: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
            everything = {**self.shared, **parameters}
            with noise_from(keys):
                outputs: tuple[Tensor, ...] = functional_call(
                    self.model, everything, (Batch.of(tensors),), tie_weights=self.is_tied
                )
                return outputs

        # PyTorch's fused kernels have no rule for vmap.
        with gradients_to(places), self.runtime.autocast(), sdpa_kernel(SDPBackend.MATH):
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
        places: GradientRows,
        outputs: Sequence[Tensor],
        upstream: Sequence[Tensor],
        rate: Tensor,
        local: LocalTraining,
        members: Tensor,
    ) -> None:
        """Compute gradients with correction, proximal term and clipping; the members take the step."""
        real = [tensor for tensor in outputs if tensor.is_floating_point()]
        # In subspace training an output may depend on nothing that is trained.
        pairs = [(out, grad) for out, grad in zip(real, upstream, strict=True) if out.requires_grad]
        reached, gradients = zip(*pairs, strict=True)
        found = torch.autograd.grad(reached, list(trained.values()), gradients)
        grads = self.layout.put(found, places.rows) if places.is_used else self.layout.join(found)
        if self.correction is not None:
            grads.add_(self.rows_of(self.correction, members))
        if local.proximal > 0:
            grads.add_(rows - self.rows_of(self.anchor, members), alpha=local.proximal)
        if local.clip_norm > 0:
            length = torch.linalg.vector_norm(grads, dim=1, keepdim=True)
            scale = (local.clip_norm / (length + 1e-12)).clamp(max=1.0)
            if local.is_plain:
                rate = rate * scale  # saves a pass over the rows
            else:
                grads.mul_(scale)
        directions = grads if local.is_plain else self.directions(rows, grads, local.optimizer, members)
        if self.short is None and "step" in FUSED and has_kernels(rows):
            from antiphon.models.kernels import step

            step.descend(self.rows, members, directions, rate)
            return
        rows.addcmul_(directions, rate, value=-1)
        if self.short is not None:
            self.store(rows, self.rows_of(self.short, members), local.storage)
        self.put_back(self.rows, rows, members)

    def store(self, rows: Tensor, short: Tensor, storage: ClientStorage) -> None:
        """Replace what members do not store exactly, in place, by what they read of it."""
        for place, (name, tensor) in enumerate(self.layout.split(rows).items()):
            if is_short(self.layout.shapes[name]):
                values = tensor.flatten(1)
                values.copy_(torch.where(short[:, place, None], storage.restored(values), values))

    def directions(self, rows: Tensor, grads: Tensor, optimizer: ClientOptimizer, members: Tensor) -> Tensor:
        """Return the members' directions [n, width]; their moments and counts of steps move on."""
        taken = self.rows_of(self.taken, members).add_(1)
        moments = [self.rows_of(table, members) for table in self.moments]
        directions = optimizer.direction(rows, grads, moments, taken)
        for table, moved in zip((self.taken, *self.moments), (taken, *moments), strict=True):
            self.put_back(table, moved, members)
        return directions


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
        trained, places = stack.leaves(rows), GradientRows(rows)
        kept = [(table, table.clone()) for table in (stack.taken, *stack.moments)]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            outputs = stack.forward(trained, self.inputs, places)
            _, self.upstream = stack.score(outputs, self.inputs)
            stack.descend(rows, trained, places, outputs, self.upstream, self.rate, local, members)
            del outputs, places
        torch.cuda.current_stream().wait_stream(side)
        for table, before in kept:
            table.copy_(before)
        del kept
        self.forward, self.backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.forward):
            rows = stack.rows_of(stack.rows, members)
            trained, places = stack.leaves(rows), GradientRows(rows)
            outputs = stack.forward(trained, self.inputs, places)
        with torch.cuda.graph(self.backward, pool=self.forward.pool()):
            stack.descend(rows, trained, places, outputs, self.upstream, self.rate, local, members)
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
