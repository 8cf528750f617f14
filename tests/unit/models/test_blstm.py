from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from antiphon.models.blstm import Blstm, BlstmConfig, BlstmLayer


def test_a_layer_is_a_packed_bidirectional_lstm():
    torch.manual_seed(0)
    layer = BlstmLayer(3, BlstmConfig(dim=4, dropout=0.0)).double()
    both = nn.LSTM(3, 4, bidirectional=True, batch_first=True).double()
    own = dict(layer.forwards.named_parameters())
    own |= {f"{name}_reverse": value for name, value in layer.backwards.named_parameters()}
    both.load_state_dict(own)
    frames, lengths = torch.randn(3, 8, 3, dtype=torch.float64), torch.tensor([5, 8, 2])
    packed, _ = both(pack_padded_sequence(frames, lengths, batch_first=True, enforce_sorted=False))
    expected = layer.norm(pad_packed_sequence(packed, batch_first=True)[0])
    got = layer(frames, lengths)
    for i, length in enumerate(lengths):
        assert torch.allclose(got[i, :length], expected[i, :length], atol=1e-12)


def test_the_first_frame_hears_the_last():
    torch.manual_seed(0)
    encoder = Blstm(BlstmConfig(dim=4, num_layers=1, stack=2, dropout=0.0), input_dim=3)
    features = torch.randn(1, 7, 3, requires_grad=True)
    frames, lengths = encoder(features, torch.tensor([7]))
    assert (tuple(frames.shape), lengths.tolist()) == ((1, 4, 8), [4])
    (gradient,) = torch.autograd.grad(frames[0, 0].square().sum(), features)
    assert (gradient[0].abs().sum(dim=1) > 0).all()


def test_sizes_below_one_are_refused():
    with pytest.raises(ValueError, match="at least 1"):
        BlstmConfig(stack=0)
