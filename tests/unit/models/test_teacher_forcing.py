"""The decoder of LAS as one function is the decoder written token by token, in losses and gradients."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, vmap

from antiphon.data.batches import Batch
from antiphon.models import las, lstm_steps
from antiphon.models.blstm import BlstmConfig
from antiphon.models.las import Las, LasConfig
from antiphon.models.noise import noise_from

CONFIG = LasConfig(
    BlstmConfig(dim=4, num_layers=1, stack=2),
    decoder_dim=6,
    attention_dim=5,
    location_channels=2,
    location_width=5,
    dropout=0.3,
)
KEYS = torch.tensor([11, 12], dtype=torch.int32)
NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def build(config: LasConfig = CONFIG, seed: int = 0) -> Las:
    torch.manual_seed(seed)
    model = config.build(5, 7).double().train()
    with torch.no_grad():  # attention that cares where it was, and states far from zero
        for parameter in model.parameters():
            parameter.mul_(3)
    return model


@pytest.fixture
def batch(batch_of) -> Batch:
    """Utterances of unequal lengths, with three texts each."""
    spelled = batch_of([9] * 6, [[1, 2], [3, 1, 4], [5], [6, 2, 6], [2], []])
    heard = batch_of([23, 17], [[1], [1]])
    return replace(heard, tokens=spelled.tokens, token_lengths=spelled.token_lengths)


def losses_and_gradients(model: Las, batch: Batch, parameters: list[Tensor] | None = None) -> list[Tensor]:
    with noise_from(KEYS.to(batch.features.device)):
        losses = model.losses(batch)
    scale = torch.arange(1, len(losses) + 1, device=losses.device)  # no two texts count the same
    return [losses.detach(), *torch.autograd.grad((losses * scale).sum(), list(model.parameters()))]


@pytest.mark.parametrize("num_layers", [1, 2, 3])
def test_in_float64_losses_and_gradients_are_those_of_token_by_token(
    num_layers: int, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build(replace(CONFIG, decoder_layers=num_layers, ctc_weight=0.3))
    expected = losses_and_gradients(model, batch)
    monkeypatch.setattr(las, "TAUGHT_AT_ONCE", {"cpu"})
    monkeypatch.setattr(Las, "spell", None)  # it is not taken
    for found, right in zip(losses_and_gradients(model, batch), expected, strict=True):
        torch.testing.assert_close(found, right, rtol=1e-10, atol=1e-10)


def stacked(clients: list[Las], batch: Batch) -> list[Tensor]:
    """Losses of all clients, and the gradients of their parameters [clients, ...]."""
    named = [dict(client.named_parameters()) for client in clients]
    trained = {n: torch.stack([own[n].detach() for own in named]).requires_grad_() for n in named[0]}
    keys = KEYS.to(batch.features.device)

    def alone(parameters: dict[str, Tensor]) -> tuple[Tensor, ...]:
        with noise_from(keys):
            outputs: tuple[Tensor, ...] = functional_call(clients[0], parameters, (batch,))
            return outputs

    outputs = vmap(alone)(trained)
    losses = torch.stack([clients[0].score(own, batch) for own in zip(*outputs, strict=True)])
    scale = torch.arange(1, losses.shape[1] + 1, device=losses.device)
    return [losses.detach(), *torch.autograd.grad((losses * scale).sum(), list(trained.values()))]


def test_of_many_clients_each_gets_its_own(batch: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    clients = [build(seed=seed) for seed in range(3)]
    expected = [losses_and_gradients(client, batch) for client in clients]
    monkeypatch.setattr(las, "TAUGHT_AT_ONCE", {"cpu"})
    for together, *each in zip(stacked(clients, batch), *expected, strict=True):
        torch.testing.assert_close(together, torch.stack(each), rtol=1e-10, atol=1e-10)


# Sizes that are no multiples of any block, and those of a real model.
SIZES = {
    "odd": LasConfig(
        BlstmConfig(dim=37, num_layers=2, stack=2),
        decoder_dim=45,
        decoder_layers=3,
        attention_dim=133,
        location_channels=3,
        location_width=7,
    ),
    "medium": LasConfig(BlstmConfig(num_layers=1, stack=1)),
}


def apart(found: list[Tensor], expected: list[Tensor]) -> float:
    """The largest difference of a tensor from what it should be, relative to its size."""
    pairs = zip(found, expected, strict=True)
    return max(float((one.double() - other).norm() / other.norm()) for one, other in pairs)


@NEEDS_GPU
@pytest.mark.parametrize("name", SIZES)
def test_on_a_gpu_the_kernels_agree_with_float64_token_by_token_and_with_themselves(
    name: str, batch_of, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # as in runs
    spelled = batch_of([9] * 6, [[1, 2] * 5, [3, 1, 4], [5], [6, 2, 6], [2], []])
    heard = batch_of([143, 97], [[1], [1]])
    batch = replace(heard, tokens=spelled.tokens, token_lengths=spelled.token_lengths).to("cuda")
    clients = [SIZES[name].build(5, 7).double().cuda().train() for _ in range(3)]
    with monkeypatch.context() as plain:
        plain.setattr(las, "TAUGHT_AT_ONCE", set())
        expected = [losses_and_gradients(client, batch) for client in clients]
    right = [torch.stack(each) for each in zip(*expected, strict=True)]
    single = replace(batch, features=batch.features.float())
    for client in clients:
        client.float()
    found = stacked(clients, single)
    assert lstm_steps.is_fused(single.features)
    assert apart(found, right) < 1e-4
    assert apart(losses_and_gradients(clients[0], single), expected[0]) < 1e-4
    assert all(torch.equal(*pair) for pair in zip(found, stacked(clients, single), strict=True))
