"""What every model promises, whatever it is made of."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from antiphon.models.blstm import BlstmConfig
from antiphon.models.conformer import ConformerConfig
from antiphon.models.ctc import CtcConfig
from antiphon.models.las import LasConfig
from antiphon.models.noise import Dropout
from antiphon.models.transducer import TransducerConfig

FRAMES = [13, 22, 9, 17]
TINY_CONFORMER = ConformerConfig(dim=32, num_layers=1, num_heads=2, kernel_size=7)
TOKENS = [[1, 2], [3, 3, 1, 4], [5], [6, 2, 6]]


def test_all_state_is_parameters(tiny):
    assert not list(tiny.buffers())


def test_the_same_seed_builds_the_same_parameters():
    def build():
        torch.manual_seed(3)
        return LasConfig(BlstmConfig(dim=4, num_layers=1)).build(5, 7)

    for first, second in zip(build().parameters(), build().parameters(), strict=True):
        assert torch.equal(first, second)


def test_an_utterance_scores_the_same_alone_and_in_a_padded_batch(tiny, batch_of):
    together = tiny.losses(batch_of(FRAMES, TOKENS, padding=6))
    alone = [tiny.losses(batch_of([n], [t])) for n, t in zip(FRAMES, TOKENS, strict=True)]
    assert together.shape == (4,)
    assert (together - torch.cat(alone)).abs().max() < 1e-10


def test_an_utterance_is_transcribed_the_same_alone_and_in_a_padded_batch(tiny, batch_of):
    together = tiny.greedy(batch_of(FRAMES, TOKENS, padding=6))
    assert together == [tiny.greedy(batch_of([n], [t]))[0] for n, t in zip(FRAMES, TOKENS, strict=True)]
    assert any(together)
    assert all(token != 0 for tokens in together for token in tokens)


def test_the_gradient_of_a_batch_is_the_sum_of_its_utterances_gradients(tiny, batch_of):
    parameters = list(tiny.parameters())

    def gradient(batch):
        return torch.autograd.grad(tiny.losses(batch).sum(), parameters)

    together = gradient(batch_of(FRAMES, TOKENS, padding=6))
    alone = [gradient(batch_of([n], [t])) for n, t in zip(FRAMES, TOKENS, strict=True)]
    for whole, *parts in zip(together, *alone, strict=True):
        assert (whole - sum(parts)).abs().max() < 1e-10


@pytest.mark.parametrize("garbage", [1e6, float("nan"), float("inf")])
def test_what_stands_in_the_padding_changes_nothing(tiny, batch_of, garbage):
    batch = batch_of(FRAMES, TOKENS, padding=3)
    features, tokens = batch.features.clone(), batch.tokens.clone()
    for i in range(len(FRAMES)):
        features[i, FRAMES[i] :] = garbage
        tokens[i, len(TOKENS[i]) :] = 5
    dirty = replace(batch, features=features, tokens=tokens)
    assert torch.equal(tiny.losses(dirty), tiny.losses(batch))
    assert tiny.greedy(dirty) == tiny.greedy(batch)
    gradients = torch.autograd.grad(tiny.losses(dirty).sum(), list(tiny.parameters()))
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_gradients_agree_with_finite_differences(tiny, batch_of):
    batch = batch_of([7, 5], [[1, 2], [3]])
    names, values = zip(*tiny.named_parameters(), strict=True)

    class Losses(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = tiny

        def forward(self, features):
            return self.model.losses(replace(batch, features=features))

    module = Losses()

    def losses(features, *parameters):
        given = {f"model.{name}": value for name, value in zip(names, parameters, strict=True)}
        return torch.func.functional_call(module, given, (features,))

    features = batch.features.clone().requires_grad_()
    assert torch.autograd.gradcheck(losses, (features, *values), fast_mode=True)


def test_losses_stay_float32_under_autocast(tiny, batch_of):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and any(isinstance(module, torch.nn.LSTM) for module in tiny.modules()):
        pytest.skip("not every CPU has a 16-bit LSTM")
    batch = batch_of(FRAMES, TOKENS)
    model = tiny.float().to(device)
    batch = replace(batch, features=batch.features.float()).to(device)
    with torch.autocast(device, torch.bfloat16):
        losses = model.losses(batch)
    assert losses.dtype == torch.float32
    assert torch.allclose(losses, model.losses(batch), rtol=0.1)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_agrees_with_the_cpu(tiny, batch_of):
    batch = batch_of(FRAMES, TOKENS, padding=3)
    losses, spelled = tiny.losses(batch), tiny.greedy(batch)
    gradients = torch.autograd.grad(losses.sum(), list(tiny.parameters()))
    tiny.cuda()
    assert torch.allclose(tiny.losses(batch.to("cuda")).cpu(), losses, atol=1e-9)
    assert tiny.greedy(batch.to("cuda")) == spelled
    moved = torch.autograd.grad(tiny.losses(batch.to("cuda")).sum(), list(tiny.parameters()))
    assert all(torch.allclose(a.cpu(), b, atol=1e-9) for a, b in zip(moved, gradients, strict=True))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_deterministic_gradients_on_a_gpu_are_the_same_every_time(tiny, batch_of, monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    batch = batch_of([400, 390, 380, 350] * 4, [[1, 2, 3] * 20, [4, 5] * 20] * 8).to("cuda")
    for module in tiny.cuda().modules():
        if isinstance(module, Dropout):
            module.rate = 0.1

    def gradients():
        torch.manual_seed(0)
        return torch.autograd.grad(tiny.losses(batch).sum(), list(tiny.parameters()))

    torch.use_deterministic_algorithms(True)
    try:
        first = gradients()
        assert all(torch.equal(a, b) for _ in range(4) for a, b in zip(first, gradients(), strict=True))
    finally:
        torch.use_deterministic_algorithms(False)


def test_nothing_fits_without_frames_or_tokens(tiny):
    assert tiny.fits(10, [1])
    assert not tiny.fits(0, [1])
    assert not tiny.fits(10, [])


@pytest.mark.parametrize(
    ("config", "learning_rate"),
    [
        (CtcConfig(TINY_CONFORMER), 3e-3),
        (CtcConfig(BlstmConfig(dim=24, num_layers=1, stack=1)), 1e-2),
        (LasConfig(BlstmConfig(dim=24, num_layers=1, stack=2), decoder_dim=32, attention_dim=24), 1e-2),
        (TransducerConfig(TINY_CONFORMER, prediction_dim=32, joint_dim=32), 1e-2),
    ],
    ids=["conformer", "blstm", "las", "transducer"],
)
def test_four_utterances_are_learned_to_the_letter(config, learning_rate, batch_of):
    torch.manual_seed(0)
    texts = [[1, 2, 3, 4], [4, 4, 2], [5, 1, 6, 6, 3], [2, 5]]
    batch = batch_of([20, 16, 24, 14], texts, dim=8)
    batch = replace(batch, features=batch.features.float())
    model = config.build(8, 7)
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
    for _ in range(40):
        for _ in range(5):
            optimizer.zero_grad()
            model.train().losses(batch).mean().backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
        if model.eval().greedy(batch) == texts:
            break
    assert model.eval().greedy(batch) == texts
