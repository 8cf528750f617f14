"""A reduced model is the masked large one: what it says, and how it learns."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from antiphon import config
from antiphon.algorithms.pruning import FederatedPruning
from antiphon.algorithms.pruning_scores import Adaptive, Unified
from antiphon.algorithms.pruning_slices import HalfColumn, HalfRow, Pattern, WholeColumn, WholeRow
from antiphon.data.batches import Batch
from antiphon.models.blstm import BlstmConfig
from antiphon.models.conformer import ConformerConfig
from antiphon.models.ctc import Ctc, CtcConfig
from antiphon.models.reduced import ReducedConfig, ReducedLinear, Units, reduced, structure_of
from antiphon.tasks.submodel import (
    Submodel,
    SubmodelEmbedding,
    SubmodelLinear,
    SubmodelRecurrent,
    masked,
    shrink,
    write_units,
)

BatchOf = Callable[..., Batch]
PATTERNS: dict[str, Pattern] = {
    "whole column": WholeColumn(),
    "half column": HalfColumn(),
    "whole row": WholeRow(),
    "half row": HalfRow(),
}


def kept_of(model: nn.Module, pattern: Pattern, sparsity: float = 0.5, adaptive: bool = False) -> Submodel:
    """Half of everything that can be pruned, the decoder of LAS included."""
    structure = structure_of(model)
    asked = [name for name in ("cells.*", "combine", "attention.*") if hasattr(model, "cells")]
    if isinstance(pattern, WholeColumn | HalfColumn) and hasattr(model, "embedding"):
        asked.append("embedding")
    pruning = FederatedPruning(
        pattern=pattern, layers=("encoder.layers.*", *asked), allocation=Adaptive() if adaptive else Unified()
    )
    params = {name: p.detach() for name, p in model.named_parameters()}
    return replace(pruning, structure=structure).keep(params, sparsity)


def set_to(model: nn.Module, values: dict[str, torch.Tensor]) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(values[name])


def gradients(model: nn.Module, batch: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    losses = model.losses(batch)  # type: ignore[operator]
    names, values = zip(*model.named_parameters(), strict=True)
    found = torch.autograd.grad(losses.sum(), values, allow_unused=True)
    return losses.detach(), {n: g for n, g in zip(names, found, strict=True) if g is not None}


@pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS.keys())
def test_losses_and_gradients_are_those_of_the_masked_model(
    tiny: nn.Module, pattern: Pattern, batch_of: BatchOf
) -> None:
    batch = batch_of([9, 7], [[1, 2], [3, 1]])
    params = {name: p.detach().clone() for name, p in tiny.named_parameters()}
    submodel = kept_of(tiny, pattern)
    small = reduced(tiny, submodel)
    set_to(tiny, masked(params, submodel))
    losses, expected = gradients(tiny, batch)
    mine, found = gradients(small, batch)
    torch.testing.assert_close(mine, losses, rtol=0, atol=1e-11)
    expected = shrink(expected, submodel)
    assert found.keys() == expected.keys()
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name], rtol=0, atol=1e-11)
    assert sum(p.numel() for p in small.parameters()) < 0.7 * sum(p.numel() for p in tiny.parameters())
    assert not set(dict(small.named_buffers())) & set(small.state_dict())  # what is saved is parameters


def test_in_float32_they_agree_to_1e6(tiny: nn.Module, batch_of: BatchOf) -> None:
    batch = batch_of([9, 7], [[1, 2], [3, 1]])
    batch = Batch.of([t.float() if t.is_floating_point() else t for t in batch.tensors])
    tiny.float().eval()
    submodel = kept_of(tiny, WholeColumn())
    small = reduced(tiny, submodel)
    set_to(tiny, masked({name: p.detach().clone() for name, p in tiny.named_parameters()}, submodel))
    with torch.no_grad():
        for mine, whole in zip(small(batch), tiny(batch), strict=True):
            torch.testing.assert_close(mine, whole, rtol=1e-6, atol=1e-6)
    assert small.greedy(batch) == tiny.greedy(batch)  # type: ignore[operator]


@pytest.mark.parametrize("adaptive", [False, True], ids=["unified", "adaptive"])
def test_many_clients_at_once_are_each_its_own(tiny: nn.Module, adaptive: bool, batch_of: BatchOf) -> None:
    """Adaptive: directions of an LSTM layer end up with different widths."""
    if adaptive and hasattr(tiny.encoder.layers[0], "forwards"):
        with torch.no_grad():
            for parameter in tiny.encoder.layers[0].forwards.parameters():  # type: ignore[union-attr, operator]
                parameter.mul_(2.0)
    batch = batch_of([9, 7], [[1, 2], [3, 1]])
    small = reduced(tiny, kept_of(tiny, HalfColumn(), adaptive=adaptive))
    clients = [
        {n: p.detach() + 0.1 * number * torch.ones_like(p) for n, p in small.named_parameters()}
        for number in range(2)
    ]
    stacked = {name: torch.stack([client[name] for client in clients]) for name in clients[0]}
    with sdpa_kernel(SDPBackend.MATH):  # as stacked training does
        together = vmap(lambda parameters: functional_call(small, parameters, (batch,)))(stacked)
    for number, client in enumerate(clients):
        alone = functional_call(small, client, (batch,))
        for mine, own in zip(together, alone, strict=True):
            torch.testing.assert_close(mine[number], own, rtol=0, atol=1e-10)


@pytest.mark.parametrize("num", [1, 7, 8, 9, 16])
def test_units_are_taken_and_placed_as_a_mask_would(num: int) -> None:
    mask = torch.zeros(16, dtype=torch.bool)
    mask[torch.randperm(16, generator=torch.Generator().manual_seed(num))[:num]] = True
    units = Units(mask)
    whole, some = (torch.randn(2, 3, n, dtype=torch.float64, requires_grad=True) for n in (16, num))
    assert torch.equal(units.take(whole), whole[..., mask])
    assert torch.equal(units.scatter(some)[..., mask], some)
    assert not units.scatter(some)[..., ~mask].any()
    for way, values in ((units.take, whole), (units.scatter, some)):
        assert torch.autograd.gradcheck(way, (values,))
        assert torch.autograd.gradgradcheck(way, (values,))


def test_the_two_directions_may_have_different_widths() -> None:
    torch.manual_seed(0)
    model = CtcConfig(BlstmConfig(dim=6, num_layers=1, stack=1)).build(5, 7)
    with torch.no_grad():
        for parameter in model.encoder.layers[0].forwards.parameters():  # type: ignore[union-attr, operator]
            parameter.mul_(3.0)
    small = reduced(model, kept_of(model, WholeColumn(), adaptive=True))
    layer = small.encoder.layers[0]  # type: ignore[index]
    assert layer.forwards.hidden_size > layer.backwards.hidden_size


def test_a_feed_forward_module_is_two_ordinary_smaller_matrices() -> None:
    model = CtcConfig(ConformerConfig(dim=8, num_layers=1, num_heads=2, kernel_size=3)).build(5, 7)
    small = reduced(model, kept_of(model, WholeColumn()))
    layer = small.encoder.layers[0]  # type: ignore[index]
    first, second = layer.feed_forward_before[1], layer.feed_forward_before[4]
    assert type(first) is nn.Linear
    assert first.weight.shape == (16, 8)  # of 32 hidden units
    assert isinstance(second, ReducedLinear)
    assert second.weight.shape == (4, 16)  # of 8 outputs; no input is gathered
    assert layer.attention.query_key_value.weight.shape == (12, 8)
    assert layer.convolution.gate.weight.shape == (16, 8)  # as it was
    assert isinstance(small, Ctc)


def test_a_configuration_builds_the_small_model_and_survives_json() -> None:
    full = CtcConfig(ConformerConfig(dim=8, num_layers=1, num_heads=2, kernel_size=3))
    torch.manual_seed(3)
    model = full.build(5, 7)
    small = ReducedConfig(full, kept_of(model, HalfColumn()))
    text = json.dumps(config.to_dict(small))
    read = config.from_dict(ReducedConfig, json.loads(text))
    assert read == small
    torch.manual_seed(3)
    first, second = (dict(read.build(5, 7).named_parameters()) for _ in range(2))
    expected = shrink({n: p.detach() for n, p in model.named_parameters()}, small.submodel)
    assert {n: p.shape for n, p in first.items()} == {n: p.shape for n, p in expected.items()}
    assert all(bool(p.isfinite().all()) for p in first.values())
    weight = "encoder.layers.0.feed_forward_before.1.weights.0"
    assert not torch.equal(first[weight], second[weight])  # drawn
    assert first["encoder.layers.0.norm.weight"].tolist() == [1.0] * 8


def test_the_large_model_is_never_built(monkeypatch: pytest.MonkeyPatch) -> None:
    full = CtcConfig(ConformerConfig(dim=64, num_layers=1, num_heads=2, kernel_size=3))
    submodel = kept_of(full.build(5, 7), WholeColumn())
    sizes = []
    uniform = nn.init.kaiming_uniform_

    def watched(tensor: torch.Tensor, *args: float, **kwargs: float) -> torch.Tensor:
        sizes.append(0 if tensor.is_meta else tensor.numel())
        return uniform(tensor, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(nn.init, "kaiming_uniform_", watched)
    ReducedConfig(full, submodel).build(5, 7)
    assert max(sizes) == 128 * 64  # half of a feed-forward module's 256 × 64


def test_a_mask_for_another_model_is_refused_by_the_layer_s_name() -> None:
    model = CtcConfig(ConformerConfig(dim=8, num_layers=1, num_heads=2, kernel_size=3)).build(5, 7)
    half = write_units(torch.tensor([True, False] * 8))
    with pytest.raises(ValueError, match=r"encoder.project: the mask is for 16 units, but the model has 8"):
        reduced(model, Submodel({"encoder.project": SubmodelLinear(outputs=half)}))
    with pytest.raises(ValueError, match=r"encoder.project: the mask is for another kind"):
        reduced(model, Submodel({"encoder.project": SubmodelEmbedding()}))
    with pytest.raises(ValueError, match=r"encoder.layers.9.lstm: the mask is for a layer"):
        reduced(model, Submodel({"encoder.layers.9.lstm": SubmodelRecurrent()}))


def test_layers_are_found_with_what_they_have_in_common() -> None:
    model = CtcConfig(ConformerConfig(dim=8, num_layers=1, num_heads=2, kernel_size=3)).build(5, 7)
    found = {layer.name: layer for layer in structure_of(model)}
    assert "output" not in found  # its outputs are tokens
    first = found["encoder.layers.0.feed_forward_after.1"]
    assert first.feeds == "encoder.layers.0.feed_forward_after.4"  # type: ignore[union-attr]
    assert found["encoder.layers.0.attention.query_key_value"].num_matrices == 3  # type: ignore[union-attr]
