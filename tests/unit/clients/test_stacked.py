"""Many clients at once give each client what it would get alone."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from world import MASKS, MODELS, Doubled, World

from antiphon.clients.client import Bench, Client
from antiphon.clients.footprint import Footprint
from antiphon.clients.grouping import LAUNCH, Launch, Plan, launches
from antiphon.clients.stack import MOST_GRAPHS, Stack, StackedBatch
from antiphon.clients.stacked import StackedWorker, stacked_batches
from antiphon.clients.worker import SpeechWorker
from antiphon.core import Task, Tensors, Update
from antiphon.data.batches import Batch
from antiphon.local import LocalTraining
from antiphon.models.blstm import BlstmConfig
from antiphon.models.ctc import CtcConfig
from antiphon.models.model import ModelConfig
from antiphon.models.transformer_lm import TransformerLmConfig

CONFIGS: dict[str, ModelConfig] = {
    **MODELS,
    "ctc on a blstm": CtcConfig(BlstmConfig(dim=5, num_layers=2, stack=2)),
    "language model": TransformerLmConfig(8, num_layers=1, num_heads=2, feed_forward_dim=12, dropout=0.2),
    "joint las": replace(MODELS["las"], ctc_weight=0.3, label_smoothing=0.1),  # type: ignore[type-var]
}
LOCAL = LocalTraining(lr=0.3, epochs=2, batch_seconds=1.0)


def double_bench(world: World, config: ModelConfig) -> Bench:
    torch.manual_seed(3)
    model = config.build(world.store.dim, world.tokens.size)
    assert isinstance(model, nn.Module)
    model.double()
    base = {name: p.detach().clone() for name, p in model.named_parameters()}
    bench = Bench(world.store, world.tokens, model, base, MASKS)
    bench.feed = Doubled(bench.feed)
    return bench


def unequal(world: World) -> dict[str, np.ndarray]:
    """Clients of 1 to all utterances of a speaker; their numbers of steps differ too."""
    everyone = world.clients()
    return {name: own[: 1 + number % 5] for number, (name, own) in enumerate(sorted(everyone.items()))}


def tasks(tensors: Tensors, local: LocalTraining = LOCAL) -> Task:
    return Task("train", tensors, {**vars(local), "round": 0, "seed": 11})


def assert_same(stacked: Iterable[Update], alone: Iterable[Update], tolerance: float) -> None:
    for left, right in zip(stacked, alone, strict=True):
        assert left.reports[0].client == right.reports[0].client
        assert left.reports[0].stats == pytest.approx(right.reports[0].stats, rel=tolerance)
        for name, tensor in right.mean.items():
            torch.testing.assert_close(left.mean[name], tensor, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize(
    "local", [LOCAL, replace(LOCAL, proximal=0.5, clip_norm=0.1), replace(LOCAL, steps=3)]
)
def test_each_client_s_delta_is_what_it_gets_alone(world: World, name: str, local: LocalTraining) -> None:
    bench, clients = double_bench(world, CONFIGS[name]), unequal(world)
    task = tasks(bench.base, local)
    alone = list(SpeechWorker(bench, clients).run(task, list(clients)))
    assert len({update.reports[0].stats["num_steps"] for update in alone}) > 1 or local.steps
    assert_same(StackedWorker(bench, clients).run(task, list(clients)), alone, 1e-10)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("is_encoder", [True, False])
def test_subspace_training_stacks_what_travels_and_shares_the_rest(
    world: World, name: str, is_encoder: bool, caplog: pytest.LogCaptureFixture
) -> None:
    bench, clients = double_bench(world, CONFIGS[name]), unequal(world)
    encoder = "layers." if name == "language model" else "encoder."
    part = {name: p + 0.01 for name, p in bench.base.items() if name.startswith(encoder) == is_encoder}
    alone = list(SpeechWorker(bench, clients).run(tasks(part), list(clients)))
    with caplog.at_level(logging.WARNING, "antiphon"):
        stacked = list(StackedWorker(bench, clients).run(tasks(part), list(clients)))
    assert stacked[0].mean.keys() == part.keys()
    assert_same(stacked, alone, 1e-10)
    assert not caplog.text  # nothing fell back to one after another


@pytest.mark.parametrize("part", ["output.", "ctc."])
def test_outputs_that_nothing_trained_leads_to_are_no_hindrance(
    world: World, part: str, caplog: pytest.LogCaptureFixture
) -> None:
    bench, clients = double_bench(world, CONFIGS["joint las"]), unequal(world)
    task = tasks({name: p for name, p in bench.base.items() if name.startswith(part)})
    alone = list(SpeechWorker(bench, clients).run(task, list(clients)))
    with caplog.at_level(logging.WARNING, "antiphon"):
        assert_same(StackedWorker(bench, clients).run(task, list(clients)), alone, 1e-10)
    assert not caplog.text


def test_a_client_s_noise_does_not_depend_on_who_it_is_stacked_with(world: World) -> None:
    bench, clients = double_bench(world, MODELS["ctc"]), world.clients()
    names = sorted(clients)
    task = tasks(bench.base)
    everyone = dict(zip(names, StackedWorker(bench, clients).run(task, names), strict=True))
    pair = list(StackedWorker(bench, clients).run(task, names[-2:]))
    assert_same(pair, [everyone[name] for name in names[-2:]], 1e-10)
    assert any(isinstance(m, nn.Module) and getattr(m, "rate", 0) > 0 for m in bench.model.modules())  # type: ignore[attr-defined]


def test_groups_of_any_size_give_the_same_in_the_order_of_the_cohort(world: World) -> None:
    bench, clients = double_bench(world, MODELS["ctc"]), unequal(world)
    names = sorted(clients, reverse=True)
    whole = list(StackedWorker(bench, clients).run(tasks(bench.base), names))
    for most in (1, 3):
        assert_same(StackedWorker(bench, clients, most=most).run(tasks(bench.base), names), whole, 1e-10)


@pytest.mark.parametrize("launch", [0, 3])
def test_launches_of_any_clients_at_any_step_give_the_same(
    world: World, launch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The less a launch costs, the more of them: of some clients, others at the next step."""
    bench, clients = double_bench(world, MODELS["ctc"]), unequal(world)
    whole = list(StackedWorker(bench, clients).run(tasks(bench.base), list(clients)))
    monkeypatch.setattr("antiphon.clients.grouping.LAUNCH", launch)
    plans = [Plan(c := Client(n, own, bench), list(c.steps(LOCAL, 11))) for n, own in clients.items()]
    found = list(launches(plans, Footprint(), most=256))
    assert len(found) > max(len(plan.steps) for plan in plans)
    assert max(len(launch.members) for launch in found) > 1
    assert_same(StackedWorker(bench, clients).run(tasks(bench.base), list(clients)), whole, 1e-10)


