"""The decoder of `models.las` over texts that are known, as one function with a gradient of its own.

In training, the token before is given, so all that does not depend on the decoder's state is one product over
all tokens: its embedding's share of the first cell's gates here comes in, its outputs go to the classifier at
once, and the gradients of weights are products at the end. A token takes a kernel for each cell, one for the
query and two for the attention (`lstm_steps`, `attention_steps`), and what autograd would keep of it is kept
once. `Las.step` is the same written plainly, and the reference.

S clients with R rows (texts of B utterances) of U + 1 tokens are computed at once; `vmap` makes clients of
its dimension. H is the width of the decoder, E of the encoder, A of the attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from antiphon.data.batches import repeated
from antiphon.models.attention_steps import Heard, windows
from antiphon.models.layers import at_least_float32, clients_first
from antiphon.models.lstm_steps import Source, add_product, advance, retreat, streamed


@dataclass(frozen=True)
class Cells:
    """Weights of the decoder's cells: of the context [S, 4 H, E], of each cell's own state, and from the
    cell below [S, 4 H, H], biases [S, 4 H], from the second cell on."""

    context: Tensor
    own: Sequence[Tensor]
    below: Sequence[Tensor]
    biases: Sequence[Tensor]

    @classmethod
    def of(cls, tensors: Sequence[Tensor]) -> Cells:
        """From one tensor after another; L cells have 1 + L + 2 (L − 1) of them."""
        count = (len(tensors) + 1) // 3
        return cls(tensors[0], tensors[1 : 1 + count], tensors[1 + count : 2 * count], tensors[2 * count :])

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.context, *self.own, *self.below, *self.biases


def decode(gates: Tensor, heard: Heard, query: Tensor, cells: Cells) -> Tensor:
    """The states of the top cell and the contexts of one client [R, U + 1, H + E].

    Gates [R, U + 1, 4 H] are what the first cell gets from embeddings and biases; `query` [A, H] are weights.
    """
    given = (gates, *heard.tensors, query, *cells.tensors)
    seen: Tensor = Decoding.apply(*(tensor[None] for tensor in given))[0]
    return seen[0]


class Decoding(torch.autograd.Function):
    """`decode` for S clients; after the first output comes what the gradient needs."""

    @staticmethod
    def forward(gates: Tensor, *given: Tensor) -> tuple[Tensor, ...]:
        with torch.autocast(gates.device.type, enabled=False):
            return _forward(gates, *given)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.dtype = inputs[0].dtype
        ctx.save_for_backward(*inputs[1:], *output[1:])
        ctx.mark_non_differentiable(*output[1:])

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        with torch.autocast(upstream[0].device.type, enabled=False):
            return _backward(ctx.dtype, upstream[0], ctx.saved_tensors[:-6], ctx.saved_tensors[-6:])

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Tensor) -> Any:
        stacked = clients_first(info.batch_size, in_dims, *inputs)
        outputs = Decoding.apply(*(tensor.flatten(0, 1) for tensor in stacked))
        return tuple(output.unflatten(0, (info.batch_size, -1)) for output in outputs), (0,) * len(outputs)


def _forward(gates: Tensor, *given: Tensor) -> tuple[Tensor, ...]:
    heard, query, cells = _prepared(gates, given)
    rows = at_least_float32(gates.flatten(0, 1))
    num_rows, num_steps, width = rows.shape
    count = len(cells.own)
    hiddens, carries = rows.new_zeros(2, num_rows, count, num_steps + 1, width // 4)
    activated = rows.new_empty(num_rows, count, num_steps, width)
    contexts = rows.new_zeros(num_rows, num_steps + 1, heard.frames.shape[2])
    weights = rows.new_empty(num_rows, num_steps + 1, heard.frames.shape[1])
    uniform = heard.mask / heard.mask.sum(dim=1, keepdim=True)
    weights[:, 0] = repeated(uniform, num_rows // len(uniform))
    biases = [repeated(bias, num_rows // len(bias)) for bias in cells.biases]
    queries = []
    for step in range(num_steps):
        added, source = rows[:, step], (contexts[:, step], cells.context)
        for layer in range(count):
            sources = [source, (hiddens[:, layer, step], cells.own[layer])]
            out = hiddens[:, layer, step + 1], carries[:, layer, step + 1], activated[:, layer, step]
            advance(added, sources, carries[:, layer, step], out)
            if layer + 1 < count:
                added, source = biases[layer], (out[0], cells.below[layer])
        queries.append((out[0].unflatten(0, (len(query), -1)) @ query.mT).flatten(0, 1))
        heard.attend(queries[-1], weights[:, step], (weights[:, step + 1], contexts[:, step + 1]))
    seen = torch.cat((hiddens[:, -1, 1:], contexts[:, 1:]), dim=-1)
    outputs = seen, weights, hiddens, carries, activated, contexts, torch.stack(queries, dim=1)
    return tuple(output.unflatten(0, (len(gates), -1)) for output in outputs)


def _backward(dtype: torch.dtype, upstream: Tensor, given: Sequence[Tensor], kept: Sequence[Tensor]) -> Any:
    """The gradients of all inputs; `dtype` is that of the gates."""
    heard, query, cells = _prepared(upstream.new_empty(0, dtype=dtype), given)
    weights, hiddens, carries, activated, contexts, queries = (tensor.flatten(0, 1) for tensor in kept)
    d_seen = upstream.contiguous().flatten(0, 1)
    num_rows, count, num_steps, width = activated.shape
    d_gates, d_contexts = torch.empty_like(activated), torch.empty_like(contexts[:, 1:])
    d_queries = torch.empty_like(queries)
    d_summed = queries.new_empty(num_rows, num_steps, *heard.keys.shape[1:])
    d_taps = queries.new_empty(num_rows, heard.keys.shape[1], heard.width)
    d_energy = heard.no_energy(num_rows)
    d_carries = activated.new_zeros(num_rows, count, width // 4)
    nothing = torch.zeros_like(d_carries[:, 0])
    for step in range(num_steps - 1, -1, -1):
        is_last = step + 1 == num_steps
        after: list[Source] = [] if is_last else [(d_gates[:, 0, step + 1], cells.context)]
        add_product(d_seen[:, step, width // 4 :], after, d_contexts[:, step])
        d_weights = heard.weight_gradients(d_contexts[:, step], None if is_last else d_taps)
        attended = queries[:, step], weights[:, step], weights[:, step + 1]
        out = d_summed[:, step], d_queries[:, step], d_taps
        heard.energy_gradients(attended, d_weights, d_energy, out)
        added, sources = d_seen[:, step, : width // 4], [(d_queries[:, step], query)]
        for layer in range(count - 1, -1, -1):
            if not is_last:
                sources.append((d_gates[:, layer, step + 1], cells.own[layer]))
            states = carries[:, layer, step], carries[:, layer, step + 1], activated[:, layer, step]
            retreat(added, sources, d_carries[:, layer], states, d_gates[:, layer, step])
            if layer > 0:
                added, sources = nothing, [(d_gates[:, layer, step], cells.below[layer - 1])]

    def of_weights(d_outputs: Tensor, inputs: Tensor) -> Tensor:
        outputs, inputs = (_per_client(tensor.to(dtype), len(query)) for tensor in (d_outputs, inputs))
        return outputs.mT @ inputs

    of_gates = d_gates.unbind(1)
    gradients = [
        of_gates[0].unflatten(0, (len(query), -1)).to(dtype),
        *_heard_gradients(heard, weights, d_contexts, d_summed),
        d_energy.unflatten(0, (len(query), -1)).sum(dim=(1, 2)),
        of_weights(d_queries, hiddens[:, -1, 1:]),
        of_weights(of_gates[0], contexts[:, :-1]),
        *(of_weights(d, hiddens[:, layer, :-1]) for layer, d in enumerate(of_gates)),
        *(of_weights(d, hiddens[:, layer, 1:]) for layer, d in enumerate(of_gates[1:])),
        *(_per_client(d, len(query)).sum(dim=1) for d in of_gates[1:]),
    ]
    wanted = (dtype, *(tensor.dtype for tensor in given))
    return tuple(g if g is None else g.to(t) for g, t in zip(gradients, wanted, strict=True))


def _heard_gradients(
    heard: Heard, weights: Tensor, d_contexts: Tensor, d_summed: Tensor
) -> tuple[Tensor, Tensor, None, Tensor]:
    """Those of frames, keys, mask and filters, per client."""
    num_clients, num_utterances = len(heard.filters), len(heard.frames)
    attended, contexts = (_per_client(tensor, num_utterances) for tensor in (weights[:, 1:], d_contexts))
    d_frames = attended.mT @ contexts
    d_keys = _per_client(d_summed, num_utterances).sum(dim=1)
    seen = windows(weights[:, :-1], heard.width).flatten(1, 2)  # [S · R, (U + 1) · T, width]
    d_filters = (seen.mT @ d_summed.flatten(1, 2)).unflatten(0, (num_clients, -1)).sum(dim=1)
    of_utterances = (tensor.unflatten(0, (num_clients, -1)) for tensor in (d_frames, d_keys))
    return *of_utterances, None, d_filters


def _per_client(rows: Tensor, num_clients: int) -> Tensor:
    """Rows [S · R, U + 1, …] -> [S, R · (U + 1), …]; also with utterances for clients."""
    return rows.unflatten(0, (num_clients, -1)).flatten(1, 2)


def _prepared(gates: Tensor, given: Sequence[Tensor]) -> tuple[Heard, Tensor, Cells]:
    """The inputs after the gates: utterances of all clients in one dimension, weights as steps read them."""
    frames, keys, mask, filters, energy, query, *cells = given
    frames, keys, filters, energy = map(at_least_float32, (frames, keys, filters, energy))
    frames, keys, mask = (tensor.flatten(0, 1).contiguous() for tensor in (frames, keys, mask.to(torch.int8)))
    heard = Heard(frames, keys, mask, filters.contiguous(), energy.contiguous())
    # Only the weights of cells are so large that the bytes of reading them count.
    cells = [streamed(t, gates) if t.dim() == 3 else at_least_float32(t) for t in cells]
    return heard, at_least_float32(query), Cells.of(cells)
