"""Many clients at once give each client what it would get alone."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import pytest
import torch
from runtimes import CONFIGS, LOCAL, assert_same, double_runtime, tasks, unequal
from torch import nn
from world import MODELS, World

from antiphon.clients.client import Client
from antiphon.clients.stacked.footprint import Footprint
from antiphon.clients.stacked.grouping import Plan, launches
from antiphon.clients.stacked.stacked_worker import StackedWorker, stacked_batches
from antiphon.clients.worker import SpeechWorker
from antiphon.core import Task
from antiphon.tasks.local_training import LocalSteps, LocalTraining


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize(
    "local", [LOCAL, replace(LOCAL, proximal=0.5, clip_norm=0.1), replace(LOCAL, steps=3)]
)
def test_each_client_s_delta_is_what_it_gets_alone(world: World, name: str, local: LocalTraining) -> None:
    runtime, clients = double_runtime(world, CONFIGS[name]), unequal(world)
    task = tasks(runtime.base, local)
    alone = list(SpeechWorker(runtime, clients).run(task, list(clients)))
    assert len({update.reports[0].stats["num_steps"] for update in alone}) > 1 or local.steps
    assert_same(StackedWorker(runtime, clients).run(task, list(clients)), alone, 1e-10)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("is_encoder", [True, False])
def test_subspace_training_stacks_what_travels_and_shares_the_rest(
    world: World, name: str, is_encoder: bool, caplog: pytest.LogCaptureFixture
) -> None:
    runtime, clients = double_runtime(world, CONFIGS[name]), unequal(world)
    encoder = "layers." if name == "language model" else "encoder."
    part = {name: p + 0.01 for name, p in runtime.base.items() if name.startswith(encoder) == is_encoder}
    alone = list(SpeechWorker(runtime, clients).run(tasks(part), list(clients)))
    with caplog.at_level(logging.WARNING, "antiphon"):
        stacked = list(StackedWorker(runtime, clients).run(tasks(part), list(clients)))
    assert stacked[0].mean.keys() == part.keys()
    assert_same(stacked, alone, 1e-10)
    assert not caplog.text  # nothing fell back to one after another


@pytest.mark.parametrize("part", ["output.", "ctc."])
def test_outputs_that_nothing_trained_leads_to_are_no_hindrance(
    world: World, part: str, caplog: pytest.LogCaptureFixture
) -> None:
    runtime, clients = double_runtime(world, CONFIGS["joint las"]), unequal(world)
    task = tasks({name: p for name, p in runtime.base.items() if name.startswith(part)})
    alone = list(SpeechWorker(runtime, clients).run(task, list(clients)))
    with caplog.at_level(logging.WARNING, "antiphon"):
        assert_same(StackedWorker(runtime, clients).run(task, list(clients)), alone, 1e-10)
    assert not caplog.text


def test_a_client_s_noise_does_not_depend_on_who_it_is_stacked_with(world: World) -> None:
    runtime, clients = double_runtime(world, MODELS["ctc"]), world.clients()
    names = sorted(clients)
    task = tasks(runtime.base)
    everyone = dict(zip(names, StackedWorker(runtime, clients).run(task, names), strict=True))
    pair = list(StackedWorker(runtime, clients).run(task, names[-2:]))
    assert_same(pair, [everyone[name] for name in names[-2:]], 1e-10)
    assert any(isinstance(m, nn.Module) and getattr(m, "rate", 0) > 0 for m in runtime.model.modules())  # type: ignore[attr-defined]


def test_groups_of_any_size_give_the_same_in_the_order_of_the_cohort(world: World) -> None:
    runtime, clients = double_runtime(world, MODELS["ctc"]), unequal(world)
    names = sorted(clients, reverse=True)
    whole = list(StackedWorker(runtime, clients).run(tasks(runtime.base), names))
    for most in (1, 3):
        assert_same(
            StackedWorker(runtime, clients, max_clients=most).run(tasks(runtime.base), names), whole, 1e-10
        )


@pytest.mark.parametrize("launch", [0, 3])
def test_launches_of_any_clients_at_any_step_give_the_same(
    world: World, launch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The less a launch costs, the more of them: of some clients, others at the next step."""
    runtime, clients = double_runtime(world, MODELS["ctc"]), unequal(world)
    whole = list(StackedWorker(runtime, clients).run(tasks(runtime.base), list(clients)))
    monkeypatch.setattr("antiphon.clients.stacked.grouping.LAUNCH", launch)
    wanted = LocalSteps(runtime.base, LOCAL, seed=11)
    plans = [
        Plan(c := Client(n, own, runtime), list(c.steps(LOCAL, 11)), wanted) for n, own in clients.items()
    ]
    found = list(launches(plans, Footprint(), max_clients=256))
    assert len(found) > max(len(plan.steps) for plan in plans)
    assert max(len(launch.members) for launch in found) > 1
    assert_same(StackedWorker(runtime, clients).run(tasks(runtime.base), list(clients)), whole, 1e-10)


def test_nothing_that_was_handed_out_changes_with_the_next_cohort(world: World) -> None:
    runtime, clients = double_runtime(world, MODELS["ctc"]), world.clients()
    worker, names = StackedWorker(runtime, clients), sorted(clients)[:2]
    before = list(worker.run(tasks(runtime.base), names))
    kept = [{name: tensor.clone() for name, tensor in update.mean.items()} for update in before]
    moved = {name: tensor + 0.1 for name, tensor in runtime.base.items()}
    list(worker.run(tasks(moved), names))
    for update, copy in zip(before, kept, strict=True):
        assert all(torch.equal(update.mean[name], copy[name]) for name in copy)


def test_other_kinds_of_work_go_to_the_plain_worker(world: World) -> None:
    runtime, clients = world.runtime("ctc"), world.clients()
    names = sorted(clients)[:3]
    task = Task("evaluate", runtime.base)
    stacked = [update.reports for update in StackedWorker(runtime, clients).run(task, names)]
    assert stacked == [update.reports for update in SpeechWorker(runtime, clients).run(task, names)]


def test_a_stacked_batch_holds_every_client_s_rows_and_weighs_placeholders_with_nothing(world: World) -> None:
    runtime, clients = world.runtime("ctc"), unequal(world)
    local = replace(LOCAL, epochs=1, batch_seconds=0.0)
    wanted = LocalSteps(runtime.base, local, seed=1)
    plans = [
        Plan(c := Client(n, own, runtime), list(c.steps(local, 1)), wanted) for n, own in clients.items()
    ]
    (stacked,) = stacked_batches(runtime, plans, list(launches(plans, Footprint(), max_clients=256)))
    rows = np.array(stacked.batch.indices).reshape(len(plans), -1)
    for plan, row, share in zip(plans, rows, stacked.share, strict=True):
        assert sorted(row[row >= 0]) == sorted(plan.client.indices)
        assert float(share.sum()) == pytest.approx(1.0)
        assert set(share[row < 0].tolist()) <= {0.0}
        placeholders = stacked.batch.feature_lengths.view(rows.shape)[plans.index(plan)][row < 0]
        assert set(placeholders.tolist()) <= {1}
