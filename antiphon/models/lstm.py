"""LSTMs of many clients at once: what cuDNN's kernels cannot do under `vmap`.

One client's LSTM runs in cuDNN (`nn.LSTM`). Stacked clients each have weights of their own, so their
recurrence is written out here: input gates of all frames in one product before it, then per frame one
batched product and one fused cell, both directions of a layer as two more "clients"; the gradient of the
weights in one product after it. Hochreiter and Schmidhuber 1997; gates in torch's order: input, forget,
cell, output.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from antiphon.models.layers import in_front, is_stacked, reversed_frames


def bidirectional(forwards: nn.LSTM, backwards: nn.LSTM, frames: Tensor, lengths: Tensor) -> Tensor:
    """Frames [B, T, D], lengths [B] -> [B, T, 2 H]; the second LSTM starts at each utterance's last frame."""
    turned = reversed_frames(frames, lengths)
    if is_stacked(frames, *forwards.all_weights[0]):
        past, future = _both_ways(forwards, backwards, frames, turned)
    else:
        (past, _), (future, _) = forwards(frames), backwards(turned)
    return torch.cat((past, reversed_frames(future, lengths)), dim=-1)


def _both_ways(forwards: nn.LSTM, backwards: nn.LSTM, frames: Tensor, turned: Tensor) -> tuple[Tensor, ...]:
    """Both recurrences of stacked clients: at once, unless one was made narrower than the other."""
    weights: list[Tensor] = []
    gates: list[Tensor] = []
    for lstm, given in ((forwards, frames), (backwards, turned)):
        from_input, from_hidden, *biases = lstm.all_weights[0]
        gates.append(F.linear(given, from_input, biases[0] + biases[1]))
        weights.append(from_hidden)
    if forwards.hidden_size != backwards.hidden_size:
        pairs = zip(gates, weights, strict=True)
        return tuple(Recurrence.apply(own[None], weight[None])[0][0] for own, weight in pairs)
    past, future = Recurrence.apply(torch.stack(gates), torch.stack(weights))[0]
    return past, future


class LstmCell(nn.LSTMCell):
    """One step, also of many clients' cells: values [B, D], state ([B, H], [B, H]) -> the next state."""

    def forward(  # type: ignore[override]
        self, values: Tensor, state: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        if not is_stacked(values, self.weight_hh):
            hidden, carry = super().forward(values, state)
            return hidden, carry
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
    def vmap(info: Any, in_dims: tuple[int | None, ...], *given: Tensor) -> Any:
        return Cell.apply(*in_front(info.batch_size, in_dims, *given)), (0, 0, 0)


class Recurrence(torch.autograd.Function):
    """Input gates [S, B, T, 4 H] and hidden weights [S, 4 H, H] of S LSTMs -> hidden states [S, B, T, H]."""

    @staticmethod
    def forward(gates: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        num_lstms, batch_size = gates.shape[:2]
        across = weights.mT.to(gates.dtype).contiguous()  # of the GPU's kernels, the fast one wants it so
        steps = gates.permute(2, 0, 1, 3).contiguous()  # [T, S, B, 4 H]: a step's gates side by side
        hidden = gates.new_zeros(num_lstms, batch_size, weights.shape[2])
        carry = torch.zeros_like(hidden)
        hiddens, carries, activated = [], [], []
        for step in steps.unbind():
            hidden, carry, active = _cell(step, hidden @ across, carry)
            hiddens.append(hidden)
            carries.append(carry)
            activated.append(active)
        return torch.stack(hiddens, dim=2), torch.stack(carries), torch.stack(activated)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(inputs[1], *output)
        ctx.mark_non_differentiable(*output[1:])

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, Tensor]:
        weights, hiddens, carries, activated = ctx.saved_tensors
        weights = weights.to(hiddens.dtype)
        incoming = upstream[0].permute(2, 0, 1, 3).contiguous()  # [T, S, B, H]
        nothing = torch.zeros_like(carries[0])
        d_carry, d_gates = nothing, torch.zeros_like(activated[0])
        reversed_gates = []
        for frame in range(len(carries) - 1, -1, -1):
            d_hidden = torch.baddbmm(incoming[frame], d_gates, weights)
            before = carries[frame - 1] if frame else nothing
            d_gates, d_carry = _cell_backward(d_hidden, d_carry, before, carries[frame], activated[frame])
            reversed_gates.append(d_gates)
        d_all = torch.stack(reversed_gates[::-1], dim=2)  # [S, B, T, 4 H]
        past = F.pad(hiddens, (0, 0, 1, 0))[:, :, :-1]
        return d_all, d_all.flatten(1, 2).mT @ past.flatten(1, 2)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], gates: Tensor, weights: Tensor) -> Any:
        front = in_front(info.batch_size, in_dims, gates, weights)
        outputs = Recurrence.apply(*(tensor.flatten(0, 1) for tensor in front))
        apart = (info.batch_size, -1)
        hiddens, carries, activated = outputs
        return (
            (hiddens.unflatten(0, apart), carries.unflatten(1, apart), activated.unflatten(1, apart)),
            (0, 1, 1),
        )


def _cell(from_input: Tensor, from_hidden: Tensor, carry: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The next hidden state and carry [..., H], and what the gradient needs [..., 4 H]."""
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
        given = (_flat(tensor) for tensor in (d_hidden, d_carry, before, after, activated))
        d_gates, d_before, _ = torch.ops.aten._thnn_fused_lstm_cell_backward_impl(*given, False)
        return d_gates.view(activated.shape), d_before.view(after.shape)
    first, forget, cell, output = activated.chunk(4, dim=-1)
    bent = after.tanh()
    d_after = d_carry + d_hidden * output * (1 - bent * bent)
    gates = (
        d_after * cell * first * (1 - first),
        d_after * before * forget * (1 - forget),
        d_after * first * (1 - cell * cell),
        d_hidden * bent * output * (1 - output),
    )
    return torch.cat(gates, dim=-1), d_after * forget


def _flat(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1, tensor.shape[-1])