def test_where_many_do_not_fit_half_of_them_are_tried(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench, clients = double_bench(world, MODELS["ctc"]), unequal(world)
    names = list(clients)
    whole = list(StackedWorker(bench, clients).run(tasks(bench.base), names))
    step = Stack.step

    def cramped(stack: Stack, given: StackedBatch, local: LocalTraining) -> Tensor:
        if len(given.share) > 2:
            raise torch.OutOfMemoryError("a stand-in: CPUs are not asked")
        return step(stack, given, local)

    monkeypatch.setattr(Stack, "step", cramped)
    with caplog.at_level(logging.WARNING, "antiphon"):
        assert_same(StackedWorker(bench, clients).run(tasks(bench.base), names), whole, 1e-10)
    assert f"{len(names)} clients at once do not fit the GPU's memory: half of them" in caplog.text
    assert "one after another" not in caplog.text


def test_nothing_that_was_handed_out_changes_with_the_next_cohort(world: World) -> None:
    bench, clients = double_bench(world, MODELS["ctc"]), world.clients()
    worker, names = StackedWorker(bench, clients), sorted(clients)[:2]
    before = list(worker.run(tasks(bench.base), names))
    kept = [{name: tensor.clone() for name, tensor in update.mean.items()} for update in before]
    moved = {name: tensor + 0.1 for name, tensor in bench.base.items()}
    list(worker.run(tasks(moved), names))
    for update, copy in zip(before, kept, strict=True):
        assert all(torch.equal(update.mean[name], copy[name]) for name in copy)


def test_other_kinds_of_work_go_to_the_plain_worker(world: World) -> None:
    bench, clients = world.bench("ctc"), world.clients()
    names = sorted(clients)[:3]
    task = Task("evaluate", bench.base)
    stacked = [update.reports for update in StackedWorker(bench, clients).run(task, names)]
    assert stacked == [update.reports for update in SpeechWorker(bench, clients).run(task, names)]


def test_a_client_without_usable_speech_is_left_out_and_named(world: World) -> None:
    bench, clients = double_bench(world, MODELS["ctc"]), dict(world.clients())
    names = sorted(clients)[:3]
    clients[names[1]] = np.array([], dtype=np.int64)
    updates = list(StackedWorker(bench, clients).run(tasks(bench.base), names))
    assert [update.is_empty for update in updates] == [False, True, False]
    assert updates[1].failures[0].client == names[1]
    assert "no usable utterance" in updates[1].failures[0].reason


def test_a_client_that_breaks_is_found_and_the_others_are_trained(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    bench, clients = double_bench(world, MODELS["ctc"]), world.clients()
    names = sorted(clients)[:3]
    bad, feed = set(clients[names[1]].tolist()), bench.feed

    class Broken:
        def __call__(self, places: np.ndarray) -> Batch:
            if bad & set(places.tolist()):
                raise OSError("cannot read frames.f16")
            return feed(places)

        def one_by_one(self, plan: Iterable[np.ndarray]) -> Iterator[Batch]:
            return map(self, plan)

    bench.feed = Broken()
    with caplog.at_level(logging.WARNING, "antiphon"):
        updates = list(StackedWorker(bench, clients).run(tasks(bench.base), names))
    assert [update.is_empty for update in updates] == [False, True, False]
    assert updates[1].failures[0].reason == "OSError: cannot read frames.f16"
    assert "one after another" in caplog.text


def test_a_diverged_client_is_refused_and_does_not_touch_the_others(world: World) -> None:
    bench, clients = double_bench(world, MODELS["ctc"]), world.clients()
    names, feed = sorted(clients)[:3], bench.feed
    loud = torch.tensor(clients[names[0]])

    class Loud:
        def __call__(self, places: np.ndarray) -> Batch:
            batch = feed(places)
            mine = torch.isin(torch.tensor(batch.indices), loud)[:, None, None]
            return replace(batch, features=batch.features.masked_fill(mine, torch.nan))

        def one_by_one(self, plan: Iterable[np.ndarray]) -> Iterator[Batch]:
            return map(self, plan)

    alone = list(SpeechWorker(bench, clients).run(tasks(bench.base), names[1:]))
    bench.feed = Loud()
    updates = list(StackedWorker(bench, clients).run(tasks(bench.base), names))
    assert updates[0].failures[0].reason == "loss is nan"
    assert_same(updates[1:], alone, 1e-10)


def test_a_model_that_vmap_cannot_run_is_trained_one_after_another_and_the_log_says_why(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    class Peeking(nn.Module):
        """Looks at a value in its forward pass, which vmap forbids."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = MODELS["ctc"].build(world.store.dim, world.tokens.size)

        def forward(self, batch: Batch) -> tuple[Tensor, ...]:
            assert float(next(self.inner.parameters()).detach().sum()) < 1e9
            outputs: tuple[Tensor, ...] = self.inner(batch)
            return outputs

        def score(self, outputs: tuple[Tensor, ...], batch: Batch) -> Tensor:
            return self.inner.score(outputs, batch)

        def losses(self, batch: Batch) -> Tensor:
            return self.score(self(batch), batch)

        def fits(self, num_frames: int, tokens: list[int]) -> bool:
            return self.inner.fits(num_frames, tokens)

    torch.manual_seed(0)
    model = Peeking()
    base = {name: p.detach().clone() for name, p in model.named_parameters()}
    bench, clients = Bench(world.store, world.tokens, model, base), world.clients()  # type: ignore[arg-type]
    names = sorted(clients)[:2]
    with caplog.at_level(logging.WARNING, "antiphon"):
        updates = list(StackedWorker(bench, clients).run(tasks(base), names))
    alone = SpeechWorker(bench, clients).run(tasks(base), names)
    assert_same(updates, alone, 0.0)
    assert "one after another, not stacked" in caplog.text
    assert "item()" in caplog.text


def test_a_stacked_batch_holds_every_client_s_rows_and_weighs_placeholders_with_nothing(world: World) -> None:
    bench, clients = world.bench("ctc"), unequal(world)
    local = replace(LOCAL, epochs=1, batch_seconds=0.0)
    plans = [Plan(c := Client(n, own, bench), list(c.steps(local, 1))) for n, own in clients.items()]
    (stacked,) = stacked_batches(bench, plans, list(launches(plans, Footprint(), most=256)))
    rows = np.array(stacked.batch.indices).reshape(len(plans), -1)
    for plan, row, share in zip(plans, rows, stacked.share, strict=True):
        assert sorted(row[row >= 0]) == sorted(plan.client.indices)
        assert float(share.sum()) == pytest.approx(1.0)
        assert set(share[row < 0].tolist()) <= {0.0}
        placeholders = stacked.batch.feature_lengths.view(rows.shape)[plans.index(plan)][row < 0]
        assert set(placeholders.tolist()) <= {1}


def test_shapes_that_take_turns_do_not_drive_out_each_other_s_graphs(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    captured = []

    class Recorded:
        """Stands for a CUDA graph, which only a GPU has."""

        def __init__(self, stack: Stack, given: StackedBatch, local: LocalTraining) -> None:
            self.stack, self.local = stack, local
            captured.append(given.batch.features.shape)

        def replay(self, given: StackedBatch, rate: Tensor) -> Tensor:
            return self.stack._step(given, rate, self.local)

    monkeypatch.setattr("antiphon.clients.stack.Captured", Recorded)
    bench, clients = world.bench("ctc"), unequal(world)
    local = replace(LOCAL, epochs=1, batch_seconds=0.0)
    plans = [Plan(c := Client(n, own, bench), list(c.steps(local, 1))) for n, own in clients.items()]
    stack = Stack(bench, bench.base, size=len(plans))
    stack.graphs = True
    several = [Launch(0, np.arange(count)) for count in range(1, len(plans) + 1)]
    batches = list(stacked_batches(bench, plans, several))
    assert len({batch.share.shape[0] for batch in batches}) > MOST_GRAPHS
    for _ in range(8):
        for batch in batches:
            stack.step(batch, local)
    assert len(captured) == len(set(captured)) == MOST_GRAPHS
    for _ in range(20):  # one that comes far more often takes the place of another
        stack.step(batches[-1], local)
    assert len(captured) == MOST_GRAPHS + 1
    assert captured[-1] == batches[-1].batch.features.shape


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("launch", [3, LAUNCH])
def test_on_a_gpu_in_float32_each_client_s_delta_is_what_it_gets_alone(
    world: World, name: str, graphs: bool, launch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    monkeypatch.setattr("antiphon.clients.grouping.LAUNCH", launch)
    torch.manual_seed(3)
    model = CONFIGS[name].build(world.store.dim, world.tokens.size)
    base = {name: p.detach().clone().cuda() for name, p in model.named_parameters()}
    bench = Bench(world.store, world.tokens, model, base, MASKS, "cuda")
    clients = unequal(world)
    names = sorted(clients)
    worker = StackedWorker(bench, clients, graphs=graphs)
    for seed in range(4):  # shapes repeat, graphs are captured and replayed
        config = {**vars(LOCAL), "lr": 0.1 * (1 + seed), "round": 0, "seed": 11}
        task = Task("train", {name: tensor + 0.01 * seed for name, tensor in base.items()}, config)
        alone = SpeechWorker(bench, clients).run(task, names)
        for stacked, update in zip(worker.run(task, names), alone, strict=True):
            off = sum(float((stacked.mean[n] - t).square().sum()) for n, t in update.mean.items())
            assert off**0.5 <= 1e-4 * update.reports[0].stats["norm"]
    assert worker._stack is not None
    assert bool(worker._stack._graphs) == graphs


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", CONFIGS)
def test_in_bfloat16_parameters_stay_float32_and_clients_get_about_the_same(world: World, name: str) -> None:
    torch.manual_seed(3)
    model = CONFIGS[name].build(world.store.dim, world.tokens.size)
    base = {name: p.detach().clone().cuda() for name, p in model.named_parameters()}
    whole = Bench(world.store, world.tokens, model, base, MASKS, "cuda")
    half = Bench(world.store, world.tokens, model, base, MASKS, "cuda", bfloat16=True)
    clients = unequal(world)
    names, task = sorted(clients), tasks(base, replace(LOCAL, lr=0.01))
    exact = list(SpeechWorker(whole, clients).run(task, names))
    for worker in (SpeechWorker(half, clients), StackedWorker(half, clients)):
        for rough, update in zip(worker.run(task, names), exact, strict=True):
            assert {tensor.dtype for tensor in rough.mean.values()} == {torch.float32}
            off = sum(float((rough.mean[n] - t).square().sum()) for n, t in update.mean.items()) ** 0.5
            assert 0 < off < 0.05 * update.reports[0].stats["norm"]


def test_bfloat16_without_a_gpu_is_refused(world: World) -> None:
    with pytest.raises(ValueError, match="bfloat16 needs a GPU"):
        Bench(world.store, world.tokens, world.bench().model, world.params(), bfloat16=True)
