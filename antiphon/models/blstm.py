"""LSTMs (Hochreiter and Schmidhuber 1997): a bidirectional encoder, and recurrences of many clients at once.

The backward direction is a second LSTM over each utterance, reversed within its own length. It starts at the
utterance's last frame and never sees padding. Packed sequences would do the same, but are 2 to 3 times slower
on a CPU and copy lengths from the GPU.

One client's LSTM runs in cuDNN (`nn.LSTM`), which `vmap` cannot run. Stacked clients have weights of their
own, so their recurrence is written out here: the input gates of all frames in one product, then a step per
frame (`lstm_steps`), both directions of a layer as two more "clients". The gradient of the weights is one
product at the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from antiphon.models.layers import (
    at_least_float32,
    check_sizes,
    clients_first,
    is_stacked,
    num_stacked,
    reversed_frames,
    stack_frames,
)
from antiphon.models.lstm_steps import Source, advance, cell, cell_backward, retreat, streamed
from antiphon.models.model import ENCODERS
from antiphon.models.noise import Dropout


@ENCODERS.register
@dataclass(frozen=True)
class BlstmConfig:
    """`dim` is the width of one direction: encoded frames are twice as wide."""

    dim: int = 256
    num_layers: int = 4
    dropout: float = 0.1
    stack: int = 3  # frames joined into one at the input

    def __post_init__(self) -> None:
        check_sizes(self, self.num_layers, self.dim, self.stack)

    def build(self, input_dim: int) -> Blstm:
        return Blstm(self, input_dim)


class Blstm(nn.Module):
    """Features [B, T, D], lengths [B] -> encoded frames [B, ceil(T/stack), 2 * dim], their lengths [B]."""

    def __init__(self, config: BlstmConfig, input_dim: int) -> None:
        super().__init__()
        self.config = config
        self.dim = 2 * config.dim
        widths = [config.stack * input_dim] + [self.dim] * (config.num_layers - 1)
        self.layers = nn.ModuleList(BlstmLayer(width, config) for width in widths)

    def num_output_frames(self, num_frames: int) -> int:
        return num_stacked(num_frames, self.config.stack)

    def forward(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        frames, lengths = stack_frames(features, lengths, self.config.stack)
        for layer in self.layers:
            frames = layer(frames, lengths)
        return frames, lengths


class BlstmLayer(nn.Module):
    """Frames [B, T, input_dim] -> [B, T, 2 * dim], LayerNorm included; padding holds arbitrary values."""

    def __init__(self, input_dim: int, config: BlstmConfig) -> None:
        super().__init__()
        self.forwards = nn.LSTM(input_dim, config.dim, batch_first=True)
        self.backwards = nn.LSTM(input_dim, config.dim, batch_first=True)
        open_forget_gates(self)
        self.norm = nn.LayerNorm(2 * config.dim)
        self.dropout = Dropout(config.dropout)

    def forward(self, frames: Tensor, lengths: Tensor) -> Tensor:
        return self.dropout(self.norm(bidirectional(self.forwards, self.backwards, frames, lengths)))


def open_forget_gates(lstms: nn.Module) -> None:
    """Set the bias of the forget gates to 1, so that gradients reach far back from the first step on."""
    with torch.no_grad():
        for name, parameter in lstms.named_parameters():
            if "bias" in name:
                gate = parameter.shape[0] // 4
                parameter[gate : 2 * gate] = 1.0 if "bias_ih" in name else 0.0


def bidirectional(forwards: nn.LSTM, backwards: nn.LSTM, frames: Tensor, lengths: Tensor) -> Tensor:
    """Frames [B, T, D], lengths [B] -> [B, T, 2 H]; the second LSTM starts at each utterance's last frame."""
    directions = (forwards, frames), (backwards, reversed_frames(frames, lengths))
    if not is_stacked(frames, *forwards.all_weights[0]):
        past, future = (lstm(inputs)[0] for lstm, inputs in directions)
    else:
        gates: list[Tensor] = []
        weights: list[Tensor] = []
        for lstm, inputs in directions:
            from_input, from_hidden, *biases = lstm.all_weights[0]
            gates.append(F.linear(inputs, from_input, biases[0] + biases[1]))
            weights.append(from_hidden)
        if forwards.hidden_size == backwards.hidden_size:
            past, future = recur(torch.stack(gates), torch.stack(weights))
        else:  # pruned to different widths
            pairs = zip(gates, weights, strict=True)
            past, future = (recur(gate[None], weight[None])[0] for gate, weight in pairs)
    return torch.cat((past, reversed_frames(future, lengths)), dim=-1)


