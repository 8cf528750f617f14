"""Kernels of Conformer blocks for many clients: what they compute is what PyTorch's own operations compute.

They need a GPU. With Triton's interpreter (TRITON_INTERPRET=1) they run on a CPU, slowly.
"""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from antiphon.clients.stacked.stacked_rows import Layout
from antiphon.models import stacked_products
from antiphon.models.adapters import LowRank
from antiphon.models.conformer import Conformer, ConformerConfig
from antiphon.models.gradient_rows import GradientRows, gradients_to
from antiphon.models.noise import noise_from, utterance_keys

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
CLIENTS, UTTERANCES, FRAMES, DIM = 3, 2, 21, 10
BRANCHES = ("feed_forward", "attention", "convolution", "norm")
CONFIG = ConformerConfig(dim=24, num_layers=1, num_heads=2, kernel_size=5, dropout=0.2)

pytestmark = pytest.mark.skipif(not (INTERPRETED or torch.cuda.is_available()), reason="needs a GPU")


@pytest.fixture(autouse=True)
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    if INTERPRETED:
        monkeypatch.setattr(stacked_products, "has_kernels", lambda tensor: tensor.dtype == torch.float32)


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The parts that are computed by kernels: none at first."""
    parts: set[str] = set()
    monkeypatch.setattr(stacked_products, "FUSED", parts)
    return parts


class Cohort:
    """Clients with parameters and utterances of their own; the last utterance is a placeholder."""

    def __init__(self, model: nn.Module, num_frames: int = FRAMES) -> None:
        torch.manual_seed(1)
        self.model = model.to(DEVICE).train()
        stacked = {
            name: torch.stack([p.detach() + 0.1 * torch.randn_like(p) for _ in range(CLIENTS)])
            for name, p in model.named_parameters()
        }
        self.layout = Layout.of({name: p[0] for name, p in stacked.items()})
        self.rows = self.layout.join(stacked.values())
        self.features = torch.randn(CLIENTS, UTTERANCES, num_frames, DIM).to(DEVICE)
        lengths = torch.tensor([[num_frames, 4], [7, num_frames], [num_frames, 0]])
        self.lengths = lengths.clamp(max=num_frames).to(DEVICE)
        seeds = torch.arange(CLIENTS)[:, None]
        self.keys = utterance_keys(seeds, torch.arange(UTTERANCES)).to(DEVICE)
        self.upstream = torch.randn(CLIENTS, UTTERANCES, num_frames, self.model.dim).to(DEVICE)  # type: ignore[operator]

    def trained(self, trained: tuple[str, ...] = ("",), bfloat16: bool = False) -> tuple[Tensor, Tensor]:
        """Encoded frames, and the gradients of the parameters whose names begin so [clients, width]."""
        leaves = {name: p.detach().requires_grad_() for name, p in self.layout.split(self.rows).items()}
        own = {name: leaf for name, leaf in leaves.items() if name.startswith(trained)}
        shared = {name: leaf.detach()[0] for name, leaf in leaves.items() if name not in own}

        def alone(parameters: dict[str, Tensor], features: Tensor, lengths: Tensor, keys: Tensor) -> Tensor:
            with noise_from(keys):
                given = (features, lengths)
                return functional_call(self.model, {**shared, **parameters}, given)[0]  # type: ignore[no-any-return]

        self.places = GradientRows(self.rows)
        with gradients_to(self.places), torch.autocast(DEVICE, torch.bfloat16, enabled=bfloat16):
            out = vmap(alone)(own, self.features, self.lengths, self.keys)
        is_real = (torch.arange(out.shape[2], device=DEVICE) < self.lengths[..., None])[..., None]
        self.gradients = torch.autograd.grad((out * self.upstream * is_real).sum(), list(own.values()))
        return out.detach() * is_real, torch.cat([gradient.flatten(1) for gradient in self.gradients], dim=1)


def apart(one: Tensor, other: Tensor) -> float:
    return float(torch.linalg.vector_norm(one - other) / torch.linalg.vector_norm(other))


def assert_same(found: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor]) -> None:
    assert apart(found[0], expected[0]) < 2e-6
    for ours, theirs in zip(found[1], expected[1], strict=True):
        assert apart(ours, theirs) < 5e-6


@pytest.mark.parametrize("part", BRANCHES)
def test_each_part_computes_what_pytorch_computes(part: str, only: set[str]) -> None:
    cohort = Cohort(Conformer(CONFIG, DIM))
    expected = cohort.trained()
    assert not cohort.places.is_used
    only.add(part)
    found = cohort.trained()
    assert cohort.places.is_used
    assert_same(found, expected)


@pytest.mark.parametrize("num_frames", [3, 70, 130], ids=["short", "two blocks", "three blocks"])
def test_utterances_of_any_length(num_frames: int, only: set[str]) -> None:
    cohort = Cohort(Conformer(ConformerConfig(32, 1, 4, kernel_size=7), DIM), num_frames)
    expected = cohort.trained()
    only.update(BRANCHES)
    found = cohort.trained()
    assert_same(found, expected)
    again = cohort.trained()
    assert all(torch.equal(one, other) for one, other in zip(found, again, strict=True))


def test_parameters_that_are_not_trained_are_shared_and_get_no_gradient(only: set[str]) -> None:
    cohort = Cohort(Conformer(CONFIG, DIM))
    some = ("layers.0.attention.query", "layers.0.convolution.norm.bias", "layers.0.feed_forward_before.4")
    expected = cohort.trained(some)
    only.update(BRANCHES)
    assert_same(cohort.trained(some), expected)


def test_layers_with_adapters_are_pytorch_s(only: set[str]) -> None:
    model = Conformer(CONFIG, DIM)
    LowRank(rank=2, targets=("layers.0.attention.*", "layers.0.feed_forward_before.*")).adapt(model)
    cohort = Cohort(model)
    expected = cohort.trained()
    only.update(BRANCHES)
    assert_same(cohort.trained(), expected)


def test_in_evaluation_nothing_is_dropped(only: set[str]) -> None:
    cohort = Cohort(Conformer(CONFIG, DIM))
    cohort.model.eval()
    expected = cohort.trained()
    only.update(BRANCHES)
    assert_same(cohort.trained(), expected)


def test_gradients_of_weights_lie_in_the_rows(only: set[str]) -> None:
    cohort = Cohort(Conformer(CONFIG, DIM))
    only.update(BRANCHES)
    _, expected = cohort.trained()
    names = list(cohort.layout.shapes)
    places = cohort.layout.split(cohort.places.rows)
    for name, gradient in zip(names, cohort.gradients, strict=True):
        if name.startswith("layers."):
            assert gradient.data_ptr() == places[name].data_ptr()
    joined = cohort.layout.put(cohort.gradients, cohort.places.rows)
    assert torch.equal(joined, cohort.layout.join(cohort.gradients))
    assert torch.equal(torch.cat([p.flatten(1) for p in cohort.layout.split(joined).values()], 1), expected)


@pytest.mark.skipif(INTERPRETED, reason="the interpreter cuts digits off where a GPU rounds")
def test_bfloat16_is_about_as_far_from_float32_as_pytorch_s(only: set[str]) -> None:
    cohort = Cohort(Conformer(CONFIG, DIM))
    expected = cohort.trained()
    plain = cohort.trained(bfloat16=True)
    only.update(BRANCHES)
    found = cohort.trained(bfloat16=True)
    for ours, theirs, exactly in zip(found, plain, expected, strict=True):
        assert ours.dtype == torch.float32
        assert apart(ours, exactly) < 2 * apart(theirs, exactly)


def test_members_take_a_step_in_the_rows_of_all() -> None:
    from antiphon.models.kernels import step

    table, directions = torch.randn(5, 5001).to(DEVICE), torch.randn(2, 5001).to(DEVICE)
    members, rate = torch.tensor([1, 4]).to(DEVICE), torch.tensor([[0.5], [0.25]]).to(DEVICE)
    expected = table.clone()
    expected[members] -= rate * directions
    step.descend(table, members, directions, rate)
    torch.testing.assert_close(table, expected, rtol=1e-6, atol=1e-6)
    step.descend(table, members, directions, torch.tensor(0.5).to(DEVICE))
    expected[members] -= 0.5 * directions
    torch.testing.assert_close(table, expected, rtol=1e-6, atol=1e-6)
