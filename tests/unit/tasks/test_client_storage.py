"""Parameters that clients store in few bits: numbers by hand, steps by hand, rows, tasks, and the journal."""

from __future__ import annotations

import json
import logging
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from runtimes import CONFIGS, assert_same, double_runtime, tasks, unequal
from runtimes import LOCAL as STACKED
from torch import Tensor
from world import World, recording

from antiphon import config
from antiphon.algorithms.central import Central
from antiphon.algorithms.fedavg import FedAvg
from antiphon.algorithms.scaffold import Scaffold
from antiphon.clients.client import Client
from antiphon.clients.stacked.stacked_worker import StackedWorker
from antiphon.clients.train import clip, gradients, local_sgd
from antiphon.clients.worker import SpeechWorker
from antiphon.core import size_in_bytes
from antiphon.pools.local import LocalPool
from antiphon.seeding import derive
from antiphon.tasks.client_storage import Exact, Quantised, store, stored_bytes
from antiphon.tasks.codecs.small_floats import SmallFloats, fitted, in_units, restored, rounded
from antiphon.tasks.local_training import LocalSteps, LocalTraining

SHORT = Quantised(exponent=3, mantissa=4, share=0.5)


def numbers(exponent: int, mantissa: int) -> list[float]:
    """All small floats from 0 up, in units of the largest exponent, from their definition."""
    lowest, parts = 2 - 2**exponent, 2**mantissa
    tiny = [2.0**lowest * part / parts for part in range(parts)]
    return tiny + [2.0**e * (1 + part / parts) for e in range(lowest, 1) for part in range(parts)]


# --- Numbers --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("exponent", "mantissa"), [(1, 1), (2, 3), (3, 4)])
def test_rounding_takes_the_nearest_of_all_small_floats(exponent: int, mantissa: int) -> None:
    table = torch.tensor(numbers(exponent, mantissa))
    assert len(table) == 2 ** (exponent + mantissa)
    values = torch.linspace(-1.999, 1.999, 5003)
    found = rounded(values, exponent, mantissa)
    distance = (values.abs()[:, None] - table).abs().amin(dim=1)
    torch.testing.assert_close((values - found).abs(), distance)
    assert bool(torch.isin(found.abs(), table).all())
    assert bool((found * values >= 0).all())


def test_the_transform_by_hand() -> None:
    """V = 1, 2, 6 and Ṽ = 0, 1, 2: s = (3·14 − 9·3) / (3·5 − 9) = 2.5, b = (9 − 2.5·3) / 3 = 0.5."""
    scale, bias = fitted(torch.tensor([[1.0, 2.0, 6.0]]), torch.tensor([[0.0, 1.0, 2.0]]))
    assert (scale.item(), bias.item()) == (2.5, 0.5)