def recur(gates: Tensor, weights: Tensor) -> Tensor:
    """Input gates [S, B, T, 4 H] and hidden weights [S, 4 H, H] of S LSTMs -> hidden states [S, B, T, H]."""
    hiddens: Tensor = Recurrence.apply(gates, weights)[0]
    return hiddens[:, :, 1:]


class LstmCell(nn.LSTMCell):
    """One step, also of many clients' cells: values [B, D], state ([B, H], [B, H]) -> the next state."""

    def forward(self, values: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        if not is_stacked(values, self.weight_hh):
            return super().forward(values, state)
        from_input = F.linear(values, self.weight_ih, self.bias_ih)
        from_hidden = F.linear(state[0], self.weight_hh, self.bias_hh)
        hidden, carry, _ = Cell.apply(from_input, from_hidden, state[1])
        return hidden, carry


class Cell(torch.autograd.Function):
    """Two parts of the gates [..., 4 H], carry [..., H] -> hidden, next carry, activated gates."""

    @staticmethod
    def forward(from_input: Tensor, from_hidden: Tensor, carry: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return cell(from_input, from_hidden, carry)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(inputs[2], output[1], output[2])
        ctx.mark_non_differentiable(output[2])

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        d_gates, d_carry = cell_backward(upstream[0], upstream[1], *ctx.saved_tensors)
        return d_gates, d_gates, d_carry

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Tensor) -> Any:
        return Cell.apply(*clients_first(info.batch_size, in_dims, *inputs)), (0, 0, 0)


class Recurrence(torch.autograd.Function):
    """Input gates [S, B, T, 4 H] and hidden weights [S, 4 H, H] of S LSTMs -> hidden states [S, B, T + 1, H].

    The first hidden state is the zero before the first frame. Then come carries and activated gates, which
    the gradient needs.
    """

    @staticmethod
    def forward(gates: Tensor, weights: Tensor) -> tuple[Tensor, ...]:
        weights, rows = streamed(weights, gates), gates.flatten(0, 1)
        num_rows, num_frames, width = rows.shape
        state = rows.new_zeros(2, num_rows, num_frames + 1, width // 4, dtype=at_least_float32(rows).dtype)
        hiddens, carries = state
        activated = torch.empty_like(rows, dtype=state.dtype, memory_format=torch.contiguous_format)
        hidden, carry = hiddens.unbind(1), carries.unbind(1)
        for frame, (given, kept) in enumerate(zip(rows.unbind(1), activated.unbind(1), strict=True)):
            out = hidden[frame + 1], carry[frame + 1], kept
            advance(given, [(hidden[frame], weights)], carry[frame], out)
        outputs = hiddens, carries, activated
        return tuple(output.unflatten(0, (len(weights), -1)) for output in outputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(inputs[1], *output)
        ctx.mark_non_differentiable(*output[1:])
        ctx.dtype = inputs[0].dtype

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, Tensor]:
        weights, hiddens, carries, activated = ctx.saved_tensors
        read = streamed(weights, activated.new_empty(0, dtype=ctx.dtype))
        incoming = upstream[0].contiguous().flatten(0, 1).unbind(1)
        carry, kept = carries.flatten(0, 1).unbind(1), activated.flatten(0, 1).unbind(1)
        d_all = torch.empty_like(activated)
        d_gates, d_carry = d_all.flatten(0, 1).unbind(1), torch.zeros_like(carry[0])
        later: list[Source] = []
        for frame in range(len(kept) - 1, -1, -1):
            step = carry[frame], carry[frame + 1], kept[frame]
            retreat(incoming[frame + 1], later, d_carry, step, d_gates[frame])
            later = [(d_gates[frame], read)]
        d_all = d_all.to(ctx.dtype)
        past = hiddens[:, :, :-1].flatten(1, 2).to(ctx.dtype)
        return d_all, (d_all.flatten(1, 2).mT @ past).to(weights.dtype)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Tensor) -> Any:
        stacked = clients_first(info.batch_size, in_dims, *inputs)
        outputs = Recurrence.apply(*(tensor.flatten(0, 1) for tensor in stacked))
        return tuple(output.unflatten(0, (info.batch_size, -1)) for output in outputs), (0, 0, 0)
