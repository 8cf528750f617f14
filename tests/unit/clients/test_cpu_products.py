"""Products on a CPU: who computes them, exact to float32, and the same model is trained."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from world import SEED, World

from antiphon.clients import cpu_products
from antiphon.clients.cpu_products import AMD, faster_products, is_exact
from antiphon.core import Task, Tensors
from antiphon.data.batches import collate

PRODUCTS = torch.backends.mkldnn.matmul


@pytest.fixture(autouse=True)
def switch() -> Iterator[None]:
    """The switch as PyTorch sets it, and afterwards as it was."""
    cpu_products._one_dnn_is_better.cache_clear()
    before, PRODUCTS.fp32_precision = PRODUCTS.fp32_precision, "none"
    yield
    PRODUCTS.fp32_precision = before
    cpu_products._one_dnn_is_better.cache_clear()


@pytest.mark.parametrize(
    ("vendor", "exact", "inside"),
    [(AMD, True, "bf16"), (AMD, False, "none"), ("GenuineIntel", True, "none"), ("", True, "none")],
)
def test_one_dnn_computes_products_on_processors_of_amd_if_they_are_exact(
    vendor: str, exact: bool, inside: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_products, "processor_vendor", lambda: vendor)
    monkeypatch.setattr(cpu_products, "is_exact", lambda: exact)
    with faster_products():
        assert inside == PRODUCTS.fp32_precision
    assert PRODUCTS.fp32_precision == "none"


def test_what_a_user_has_chosen_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_products, "processor_vendor", lambda: AMD)
    PRODUCTS.fp32_precision = "ieee"
    with faster_products():
        assert PRODUCTS.fp32_precision == "ieee"
    assert PRODUCTS.fp32_precision == "ieee"


def test_the_test_product_tells_bfloat16_from_float32() -> None:
    assert is_exact()
    with torch.autocast("cpu", torch.bfloat16):
        assert not is_exact()


def test_products_are_exact_to_float32_in_all_sizes() -> None:
    """The switch would also allow bfloat16, which has errors of 1e-2 here."""
    generator = torch.Generator().manual_seed(0)
    for rows, inner, columns in ((1, 1, 1), (3, 700, 5), (64, 64, 64), (278, 64, 278), (900, 416, 256)):
        left, right = (torch.randn(n, inner, generator=generator) for n in (rows, columns))
        bias = torch.randn(columns, generator=generator)
        want = left.double() @ right.double().t() + bias
        with faster_products():
            several = torch.baddbmm(bias[None, None], left.expand(2, -1, -1), right.t().expand(2, -1, -1))
            linear = torch.nn.functional.linear(left, right, bias)
        for got in (linear, *several):
            assert float((got - want).abs().max()) < 2e-5 * inner**0.5


def test_a_switch_is_set_back_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_products, "processor_vendor", lambda: AMD)
    with pytest.raises(KeyError), faster_products():
        raise KeyError
    assert PRODUCTS.fp32_precision == "none"


def test_frames_and_parameters_of_a_step_decide_and_the_same_model_is_trained(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, params = "speaker/s00", world.params()
    local = {"lr": 0.1, "epochs": 1, "steps": 1, "batch_seconds": 0.0, "clip_norm": 0.0, "proximal": 0.0}
    task = Task("train", params, {**local, "round": 0, "seed": SEED})
    batch = collate(world.store, world.clients()[name], world.tokens.encode)
    work = batch.features.shape[:-1].numel() * sum(p.numel() for p in params.values())
    inside: list[str] = []

    @contextmanager
    def watched() -> Iterator[None]:
        with faster_products():
            inside.append(PRODUCTS.fp32_precision)
            yield

    def train(enough: float) -> Tensors:
        monkeypatch.setattr(cpu_products, "ENOUGH_WORK", enough)
        (update,) = world.worker(world.clients()).run(task, [name])
        return update.mean

    monkeypatch.setattr(cpu_products, "faster_products", watched)
    monkeypatch.setattr(cpu_products, "processor_vendor", lambda: AMD)
    plain = train(work + 1)
    assert inside == []
    other = train(work)
    assert inside == ["bf16"]
    for key, delta in plain.items():
        assert torch.allclose(other[key], delta, rtol=1e-3, atol=1e-6)
