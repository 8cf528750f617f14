from __future__ import annotations

import warnings

import pytest
import torch
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from antiphon.data.batches import Batch
from antiphon.models.conformer import ConformerConfig, RotaryAttention
from antiphon.models.ctc import CtcConfig
from antiphon.models.layers import rotary_angles


def test_two_layers_of_width_256_hold_three_million_parameters():
    model = CtcConfig().build(input_dim=288, num_tokens=29)
    assert sum(parameter.numel() for parameter in model.parameters()) == 3_119_645


def test_attention_looks_at_relative_positions_only():
    torch.manual_seed(0)
    attention = RotaryAttention(ConformerConfig(dim=8, num_heads=2, dropout=0.0)).double()
    frames = torch.randn(1, 6, 8, dtype=torch.float64)
    angles = rotary_angles(16, 4, like=frames)
    mask = torch.ones(1, 6, dtype=torch.bool)
    early = attention(frames, mask, tuple(angle[:6] for angle in angles))
    late = attention(frames, mask, tuple(angle[10:] for angle in angles))
    assert (early - late).abs().max() < 1e-12
    still = attention(frames, mask, tuple(angle[:1] for angle in angles))
    assert (early - still).abs().max() > 1e-4


def test_attention_agrees_with_softmax_written_out():
    torch.manual_seed(0)
    attention = RotaryAttention(ConformerConfig(dim=6, num_heads=1, dropout=0.0)).double()
    frames = torch.randn(1, 5, 6, dtype=torch.float64)
    query, key, value = attention.query_key_value(attention.norm(frames))[0].chunk(3, dim=-1)
    angles = [[t / 10000 ** (2 * pair / 6) for pair in range(3)] for t in range(5)]

    def turned(vector, t):
        pairs = torch.complex(vector[:3], vector[3:])
        return pairs * torch.polar(torch.ones(3, dtype=torch.float64), torch.tensor(angles[t]).double())

    expected = torch.zeros(5, 6, dtype=torch.float64)
    for t in range(5):
        scores = [(turned(query[t], t) * turned(key[s], s).conj()).real.sum() / 6**0.5 for s in range(3)]
        expected[t] = torch.stack(scores).softmax(0) @ value[:3]
    mask = torch.tensor([[True, True, True, False, False]])
    got = attention(frames, mask, rotary_angles(5, 6, like=frames))
    assert torch.allclose(got[0], attention.output(expected), atol=1e-12)


def spoken(features, lengths):
    """A batch whose tokens do not matter."""
    return Batch(features, lengths, lengths[:, None], lengths, ())


def outputs_of(model):
    return lambda parameters, *given: functional_call(model, parameters, (spoken(*given),))


def test_many_clients_encoders_run_as_one_under_vmap():
    torch.manual_seed(0)
    model = CtcConfig(ConformerConfig(dim=8, num_layers=2, num_heads=2, kernel_size=3, stack=2)).build(5, 7)
    clients = 3
    stacked = {
        name: (value + 0.1 * torch.randn(clients, *value.shape)).detach().requires_grad_()
        for name, value in model.named_parameters()
    }
    features, lengths = torch.randn(clients, 2, 11, 5), torch.tensor([[11, 7], [5, 9], [4, 1]])
    model.eval()
    with warnings.catch_warnings(), sdpa_kernel(SDPBackend.MATH):
        warnings.simplefilter("error")  # a slow fallback inside vmap warns
        together, num_frames = vmap(outputs_of(model))(stacked, features, lengths)
    gradients = torch.autograd.grad(together.square().sum(), list(stacked.values()))
    for client in range(clients):
        own = {name: value[client].detach().requires_grad_() for name, value in stacked.items()}
        alone, own_frames = outputs_of(model)(own, features[client], lengths[client])
        assert torch.equal(num_frames[client], own_frames)
        assert torch.allclose(together[client], alone, atol=1e-5)
        expected = torch.autograd.grad(alone.square().sum(), list(own.values()))
        for whole, part in zip(gradients, expected, strict=True):
            assert torch.allclose(whole[client], part, rtol=1e-4, atol=1e-3)


def test_an_empty_row_gives_its_neighbours_no_nan():
    torch.manual_seed(0)
    model = CtcConfig(ConformerConfig(dim=8, num_layers=1, num_heads=2)).build(5, 7).eval()
    log_probs, _ = model(spoken(torch.randn(2, 6, 5), torch.tensor([6, 0])))
    gradients = torch.autograd.grad(log_probs[0].square().sum(), list(model.parameters()))
    assert all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"dim": 30, "num_heads": 4}, "multiple of 2 \\* num_heads = 8"),
        ({"kernel_size": 4}, "must be odd"),
        ({"num_layers": 0}, "at least 1"),
    ],
)
def test_sizes_that_cannot_be_built_are_refused(wrong, complaint):
    with pytest.raises(ValueError, match=complaint):
        ConformerConfig(**wrong)