def test_the_transform_is_the_least_squares_line() -> None:
    rows = torch.randn(3, 200, generator=torch.Generator().manual_seed(1)).double() * 0.05 + 0.01
    found = rounded(in_units(rows), 2, 2)
    scale, bias = fitted(rows, found)
    for row in range(3):
        line = torch.stack([found[row], torch.ones(200, dtype=torch.float64)], dim=1)
        best = torch.linalg.lstsq(line, rows[row]).solution
        torch.testing.assert_close(torch.cat([scale[row], bias[row]]).double(), best, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("value", [0.0, 0.3, -7.0])
def test_equal_entries_come_back(value: float) -> None:
    """Their Ṽ are equal, so s = 1 and b is the rest."""
    rows = torch.full((2, 9), value)
    torch.testing.assert_close(restored(rows, 2, 3), rows)


@pytest.mark.parametrize("bits", [(1, 1), (2, 3), (3, 4), (3, 7)])
def test_the_codec_brings_what_a_client_would_read(bits: tuple[int, int]) -> None:
    values = torch.randn(37, 53, generator=torch.Generator().manual_seed(2)) * 0.05
    values[0, :3] = torch.tensor([0.0, -0.0, 3.0])
    parts, _ = SmallFloats(*bits).encode(values, 0, None)
    arrived = SmallFloats(*bits).decode(parts, values.shape, 0)
    assert torch.equal(arrived, restored(values.view(1, -1), *bits).view_as(values))
    size = values.numel()
    assert sum(part.nbytes for part in parts) == 8 + math.ceil(size * (1 + bits[0]) / 8) + math.ceil(
        size * bits[1] / 8
    )


def test_eleven_bits_of_nine_matrices_out_of_ten_are_59_per_cent_less() -> None:
    """The paper's largest saving: S1E3M7 for 90 % of the matrices, without the few bytes of transforms."""
    tensors = {f"layer{number}.weight": torch.zeros(400, 400) for number in range(10)}
    paper = Quantised(exponent=3, mantissa=7, share=0.9)
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    share = stored_bytes(tensors, paper.chosen(shapes, 1), paper) / size_in_bytes(tensors)
    assert 1 - share == pytest.approx(0.59, abs=0.001)


# --- Clients --------------------------------------------------------------------------------------


def test_a_client_stores_before_the_first_step_and_after_each(world: World) -> None:
    """Steps written out: gradient of what was read, step, store."""
    runtime = world.exact_runtime()
    client = Client("speaker/s00", world.clients()["speaker/s00"], runtime)
    local = LocalTraining(lr=0.2, steps=3, batch_seconds=1.5, storage=SHORT)
    steps = LocalSteps(runtime.base, local, seed=5)
    shapes = {name: p.shape for name, p in runtime.base.items()}
    chosen = SHORT.chosen(shapes, derive(5, "speaker/s00", "storage"))
    matrices = [name for name, shape in shapes.items() if len(shape) > 1]
    assert chosen < set(matrices)
    assert len(chosen) == round(0.5 * len(matrices))

    def read(model: dict[str, Tensor]) -> dict[str, Tensor]:
        return {
            name: restored(p.reshape(1, -1), 3, 4).view_as(p) if name in chosen else p
            for name, p in model.items()
        }

    class Meter:
        def add(self, losses: Tensor) -> None:
            pass

    start = model = read({name: p.clone() for name, p in runtime.base.items()})
    parameters = runtime.load(model)
    for grads in gradients(client, local, parameters, 5, Meter()):  # type: ignore[arg-type]
        clip(grads, local.clip_norm)
        model = read({n: p - 0.2 * g for (n, p), g in zip(model.items(), grads, strict=True)})
        with torch.no_grad():
            for parameter, value in zip(parameters, model.values(), strict=True):
                parameter.copy_(value)
    trained = local_sgd(client, steps)
    for name, delta in trained.delta.items():
        torch.testing.assert_close(delta, start[name] - model[name], rtol=1e-9, atol=1e-12)
    assert trained.report.stats["parameter_bytes"] == stored_bytes(runtime.base, chosen, SHORT)


@pytest.mark.parametrize("name", ["ctc", "las"])
def test_stacked_clients_store_what_each_stores_alone(
    world: World, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("antiphon.clients.stacked.grouping.LAUNCH", 3)
    runtime, clients = double_runtime(world, CONFIGS[name]), unequal(world)
    local = replace(STACKED, proximal=0.5, storage=SHORT)
    task, names = tasks(runtime.base, local), list(clients)
    alone = list(SpeechWorker(runtime, clients).run(task, names))
    worker = StackedWorker(runtime, clients)
    with caplog.at_level(logging.WARNING, "antiphon"):
        for _ in range(2):
            assert_same(worker.run(task, names), alone, 1e-7)
        plain = tasks(runtime.base, STACKED)
        assert_same(worker.run(plain, names), SpeechWorker(runtime, clients).run(plain, names), 1e-9)
    assert not caplog.text
    assert len({update.reports[0].stats["norm"] for update in alone}) == len(alone)


def test_the_journal_has_the_bytes_that_a_client_keeps(world: World) -> None:
    clients = world.clients()
    worker = SpeechWorker(world.runtime(), clients)
    algorithm = FedAvg(LocalTraining(steps=1, storage=Quantised(share=1.0)))
    pool = recording(LocalPool(worker), ["speaker/s00"])
    algorithm.round(algorithm.init(world.params()).with_seed(1), ["speaker/s00"], pool)
    size = pool.clients["speaker/s00"]["parameter_bytes"]
    assert size_in_bytes(world.params()) / 4 < size < size_in_bytes(world.params()) / 2.5


def test_exact_storage_changes_nothing() -> None:
    tensors = {"w": torch.ones(2, 2)}
    store(tensors, Exact().chosen({"w": (2, 2)}, 0), Exact())
    assert torch.equal(tensors["w"], torch.ones(2, 2))
    assert LocalTraining().is_exact
    assert "storage" not in LocalTraining().to_task()


# --- Settings -------------------------------------------------------------------------------------


def test_a_task_carries_the_storage_as_text() -> None:
    local = LocalTraining(storage=Quantised(2, 3))
    assert LocalTraining.from_task(json.loads(json.dumps(local.to_task()))) == local
    read = config.from_dict(LocalTraining, {"storage": {"quantised": {"exponent": 2, "mantissa": 3}}})
    assert read == local


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"quantised": {"share": 0.0}}, "share must be above 0"),
        ({"quantised": {"exponent": 0}}, "1 to 6 bits of exponent"),
        ({"quantised": {"mantissa": 11}}, "1 to 10 of mantissa"),
        ({"package.module:Class": {}}, "unknown choice"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config.from_dict(LocalTraining, {"storage": settings})


def test_algorithms_that_need_exact_steps_refuse_it() -> None:
    for algorithm in (Scaffold, Central):
        with pytest.raises(ValueError, match=r"leave local\.storage at exact"):
            algorithm(LocalTraining(storage=Quantised()))
