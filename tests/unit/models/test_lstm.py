"""The written-out recurrence is cuDNN's, for many clients at once."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.func import functional_call, vmap

from antiphon.models.blstm import Cell, LstmCell, bidirectional, recur
from antiphon.models.layers import is_stacked


def double(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def test_the_recurrence_is_torch_s_lstm() -> None:
    torch.manual_seed(0)
    lstms = [nn.LSTM(3, 4, batch_first=True).double() for _ in range(2)]
    frames = double(2, 5, 6, 3)
    with torch.no_grad():
        gates = torch.stack(
            [x @ m.weight_ih_l0.T + m.bias_ih_l0 + m.bias_hh_l0 for x, m in zip(frames, lstms, strict=True)]
        )
        hiddens = recur(gates, torch.stack([m.weight_hh_l0 for m in lstms]))
        for own, lstm, mine in zip(frames, lstms, hiddens, strict=True):
            torch.testing.assert_close(mine, lstm(own)[0], rtol=0, atol=1e-12)


def test_gradients_of_the_recurrence() -> None:
    torch.manual_seed(1)
    assert torch.autograd.gradcheck(recur, (double(2, 2, 3, 8), double(2, 8, 2)))


def test_gradients_of_a_cell() -> None:
    torch.manual_seed(2)
    given = (double(3, 8), double(3, 8), double(3, 2))
    assert torch.autograd.gradcheck(lambda *parts: Cell.apply(*parts)[:2], given)


@pytest.mark.parametrize("shared_input", [False, True])
def test_a_cell_of_many_clients_is_each_client_s_own(shared_input: bool) -> None:
    torch.manual_seed(3)
    cell = LstmCell(3, 4).double()
    stacked = {name: double(2, *p.shape) for name, p in cell.named_parameters()}
    values, state = double(5, 3) if shared_input else double(2, 5, 3), (double(2, 5, 4), double(2, 5, 4))

    class Step(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = cell

        def forward(self, values: torch.Tensor, *state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            assert is_stacked(self.cell.weight_hh)
            return self.cell(values, (state[0], state[1]))

    named = {f"cell.{name}": p for name, p in stacked.items()}
    step = Step()
    hidden, carry = vmap(
        lambda p, x, h, c: functional_call(step, p, (x, h, c)), in_dims=(0, None if shared_input else 0, 0, 0)
    )(named, values, *state)
    for client in range(2):
        own = {name: p[client] for name, p in stacked.items()}
        mine = values if shared_input else values[client]
        alone = functional_call(cell, own, (mine, (state[0][client], state[1][client])))
        torch.testing.assert_close((hidden[client], carry[client]), alone, rtol=0, atol=1e-12)


def test_unstacked_lstms_keep_the_fast_kernel() -> None:
    torch.manual_seed(4)
    forwards, backwards = (nn.LSTM(3, 4, batch_first=True) for _ in range(2))
    frames, lengths = torch.randn(2, 6, 3), torch.tensor([6, 4])
    both = bidirectional(forwards, backwards, frames, lengths)
    assert torch.equal(both[..., :4], forwards(frames)[0])
    turned = torch.stack((frames[0].flip(0), torch.cat((frames[1, :4].flip(0), frames[1, 4:]))))
    assert torch.equal(both[1, :4, 4:], backwards(turned)[0][1, :4].flip(0))
