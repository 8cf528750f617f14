"""LSTMs (Hochreiter and Schmidhuber 1997): a bidirectional encoder, and recurrences of many clients at once.

The backward direction is a second LSTM over each utterance, reversed within its own length. It starts at the
utterance's last frame and never sees padding. Packed sequences would do the same, but are 2 to 3 times slower
on a CPU and copy lengths from the GPU.

One client's LSTM runs in cuDNN (`nn.LSTM`), which `vmap` cannot run. Stacked clients have weights of their
own, so their recurrence is written out here: the input gates of all frames in one product, then per frame one
batched product and one fused cell, both directions of a layer as two more "clients". The gradient of the
weights is one product at the end. Gates are in torch's order: input, forget, cell, output.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from antiphon.models.layers import clients_first, is_stacked, num_stacked, reversed_frames, stack_frames
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
        if min(self.dim, self.num_layers, self.stack) < 1:
            raise ValueError(f"blstm sizes must be at least 1: {self}")

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
            past, future = Recurrence.apply(torch.stack(gates), torch.stack(weights))[0]
        else:  # pruned to different widths
            pairs = zip(gates, weights, strict=True)
            past, future = (Recurrence.apply(gate[None], weight[None])[0][0] for gate, weight in pairs)
    return torch.cat((past, reversed_frames(future, lengths)), dim=-1)


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
        return _cell(from_input, from_hidden, carry)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(inputs[2], output[1], output[2])
        ctx.mark_non_differentiable(output[2])

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        d_gates, d_carry = _cell_backward(upstream[0], upstream[1], *ctx.saved_tensors)
        return d_gates, d_gates, d_carry

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Tensor) -> Any:
        return Cell.apply(*clients_first(info.batch_size, in_dims, *inputs)), (0, 0, 0)


class Recurrence(torch.autograd.Function):
    """Input gates [S, B, T, 4 H] and hidden weights [S, 4 H, H] of S LSTMs -> hidden states [S, B, T, H]."""

    @staticmethod
    def forward(gates: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        num_lstms, batch_size = gates.shape[:2]
        transposed = weights.mT.to(gates.dtype).contiguous()  # the layout of the fast GPU kernel
        frames = gates.permute(2, 0, 1, 3).contiguous()  # [T, S, B, 4 H]: a frame's gates side by side
        hidden = gates.new_zeros(num_lstms, batch_size, weights.shape[2])
        carry = torch.zeros_like(hidden)
        steps = []
        for frame in frames.unbind():
            hidden, carry, activated = _cell(frame, hidden @ transposed, carry)
            steps.append((hidden, carry, activated))
        hiddens, carries, all_activated = zip(*steps, strict=True)
        return torch.stack(hiddens, dim=2), torch.stack(carries), torch.stack(all_activated)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(inputs[1], *output)
        ctx.mark_non_differentiable(*output[1:])

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, Tensor]:
        weights, hiddens, carries, activated = ctx.saved_tensors
        weights = weights.to(hiddens.dtype)
        incoming = upstream[0].permute(2, 0, 1, 3).contiguous()  # [T, S, B, H]
        zeros = torch.zeros_like(carries[0])
        d_carry, d_gates = zeros, torch.zeros_like(activated[0])
        reversed_gates = []
        for frame in range(len(carries) - 1, -1, -1):
            d_hidden = torch.baddbmm(incoming[frame], d_gates, weights)
            before = carries[frame - 1] if frame else zeros
            d_gates, d_carry = _cell_backward(d_hidden, d_carry, before, carries[frame], activated[frame])
            reversed_gates.append(d_gates)
        d_all = torch.stack(reversed_gates[::-1], dim=2)  # [S, B, T, 4 H]
        past = F.pad(hiddens, (0, 0, 1, 0))[:, :, :-1]
        return d_all, d_all.flatten(1, 2).mT @ past.flatten(1, 2)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Tensor) -> Any:
        stacked = clients_first(info.batch_size, in_dims, *inputs)
        outputs = Recurrence.apply(*(tensor.flatten(0, 1) for tensor in stacked))
        dims = (0, 1, 1)
        return tuple(o.unflatten(d, (info.batch_size, -1)) for o, d in zip(outputs, dims, strict=True)), dims


def _cell(from_input: Tensor, from_hidden: Tensor, carry: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The next hidden state and carry [..., H], and the activated gates [..., 4 H] for the gradient."""
    if carry.is_cuda:
        parts = (_flat(from_input), _flat(from_hidden), _flat(carry))
        hidden, after, activated = torch.ops.aten._thnn_fused_lstm_cell(*parts)
        return hidden.view(carry.shape), after.view(carry.shape), activated.view(from_input.shape)
    first, forget, cell, output = (from_input + from_hidden).chunk(4, dim=-1)
    first, forget, output, cell = first.sigmoid(), forget.sigmoid(), output.sigmoid(), cell.tanh()
    after = forget * carry + first * cell
    return output * after.tanh(), after, torch.cat((first, forget, cell, output), dim=-1)


def _cell_backward(
    d_hidden: Tensor, d_carry: Tensor, before: Tensor, after: Tensor, activated: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of the gates and of the carry before."""
    if after.is_cuda:
        parts = (_flat(tensor) for tensor in (d_hidden, d_carry, before, after, activated))
        d_gates, d_before, _ = torch.ops.aten._thnn_fused_lstm_cell_backward_impl(*parts, False)
        return d_gates.view(activated.shape), d_before.view(after.shape)
    first, forget, cell, output = activated.chunk(4, dim=-1)
    squashed = after.tanh()
    d_after = d_carry + d_hidden * output * (1 - squashed * squashed)
    gates = (
        d_after * cell * first * (1 - first),
        d_after * before * forget * (1 - forget),
        d_after * first * (1 - cell * cell),
        d_hidden * squashed * output * (1 - output),
    )
    return torch.cat(gates, dim=-1), d_after * forget


def _flat(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1, tensor.shape[-1])
